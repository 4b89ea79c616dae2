"""Figures of several windows, and of the tensors of a measured step, as the report has them."""

from __future__ import annotations

from typing import Any

import pytest

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.layers import NamedLayers
from fp8verify.analysis.numerics import scalars_of
from fp8verify.capture.schema import SeriesRecord
from fp8verify.kernels import classify, decode
from fp8verify.terms import Leg


def row(layer: str, flops: int | None) -> GemmRow:
    found = classify(decode("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT"), None)
    return GemmRow(Kind("gemm", None, found), 0, Leg.FPROP, 2, 30, flops, layer=layer)


@pytest.mark.parametrize(("flops", "share"), [(200, 0.5), (None, None)])
def test_layers_have_a_share_where_the_flops_of_all_gemms_are_known(
    flops: int | None, share: float | None
) -> None:
    rows = [row("b", 200), row("a", 400), row("", flops), row("b", 0)]
    named = NamedLayers(rows)
    assert list(named.by_layer()) == ["b", "a"]
    assert named.share(["a"]) == share


def test_the_worst_tensor_of_each_pass_is_a_step_s_figure() -> None:
    columns: dict[str, Any] = {
        "layer": ("a", "a", "b", "b"),
        "tensor": ("input", "weight", "grad_output", "grad_output"),
        "amax": (1.0, 3.0, 0.25),  # damaged: one is missing
        "rms": (None,) * 4,
        "scale": (8.0, 4.0, 64.0, 32.0),
        "flushed": (0.1, None, 0.5, 0.2),
        "saturated": (None,) * 4,
        "sqnr_db": (30.0, 20.0, 25.0, 28.0),
        "nan": (0.0, 0.0, 1.0, 0.0),
        "inf": (0.0, 0.0, 2.0, 0.0),
    }
    found = scalars_of(SeriesRecord(step=3, time=0.0, gradient=None, **columns), loss=1.5)
    values = list(found.values())
    assert values[:6] == [4.0, 32.0, 3.0, 0.25, 0.1, 0.5]
    assert values[6:] == [20.0, 25.0, 0.0, 3.0, 1.5]

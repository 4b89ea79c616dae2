"""Figures of several windows, and of the tensors of a measured step, as the report has them."""

from __future__ import annotations

from typing import Any

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.layers import NamedLayers
from fp8verify.analysis.recorded import scalars_of
from fp8verify.capture.schema import MeasuredRecord, TensorRecord
from fp8verify.kernels import classify, decode
from fp8verify.terms import NO_OP, Leg


def row(layer: str) -> GemmRow:
    found = classify(decode("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT"), None)
    return GemmRow(Kind("gemm", NO_OP, found), 0, Leg.FPROP, 2, 30, 200, layer=layer)


def test_layers_stand_in_the_order_in_which_they_ran() -> None:
    named = NamedLayers([row("b"), row("a"), row(""), row("b")])
    assert list(named.by_layer()) == ["b", "a"]


def test_the_worst_tensor_of_each_pass_is_a_step_s_figure() -> None:
    figures: list[tuple[str, Any]] = [
        ("input", {"amax": 1.0, "scale": 8.0, "flushed": 0.1, "sqnr_db": 30.0}),
        ("weight", {"amax": 3.0, "scale": 4.0, "sqnr_db": 20.0}),
        ("grad_output", {"amax": 0.25, "scale": 64.0, "flushed": 0.5, "sqnr_db": 25.0, "nan": 1.0,
                         "inf": 2.0}),
        ("grad_output", {"scale": 32.0, "flushed": 0.2, "sqnr_db": 28.0}),
    ]  # fmt: skip
    rows = tuple(
        TensorRecord(layer="a", tensor=tensor, source="replay", **known)
        for tensor, known in figures
    )
    line = MeasuredRecord(
        step=3, time=0.0, rows=rows, recomputed_high=(), gradient=None, notes=()
    )
    found = scalars_of(line, loss=1.5)
    values = list(found.values())
    assert values[:6] == [4.0, 32.0, 3.0, 0.25, 0.1, 0.5]
    assert values[6:] == [20.0, 25.0, 0.0, 3.0, 1.5]

"""Figures of several windows, and of the tensors of a measured step, as the report has them."""

from __future__ import annotations

from typing import Any

import pytest

from fp8verify.analysis.layers import LayerGemms, NamedLayers, join_named
from fp8verify.analysis.numerics import scalars_of
from fp8verify.capture.schema import SeriesRecord
from fp8verify.terms import Leg, Precision


def window(flops: int | None, note: str | None = None) -> NamedLayers:
    gemms = (LayerGemms("a", Leg.FPROP, Precision.FP8, 2, 30, 400),)
    return NamedLayers(gemms=gemms, casts={"a": 7}, unjoined=1, flops=flops, note=note)


@pytest.mark.parametrize(("flops", "joined"), [((400, 800), 1200), ((400, None), None)])
def test_windows_of_named_layers_are_added_up(
    flops: tuple[int | None, ...], joined: int | None
) -> None:
    found = join_named([None, *(window(each, "cut" if each is None else None) for each in flops)])
    assert found is not None
    assert found.gemms == (LayerGemms("a", Leg.FPROP, Precision.FP8, 4, 60, 800),)
    assert (found.casts, found.unjoined, found.flops) == ({"a": 14}, 2, joined)
    assert found.note == ("cut" if joined is None else None)
    assert join_named([None, window(5)]) == window(5)
    assert join_named([None]) is None


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

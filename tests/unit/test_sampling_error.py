"""Sampled figures: outliers weigh what they weigh, and no figure is off by more than it states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, from the train extra")
import torch

from fp8verify.agent.numerics import sampling
from fp8verify.agent.numerics.casts import (
    BLOCK_SQUARE,
    DELAYED,
    E4M3,
    E5M2,
    ROWWISE,
    TENSORWISE,
    Cast,
)
from fp8verify.agent.numerics.measurements import Measurements
from fp8verify.agent.numerics.table import decibels

pytestmark = pytest.mark.train
ROWS, COLUMNS = 2048, 512
CASTS = {
    "tensorwise": Cast(E4M3, TENSORWISE),
    "e5m2": Cast(E5M2, TENSORWISE),
    "rowwise": Cast(E4M3, ROWWISE, power_of_2=True),
    "delayed": Cast(E4M3, DELAYED, scale=torch.tensor(50.0)),
    "square": Cast(E4M3, BLOCK_SQUARE),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensor(kind: str) -> torch.Tensor:
    torch.manual_seed(len(kind))
    x = torch.randn(ROWS, COLUMNS)
    made = {
        "normal": lambda: x,
        "rows of many sizes": lambda: x * torch.exp2(8 * torch.rand(ROWS, 1)),
        "heavy tail": lambda: x / torch.rand(ROWS, COLUMNS).clamp(min=1e-4),
        "a few large values": lambda: torch.where(torch.rand_like(x) < 5e-6, x * 1e5, x),
        "some rows tiny": lambda: x * torch.where(torch.rand(ROWS, 1) < 0.02, 1e-9, 1.0),
        "padding": lambda: x * (torch.arange(ROWS) < 0.7 * ROWS).unsqueeze(1),
        "columns of many sizes": lambda: x * torch.exp2(12 * torch.rand(1, COLUMNS)),
    }
    return made[kind]().bfloat16()


def measured(x: torch.Tensor, cast: Cast) -> dict[str, Any]:
    found = Measurements()
    found.add("layer", "input", x, cast)
    return found.records()[0]


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize(
    "kind",
    ["normal", "rows of many sizes", "heavy tail", "a few large values", "some rows tiny",
     "padding", "columns of many sizes"],
)  # fmt: skip
def test_no_figure_is_off_by_more_than_it_states(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = tensor(kind)
    seen = measured(x, CASTS[name])
    monkeypatch.setattr(sampling, "MOST_ELEMENTS", x.numel())
    whole = measured(x, CASTS[name])

    assert (seen["sampled"] < x.numel(), whole["sampled"], whole["error"]) == (True, x.numel(), {})
    assert (seen["amax"], seen["zero_rows"]) == (whole["amax"], whole["zero_rows"])
    for figure in ("rms", "zeros", "flushed", "subnormal", "saturated", "sqnr_db"):
        if figure in seen["error"]:
            margin = seen["error"][figure] + 1e-5 * abs(whole[figure])
            assert abs(seen[figure] - whole[figure]) <= margin, figure
    for recipe, db in seen["what_if"].items():
        assert abs(db - whole["what_if"][recipe]) <= seen["error"]["what_if"] + 1e-3, recipe
    if name != "square":
        assert max(seen["error"][figure] for figure in ("zeros", "flushed")) < 0.15


def test_one_large_value_weighs_what_it_weighs() -> None:
    x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    x[517, 3] = 1e5
    seen = measured(x, CASTS["tensorwise"])
    rms = float(x.double().square().mean().sqrt())
    assert seen["rms"] == pytest.approx(rms, rel=1e-4)
    assert seen["amax"] / seen["rms"] == pytest.approx(1024, rel=0.01)
    done = (x * (448 / 1e5)).to(torch.float8_e4m3fn).double() / (448 / 1e5)
    noise = float((done - x.double()).square().sum())
    assert seen["sqnr_db"] == pytest.approx(
        decibels(float(x.double().square().sum()), noise), abs=1
    )


@pytest.mark.parametrize(("noise", "db"), [(0.0, 150.0), (1e-30, 150.0), (1e-3, 30.0)])
def test_a_cast_that_loses_next_to_nothing_is_capped(noise: float, db: float) -> None:
    assert decibels(1.0, noise) == db

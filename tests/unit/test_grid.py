"""Which cells of a grid are short of low precision, by what others ran."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fp8verify.analysis.gemms import GemmRow
from fp8verify.terms import Leg, Precision, Role
from fp8verify.verdict.grid import Grid

F, D, W, R, B = Leg.FPROP, Leg.DGRAD, Leg.WGRAD, Leg.RECOMPUTE, Leg.BACKWARD


def given(share: float | None = None, *, models: bool = False, **more: Any) -> Mock:
    """State a share of all cells, and whether these are of models that run unequally often."""
    usual = {
        "alike": True,
        "spared": [0],
        "spared_in_all": 0,
        "launches": Mock(return_value=0),
    }
    return Mock(
        return_value=share, of_models=Mock(return_value=models), **{**usual, **more}
    )


def rows(  # type: ignore[no-untyped-def]
    leg: Leg, low: int, high: int, *, step=0, mb=0, layer: Any = "up", flops=None
) -> list[GemmRow]:
    """Return the launches of a cell, each of one unit of time and of some FLOPs, if any."""
    found = []
    for precision, calls in ((Precision.FP8, low), (Precision.BF16, high)):
        made = SimpleNamespace(precision=precision, role=Role.GEMM, hidden=False)
        kind: Any = SimpleNamespace(multiplies=True, classification=made)
        work = flops and flops * calls
        row = GemmRow(kind, step, leg, calls, calls, work, micro_batch=mb, layer=layer)
        found += [row] if calls else []
    return found


def short(stated: Mock, *ranks: list[list[GemmRow]]) -> set[tuple[Any, ...]]:
    """Return rank, step, micro-batch and leg of the cells that are short, or "?" if open."""
    grid = Grid([[row for cell in rank for row in cell] for rank in ranks], stated)
    sure = {(c.rank, c.step, c.micro_batch, c.leg) for c in grid.lacks}
    return sure | {(c.rank, c.step, c.micro_batch, c.leg, "?") for c in grid.open}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([rows(F, 4, 0), rows(D, 4, 0), rows(W, 3, 1)], {W}),
        (
            [rows(F, 4, 0), rows(D, 3, 0), rows(W, 4, 0)],
            set(),
        ),  # the first layer has no dgrad
        (
            [rows(F, 3, 1), rows(D, 3, 1), rows(W, 3, 1)],
            set(),
        ),  # one layer is high by design
        ([rows(F, 3, 1), rows(D, 3, 1), rows(W, 2, 2)], {W}),
        ([rows(F, 4, 0), rows(R, 2, 1), rows(D, 4, 0), rows(W, 4, 0)], {R}),
        ([rows(F, 4, 0), rows(B, 7, 1)], {B}),
        (
            [rows(F, 4, 0), rows(D, 4, 2), rows(W, 4, 0)],
            set(),
        ),  # more than forward: other ones
        ([rows(F, 4, 0), rows(D, 4, 0), rows(W, 3, 2)], {W}),  # of half the tokens each
        (
            [rows(F, 4, 0, flops=8), rows(W, 4, 2, flops=4)],
            {W},
        ),  # the low ones are halves
        (
            [rows(F, 8, 0, flops=4), rows(W, 4, 0, flops=8)],
            set(),
        ),  # the forward ones are
    ],
)
def test_what_a_low_forward_gemm_needs_again_is_expected_low(
    cells: list[list[GemmRow]], expected: set[Leg]
) -> None:
    assert short(given(), cells) == {(0, 0, 0, leg) for leg in expected}


def test_a_gradient_of_another_micro_batch_is_none_that_the_step_lacks() -> None:
    forward = [rows(F, 4, 0, mb=0), rows(F, 4, 1, mb=1)]
    assert short(given(), [*forward, rows(W, 3, 1, mb=0), rows(W, 5, 0, mb=1)]) == set()


@pytest.mark.parametrize(("wgrad", "expected"), [(4, {(0, 0, 0, D, "?")}), (2, set())])
def test_without_layers_a_gradient_is_doubted_where_all_weights_have_one(
    wgrad: int, expected: set[tuple[Any, ...]]
) -> None:
    cells = [
        rows(F, 4, 0, layer=None),
        rows(D, 2, 1, layer=None),
        rows(W, wgrad, 0, layer=None),
    ]
    assert short(given(), cells) == expected


def test_fp8_gradients_of_no_known_leg_belong_to_forward_gemms_in_fp8() -> None:
    """Neither to a product that has no dgrad, nor to another one's dgrad."""
    ran = ((F, 12, 4), (D, 0, 1), (W, 0, 7), (B, 21, 0))
    cells = [rows(*counts, layer=None) for counts in ran]
    assert short(given(), cells) == {(0, 0, 0, W)}


@pytest.mark.parametrize(
    ("alike", "expected"), [(True, {(1, 0, 0, F)}), (False, set())]
)
def test_layers_that_run_unequally_often_are_held_against_what_most_cells_ran(
    alike: bool, expected: set[tuple[Any, ...]]
) -> None:
    ranks = [[rows(F, 5, 0)], [rows(F, 3, 1)], [rows(F, 6, 0)]]
    assert short(given(alike=alike, spared=[0] * 3), *ranks) == expected


@pytest.mark.parametrize(
    ("high", "in_all", "expected"),
    [
        ((1, 0, 0, 1), 2, set()),
        ((1, 2, 0, 1), 2, {1}),
        ((2, 2, 0, 1), 9, {0, 1}),  # a stage has one of them
    ],
)
def test_pinned_blocks_are_of_as_many_stages(
    high: tuple[int, ...], in_all: int, expected: set[int]
) -> None:
    ranks = [[rows(leg, 2 - n, n) for leg in (F, D, W)] for n in high]
    found = short(given(alike=False, spared=[1] * 4, spared_in_all=in_all), *ranks)
    assert {cell[0] for cell in found} == expected


def test_a_pinned_block_is_high_in_all_legs_and_steps() -> None:
    stated = given(spared=[1], spared_in_all=1)
    steps = [[rows(leg, 3, 1, step=step) for leg in (F, D, W)] for step in (0, 1)]
    assert short(stated, [*steps[0], *steps[1]]) == set()
    steps[1] = [rows(leg, 4, 0, step=1) for leg in (F, D, W)]
    assert short(stated, [*steps[0], *steps[1]]) == {
        (0, 0, 0, leg) for leg in (F, D, W)
    }


@pytest.mark.parametrize(
    ("models", "second", "expected"),
    [(True, 4, set()), (True, 2, {1}), (False, 4, {0, 1})],
)
def test_models_need_not_run_equally_often(
    models: bool, second: int, expected: set[int]
) -> None:
    cells = [rows(F, 0, 8, mb=0), rows(F, 4, 0, mb=1), rows(F, 0, 8, step=1, mb=0)]
    cells.append(rows(F, second, 4 - second, step=1, mb=1))
    assert {cell[1] for cell in short(given(0.5, models=models), cells)} == expected

"""Step times as a mean with its uncertainty, and what two of them decide."""

from __future__ import annotations

import random

import pytest

from benchmarks.figures import STEPS, VARIATIONS, independent, outcome, share
from fp8verify.analysis.timeline import step_statistics
from fp8verify.model.comparison import Outcome
from fp8verify.model.steps import StepStatistics
from tests.hand_built import present


def statistics(windows: list[list[float]], steps: int | None = None) -> StepStatistics:
    return present(step_statistics(windows, steps))


def test_one_slow_step_is_left_out_and_a_slow_quarter_is_not() -> None:
    found = statistics([[10.0, 10.0, 10.0, 10.0, 100.0]])
    assert (found.count, found.left_out, found.mean_us, found.max_us) == (
        4,
        1,
        10.0,
        10.0,
    )
    found = statistics([[10.0, 10.0, 16.0, 16.0]])
    assert (found.count, found.left_out, found.mean_us) == (4, 0, 13.0)


def test_a_sample_stands_for_more_steps() -> None:
    found = statistics([[1.0, 2.0, 3.0]], 300)
    assert (found.count, found.effective, found.deviation_us) == (300, 3.0, 1.0)
    assert step_statistics([[]]) is None


def test_steps_of_windows_that_differ_tell_less() -> None:
    draw = random.Random(1)
    alike = [independent(draw, 5, 0.01) for _ in range(6)]
    apart = [
        [time * (1 + 0.1 * (place % 2)) for time in w] for place, w in enumerate(alike)
    ]
    assert statistics(alike).effective > 20
    assert statistics(apart).effective < 10


def test_the_effective_number_of_steps_is_that_of_the_formula() -> None:
    # Three windows of two steps: 0.507 between them and 0.02 inside, so a correlation of 0.924.
    assert statistics([[1.0, 1.2], [1.4, 1.6], [2.0, 2.2]]).effective == pytest.approx(
        3.1185, 1e-4
    )
    # 30 neighbors alike and 9 not: 0.525, and (1 + 2 x 0.525) / 40 for so few steps.
    times = [10.0 + (place // 4) % 2 for place in range(40)]
    assert statistics([times]).effective == pytest.approx(40 * (1 - 0.57625) / 1.57625)
    assert statistics(
        [[100.0 + place for place in range(40)]]
    ).effective == pytest.approx(4 / 1.9)


def test_windows_of_equal_steps_count_once_each() -> None:
    found = statistics([[1.0, 1.0, 1.0], [1.2, 1.2, 1.2]])
    assert (found.count, found.effective) == (6, pytest.approx(2.0))


def test_steps_that_resemble_their_neighbours_tell_less() -> None:
    assert statistics([[10.0 + place / 10 for place in range(40)]]).effective < 10


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("steps", STEPS)
def test_equal_runs_are_seldom_called_different(steps: int, variation: float) -> None:
    different = (Outcome.FASTER, Outcome.SLOWER)
    assert share(400, 11, steps, variation, different) <= 0.05


def test_a_true_change_is_found() -> None:
    assert share(300, 11, 10, 0.03, (Outcome.SLOWER,), slower=1.1) >= 0.9
    assert share(300, 11, 50, 0.03, (Outcome.SLOWER,), slower=1.05) >= 0.9


def test_the_steps_that_a_comparison_asks_for_would_tell() -> None:
    steps = [100.0, 130.0, 115.0, 90.0, 120.0]
    assert outcome(steps, [time * 1.1 for time in steps]) is Outcome.UNDECIDED
    assert outcome(steps * 12, [time * 1.1 for time in steps * 12]) is Outcome.SLOWER

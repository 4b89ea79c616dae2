"""Numbers of steps that a framework or a script tells, and windows placed by them."""

from __future__ import annotations

import pytest

from fp8verify.agent.framework_counters import counters
from fp8verify.agent.windows.plan import GlobalPlan


def test_without_a_source_there_are_no_numbers() -> None:
    plan = GlobalPlan([(5, 6)])

    assert [plan.number_of(step) for step in range(4)] == [None] * 4
    assert plan.source == ""


def placed(
    windows: list[tuple[int, int]], at: list[int | None]
) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the steps that windows get where the numbers of the steps 0, 1, 2 … are `at`.

    With what they were asked for, and with the notes.
    """

    class Numbered(GlobalPlan):
        def number_of(self, step: int) -> int | None:
            return at[step]

    plan = Numbered(windows)
    for step in range(len(at)):
        plan.place_due(step)
    assert len(plan.waiting) == len(windows) - len(plan.windows)
    return [
        (one["first"], one["last"], *one["asked"]) for one in plan.windows
    ], plan.notes


@pytest.mark.parametrize(
    ("windows", "at", "found"),
    [
        ([(105, 107)], [100, 101, 102], []),
        (
            [(105, 107)],
            [100, 101, 102, 103],
            [(5, 7, 105, 107)],
        ),  # in time to be prepared
        ([(101, 102)], [100], [(1, 2, 101, 102)]),  # the first step of a resumed run
        (
            [(9, 12)],
            [None, 1, 3, 5, 7, 9],
            [(5, 6, 9, 12)],
        ),  # a counter of two optimizers
        ([(3, 4), (12, 13)], [None, None, 10, 11, 12], [(4, 5, 12, 13)]),  # one is over
        ([(5, 5), (7, 8)], [3, 4, 5, 6, 7, 8], [(2, 2, 5, 5), (4, 5, 7, 8)]),
        ([(3, 4)], [None, 1, 2, 3, 4, 1, 2, 3, 4], [(3, 4, 3, 4)]),  # trains twice
    ],
)
def test_a_window_gets_its_steps_once(
    windows: list[tuple[int, int]], at: list[int | None], found: list[tuple[int, ...]]
) -> None:
    assert placed(windows, at) == (found, [])


def test_the_numbers_of_several_trainings_are_told() -> None:
    plan = GlobalPlan([(50, 51)])
    for step, number in enumerate([1, 2, 3, 1, None], start=1):
        counters.announce(number, is_new=True)
        plan.place_due(step)
    counters.forget()
    assert (plan.lowest, plan.highest, plan.source) == (1, 3, "script step")

"""When the profiler is prepared, started and stopped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fp8verify.agent.windows.plan import Plan, new_window
from fp8verify.record.settings import parse_windows


def timetable(
    *windows: tuple[int, int], steps: int = 20
) -> dict[int, list[tuple[str, int]]]:
    plan = Plan(windows)
    due = {step: plan.after(step) for step in range(steps + 1)}
    return {step: actions for step, actions in due.items() if actions}


def test_a_window_is_prepared_one_step_ahead_if_there_is_one() -> None:
    assert timetable((10, 12)) == {
        8: [("prepare", 0)],
        9: [("start", 0)],
        12: [("stop", 0)],
    }
    assert timetable((2, 3)) == {1: [("start", 0)], 3: [("stop", 0)]}
    assert timetable((1, 1)) == {0: [("start", 0)], 1: [("stop", 0)]}
    assert [Plan([(step, 3)]).starts_at_once for step in (1, 2)] == [True, False]


def test_a_window_is_not_prepared_while_another_records() -> None:
    assert timetable((5, 6), (8, 8))[6] == [("stop", 0), ("prepare", 1)]
    assert ("prepare", 1) not in timetable((5, 6), (7, 8)).get(5, [])


def test_a_window_known_by_its_time_is_prepared_when_the_time_has_come() -> None:
    plan = Plan([(3, 4)], [new_window(2, 3)])
    assert not plan.finished(4)

    plan.place(plan.waiting[0], 42, 43)

    due = {step: plan.after(step) for step in range(40, 45)}
    assert due == {
        40: [("prepare", 1)],
        41: [("start", 1)],
        42: [],
        43: [("stop", 1)],
        44: [],
    }
    assert plan.finished(43)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20, unique=True))
def test_each_window_runs_with_no_other_profiler_alive_or_just_stopped(
    steps: list[int],
) -> None:
    windows = parse_windows(",".join(map(str, steps)))
    plan = Plan(windows)
    alive: list[int] = []
    recorded: dict[int, list[int]] = {}
    for step in range(45):
        due = plan.after(step)
        assert not {"start", "stop"} <= {what for what, _ in due}
        for what, window in due:
            if what == "stop":
                alive.remove(window)
            elif window not in alive:
                alive.append(window)
            if what == "start":
                recorded[window] = []
            assert len(alive) <= 1
        for window, steps in recorded.items():
            if window in alive:
                steps.append(step + 1)
    assert recorded == {i: list(range(a, b + 1)) for i, (a, b) in enumerate(windows)}

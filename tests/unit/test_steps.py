"""How steps are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.text import join_windows, show_steps


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ([], ""), ([10], "step 10"), ([10, 11, 12], "steps 10-12"),
        ([12, 10, 11, 11], "steps 10-12"), ([10, 12], "steps 10, 12"),
        ([*range(10, 13), *range(500, 503)], "steps 10-12, 500-502"),
        (range(1, 12, 2), "steps 1, 3, 5, 7 and 2 more"),
    ],
)  # fmt: skip
def test_steps_are_written_as_windows(steps: list[int], shown: str) -> None:
    assert show_steps(steps) == shown


@given(st.sets(st.integers(0, 60)))
def test_joined_windows_hold_the_same_steps_and_do_not_touch(steps: set[int]) -> None:
    windows = join_windows((step, step) for step in sorted(steps))
    held = [step for first, last in windows for step in range(first, last + 1)]
    assert held == sorted(steps)
    assert all(first - 1 not in steps for first, _ in windows)

"""How windows and ranks are written on the command line."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.errors import UsageError
from fp8verify.record.settings import (
    RankSelection,
    TimedWindow,
    parse_count,
    parse_ranks,
    parse_windows,
    read_settings,
)


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("10-12", ((10, 12),)), ("10", ((10, 10),)), ("10-12,500-502", ((10, 12), (500, 502))),
        ("500-502, 10-12", ((10, 12), (500, 502))), ("1,3,5", ((1, 1), (3, 3), (5, 5))),
        ("3-4,1,5,6-8,10", ((1, 1), (3, 8), (10, 10))),
    ],
)  # fmt: skip
def test_windows(text: str, windows: tuple[tuple[int, int], ...]) -> None:
    assert parse_windows(text) == windows


@pytest.mark.parametrize(
    ("text", "fact", "hint"),
    [
        ("", "does not name steps", "10-12"), ("ten", "does not name steps", "10-12"),
        ("10:12", "does not name steps", "10-12"), ("10-", "does not name steps", "10-12"),
        ("-3", "does not name steps", "10-12"), ("1e3", "does not name steps", "10-12"),
        ("10-12,", "does not name steps", "10-12"), ("12-10", "ends before it begins", "10-12"),
        ("0-3", "before the first step", "from 1"), ("10-12,12-14", "overlap", "share no step"),
    ],
)  # fmt: skip
def test_what_is_no_window_is_told_in_two_lines(
    text: str, fact: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=fact) as caught:
        parse_windows(text)
    assert hint in caught.value.hint
    assert "\n" not in f"{caught.value.fact}{caught.value.hint}"


def test_windows_by_the_framework_s_numbers() -> None:
    settings = read_settings(steps="global:5000-5002, 6000")
    assert (settings.windows, settings.global_windows) == (
        (),
        ((5000, 5002), (6000, 6000)),
    )


@pytest.mark.parametrize("other", [{"every": 100}, {"after_seconds": 60.0}])
def test_the_framework_s_numbers_do_not_mix_with_other_windows(
    other: dict[str, float],
) -> None:
    with pytest.raises(UsageError, match="do not go together") as caught:
        read_settings(steps="global:5000-5002", **other)  # type: ignore[arg-type]
    assert "from the start of this run" in caught.value.hint


@given(st.text(max_size=30))
def test_any_text_is_windows_in_order_or_a_usage_error(text: str) -> None:
    try:
        windows = parse_windows(text)
    except UsageError:
        return
    steps = [step for window in windows for step in window]
    assert steps == sorted(steps)
    assert steps[0] >= 1
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(windows))


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("0", RankSelection(only=(0,))),
        ("7, 0,7", RankSelection(only=(0, 7))),
        ("all", RankSelection(every=1)),
        ("auto", RankSelection(auto=True)),
        ("every:64", RankSelection(every=64)),
    ],
)
def test_ranks(text: str, selection: RankSelection) -> None:
    assert parse_ranks(text) == selection


def test_by_default_all_of_up_to_eight_ranks_and_of_more_one_a_node() -> None:
    ranks = read_settings(steps=None).ranks
    assert [rank for rank in range(8) if ranks.includes(rank, 8)] == list(range(8))
    assert [rank for rank in range(64) if ranks.includes(rank, 64)] == list(
        range(0, 64, 8)
    )


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({"WORLD_SIZE": "8"}, list(range(8))),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, [0, 4, 8, 12]),
        ({"SLURM_NTASKS": "16"}, [0, 8]),
    ],
)
def test_the_agent_takes_one_rank_of_each_node_of_a_large_run(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], chosen: list[int]
) -> None:
    process = pytest.importorskip("fp8verify.agent.process")
    for name in (*process.WORLD_SIZE_VARIABLES, *process.LOCAL_SIZE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ranks = RankSelection(auto=True)._asdict()
    assert [rank for rank in range(16) if process.is_selected(rank, ranks)][
        : len(chosen)
    ] == chosen


@pytest.mark.parametrize(
    ("text", "chosen"), [("0,7", [0, 7]), ("every:3", [0, 3, 6]), ("2", [2])]
)
def test_the_agent_takes_the_ranks_that_were_named(
    text: str, chosen: list[int]
) -> None:
    process = pytest.importorskip("fp8verify.agent.process")
    ranks = parse_ranks(text)._asdict()
    assert [rank for rank in range(8) if process.is_selected(rank, ranks)] == chosen


def test_without_steps_the_window_begins_when_step_times_are_stable() -> None:
    window = TimedWindow(seconds=120.0, steps=3, auto=True)
    assert read_settings(steps=None).timed_window == window


@pytest.mark.parametrize("text", ["", "none", "-1", "0-7", "every:0", "every:", "0,,1"])
def test_what_is_no_rank_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="does not name ranks"):
        parse_ranks(text)


@pytest.mark.parametrize("text", ["", "0", "-3", "10-12", "three", "3.0"])
def test_with_after_seconds_steps_is_a_count(text: str) -> None:
    assert read_settings(steps=" 3 ", after_seconds=9).timed_window == TimedWindow(9, 3)
    with pytest.raises(UsageError, match="not a number of steps") as caught:
        parse_count(text)
    assert "--after-seconds" in caught.value.hint

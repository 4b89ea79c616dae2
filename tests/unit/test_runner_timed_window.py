"""When a window without given steps begins: by time or when stable, on all ranks together."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fp8verify.agent.windows import plan as timed_window
from fp8verify.agent.windows.plan import FAR, LATEST_STEP, MARGIN_STEPS, TimedPlan


def timed(folder: Path, seconds: float = 0.0, *, auto: bool = False) -> TimedPlan:
    window = {"seconds": seconds, "steps": 3, "auto": auto}
    config: Any = {"started": time.time(), "windows": (), "capture": str(folder)}
    return TimedPlan(window, config)


def test_it_is_due_when_its_time_has_come(tmp_path: Path) -> None:
    assert timed(tmp_path).is_due()
    assert not timed(tmp_path, 3600).is_due()
    assert timed(tmp_path).first_step(42, 1) == 42  # a rank alone asks nobody
    assert not list(tmp_path.iterdir())


def test_ranks_that_are_some_steps_apart_begin_together(tmp_path: Path) -> None:
    ranks = [timed(tmp_path) for _ in range(3)]

    first = ranks[0].first_step(42, 3)

    assert first == 42 + MARGIN_STEPS
    later = [
        rank.first_step(at, 3) for rank, at in zip(ranks[1:], (40, 46), strict=True)
    ]
    assert later == [first, first]
    (path,) = tmp_path.iterdir()
    assert (path.name, json.loads(path.read_bytes())["first"]) == (".window-1", first)


def test_short_steps_get_as_much_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([100.0, 100.0, 100.01, 100.02])
    monkeypatch.setattr(time, "time", lambda: next(moments, 101.0))
    rank = timed(tmp_path)
    rank.is_due()
    rank.is_due()

    assert 42 + 20 < rank.first_step(42, 2) <= 42 + FAR


@pytest.mark.parametrize("earliest", [47, 3000, 1], ids=["too late", "ahead", "behind"])
def test_a_rank_that_cannot_keep_up_begins_by_itself(
    tmp_path: Path, earliest: int
) -> None:
    behind = timed(tmp_path)
    timed(tmp_path).first_step(42 if earliest > 1 else 2000, 2)

    assert behind.first_step(earliest, 2) == earliest


def test_a_second_training_in_the_capture_agrees_anew(tmp_path: Path) -> None:
    timed(tmp_path).first_step(900, 2)
    time.sleep(0.01)
    second = [timed(tmp_path) for _ in range(2)]

    assert [rank.first_step(3, 2) for rank in second] == [3 + MARGIN_STEPS] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".window-1",
        ".window-2",
    ]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"first": "x", "time": 9e12}', b'{"time": {}}']
)
def test_what_is_no_agreement_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".window-1").write_bytes(content)

    assert timed(tmp_path).first_step(42, 2) == 42


def test_a_folder_that_is_gone_or_without_links_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    assert timed(tmp_path / "gone").first_step(42, 2) == 42
    monkeypatch.setattr(os, "link", refuse)
    assert timed(tmp_path).first_step(42, 2) == 42
    assert not list(tmp_path.iterdir())


class Steps:
    """A rank whose steps take given times; `after` says after which step a window is due."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "time", lambda: self.now)
        self.start = timed(folder, 120.0, auto=True)

    def after(self, *seconds: float) -> int | None:
        for step, took in enumerate(seconds, start=1):
            self.now += took
            if self.start.is_due():
                return step
        return None


@pytest.mark.parametrize(
    ("seconds", "step"),
    [
        ([9, 1, 1, 1, 1, 1, 1], 6), ([9, 3, 1.1, 1, 0.9, 1, 1], 7), ([1, 3] * 20, LATEST_STEP - 2),
        ([50, 20, 60], 3), ([1, 1, 1, 1], None),
    ],
    ids=["stable", "stable later", "never stable", "120 s", "too short"],
)  # fmt: skip
def test_a_window_that_nobody_named_begins_when_steps_are_stable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: list[float],
    step: int | None,
) -> None:
    assert Steps(tmp_path, monkeypatch).after(*seconds) == step


def test_a_window_that_nobody_named_waits_for_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = iter([3, 3, 3, 5, *[5] * 20])
    monkeypatch.setattr(timed_window, "_compiled_frames", lambda: next(frames))
    assert Steps(tmp_path, monkeypatch).after(*[1] * 20) == 9


def test_ranks_whose_steps_are_not_stable_follow_one_whose_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable, unstable = (Steps(tmp_path, monkeypatch) for _ in range(2))
    monkeypatch.setattr(time, "time", lambda: stable.now)
    step = stable.after(9, *[1] * 6)
    assert step is not None
    first = stable.start.first_step(step + 2, 2)
    assert step + 2 < first <= LATEST_STEP
    unstable.now = stable.now
    assert unstable.after(1) == 1  # the proposal is there
    assert unstable.start.first_step(3, 2) == first


def test_ranks_of_which_none_is_stable_begin_with_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in [Steps(tmp_path, monkeypatch) for _ in range(2)]:
        monkeypatch.setattr(time, "time", lambda rank=rank: rank.now)
        assert rank.after(*[1, 3] * 20) == LATEST_STEP - 2
        assert rank.start.first_step(LATEST_STEP, 2) == LATEST_STEP

"""Whether a run that is being recorded opens windows still."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from fp8verify.capture.schema import RankMeta, WindowRecord
from fp8verify.record import RunSettings, parse_ranks
from fp8verify.record.live import judge_process, window_report
from fp8verify.record.live.status import PendingWindows, all_windows_done, closed_windows
from fp8verify.verdict.policy import Policy

ALL = parse_ranks("all")
DONE = WindowRecord(first=3, last=4, state="complete", trace="rank0.json.gz")
OPEN = WindowRecord(first=3, last=4, state="cut")
NEVER = WindowRecord(first=9, last=9, state="never")
LOST = WindowRecord(first=3, last=4, state="dropped")
SCRIPTS = WindowRecord(first=3, last=4, state="complete", trace="own.json", profiler="script")


def write(capture: Path, *ranks: tuple[WindowRecord, ...], world_size: int | None = None) -> None:
    for rank, windows in enumerate(ranks):
        meta = RankMeta(
            schema=1, rank=rank, world_size=world_size or len(ranks), windows=windows, steps_seen=5
        )
        (capture / f"rank{rank}.meta.json").write_bytes(msgspec.json.encode(meta))


@pytest.mark.parametrize(
    ("ranks", "over"),
    [
        ([(DONE,)], True),
        ([(LOST,)], True),
        ([(OPEN,)], False),
        ([(DONE, NEVER)], False),
        # The number of a window by the framework's numbers is known later.
        ([()], False),
        ([(SCRIPTS, NEVER)], False),
        ([(DONE,), (DONE,)], True),
        ([(DONE,), (OPEN,)], False),
    ],
)
def test_when_no_window_is_to_come(
    tmp_path: Path, ranks: list[tuple[WindowRecord, ...]], over: bool
) -> None:
    write(tmp_path, *ranks)
    assert all_windows_done(tmp_path, ALL, 1) is over


def test_a_rank_without_a_record_may_open_one(tmp_path: Path) -> None:
    write(tmp_path, (DONE,), world_size=2)
    assert not all_windows_done(tmp_path, ALL, 1)
    assert all_windows_done(tmp_path, parse_ranks("0"), 1)
    assert closed_windows(tmp_path, ALL) == (1, 0)


def test_an_empty_capture_is_not_over(tmp_path: Path) -> None:
    assert not all_windows_done(tmp_path, ALL, 1)


class Judge:
    """Judges at once."""

    idle = True
    submitted: list[int]

    def __init__(self, *_: object) -> None:
        Judge.submitted = []

    def submit(self, capture: Path) -> None:
        self.submitted.append(closed_windows(capture, ALL)[1])

    def wait(self) -> None:
        pass

    stop = wait


def test_a_window_that_closes_while_its_end_is_looked_for_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = PendingWindows.is_due

    def is_due(self: PendingWindows, passed_s: float) -> bool:
        found = looked(self, passed_s)
        write(tmp_path, (DONE, DONE))  # right after the look
        return found

    write(tmp_path, (DONE, NEVER))
    monkeypatch.setattr(window_report, "POLL_S", 0.001)
    monkeypatch.setattr(judge_process, "JudgeProcess", Judge)
    monkeypatch.setattr(PendingWindows, "is_due", is_due)
    settings = RunSettings(windows=((3, 4), (9, 9)), ranks=ALL)
    window_report._follow(tmp_path, settings, Policy(), threading.Event(), prints=False)
    assert len(Judge.submitted) == 2

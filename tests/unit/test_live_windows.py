"""Windows of a run that goes on: when they are complete, and the process that judges them."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from fp8verify.capture.schema import RankMeta, WindowRecord
from fp8verify.record import live
from fp8verify.record.folder import keep_report
from fp8verify.record.live import GRAVITY, Judge, WindowMetrics, progress
from fp8verify.record.settings import parse_ranks
from fp8verify.terms import Verdict
from fp8verify.verdict.policy import Policy

ALL = parse_ranks("all")
DONE = WindowRecord(first=3, last=4, state="complete", trace="rank0.json.gz")
OPEN = WindowRecord(first=3, last=4, state="cut")
NEVER = WindowRecord(first=9, last=9, state="never")
LOST = WindowRecord(first=3, last=4, state="dropped")
SCRIPTS = WindowRecord(first=3, last=4, state="complete", trace="own.json")


def write(
    capture: Path, *ranks: tuple[WindowRecord, ...], world_size: int | None = None
) -> None:
    for rank, windows in enumerate(ranks):
        size = world_size or len(ranks)
        meta = RankMeta(
            schema=1, rank=rank, world_size=size, windows=windows, steps_seen=5
        )
        (capture / f"rank{rank}.meta.json").write_bytes(msgspec.json.encode(meta))


@pytest.mark.parametrize(
    ("ranks", "closed", "is_last"),
    [
        ([], 0, False), ([(DONE,)], 1, True), ([(LOST,)], 0, True), ([(OPEN,)], 0, False),
        ([(DONE, NEVER)], 1, False),
        # The number of a window by the framework's numbers is known later.
        ([()], 0, False), ([(SCRIPTS, NEVER)], 1, False), ([(DONE,), (DONE,)], 1, True),
        ([(DONE,), (OPEN,)], 0, False),
    ],
)  # fmt: skip
def test_a_window_is_closed_when_it_is_on_every_rank(
    tmp_path: Path, ranks: list[tuple[WindowRecord, ...]], closed: int, is_last: bool
) -> None:
    write(tmp_path, *ranks)
    assert progress(tmp_path, ALL, 1) == (closed, is_last)


def test_a_rank_without_a_record_may_open_one(tmp_path: Path) -> None:
    write(tmp_path, (DONE,), world_size=2)
    assert progress(tmp_path, ALL, 1) == (0, False)
    assert progress(tmp_path, parse_ranks("0"), 1) == (1, True)


def test_every_verdict_has_its_place_from_best_to_worst() -> None:
    assert sorted(GRAVITY) == sorted(verdict.value for verdict in Verdict)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """The processes that judge; each one takes a request and never answers."""
    processes: list[subprocess.Popen[str]] = []

    def start(_: list[str], **options: object) -> subprocess.Popen[str]:
        code = "import sys, time; sys.stdin.read(); time.sleep(600)"
        processes.append(popen([sys.executable, "-c", code], **options))  # type: ignore[call-overload]
        return processes[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(live.subprocess, "Popen", start)
    return processes


def test_a_judge_that_is_stopped_or_killed_leaves_nothing(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    answers: list[WindowMetrics | str] = []
    begun = threading.Event()
    judging = Judge(Policy(), lambda _, judged: (answers.append(judged), begun.set()))
    judging.submit(tmp_path)
    while not started:
        pass
    started[0].kill()
    assert begun.wait(30)
    judging.submit(tmp_path)  # another process takes it
    judging.submit(tmp_path)
    while len(started) < 2:
        pass

    judging.stop()

    assert answers == ["the process that reads windows died"] * 2
    assert judging.idle
    assert list(tmp_path.iterdir()) == []
    for process in started:
        assert process.returncode == -9
        assert process.stdout is not None
        assert process.stdout.closed


def test_a_report_without_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, _: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        keep_report(tmp_path, "{}")
    assert list(tmp_path.iterdir()) == []

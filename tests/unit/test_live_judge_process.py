"""What a process that judges windows leaves behind when it is stopped or the disk is full."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from fp8verify.record.live import judge_process
from fp8verify.record.live.judge import draft_of, write_report
from fp8verify.record.live.judge_process import JudgeProcess
from fp8verify.verdict.policy import Policy


def test_a_judge_that_is_stopped_leaves_no_half_report_and_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands for a judge that is stopped while it writes.
    writes = "import sys, time; sys.stdin.readline(); time.sleep(600)"
    started: list[subprocess.Popen[str]] = []

    def start(_: list[str], **options: object) -> subprocess.Popen[str]:
        started.append(Popen([sys.executable, "-c", writes], **options))  # type: ignore[call-overload]
        return started[0]

    Popen = subprocess.Popen  # noqa: N806 - the class itself
    monkeypatch.setattr(judge_process.subprocess, "Popen", start)
    judge = JudgeProcess(Policy())
    judge.submit(tmp_path)
    draft_of(tmp_path, started[0].pid).write_text("{")

    judge.stop()

    assert list(tmp_path.iterdir()) == []
    assert started[0].stdout is not None
    assert started[0].stdout.closed


def test_a_report_without_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, _: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, "{}")
    assert list(tmp_path.iterdir()) == []

"""Follow the windows of a run that goes on: judge each when all ranks are done with it."""

from __future__ import annotations

import time
from pathlib import Path

from fp8verify.record.live.closed import STRAGGLERS_S, is_closed
from fp8verify.record.live.history import History
from fp8verify.record.live.judge_process import JudgeProcess
from fp8verify.record.settings import RankSelection
from fp8verify.verdict.policy import Policy

LIVE = "live"


class Follower:
    """Looks into the folder `live` of a capture, and lets a history take what is judged.

    Args:
        capture: the capture of the run.
        ranks: those that record.
        policy: what a verdict asks for.
        history: takes each window.
        log: the log of the run, if there is one.
    """

    def __init__(
        self,
        capture: Path,
        ranks: RankSelection,
        policy: Policy,
        history: History,
        log: Path | None = None,
    ) -> None:
        self._live = capture / LIVE
        self._ranks = ranks
        self._log = log
        self._judge = JudgeProcess(policy, history.take)
        self._seen: dict[str, float] = {}
        self._submitted: set[str] = set()

    def poll(self, *, over: bool = False) -> None:
        """Submit the windows that are closed; if the run is over, all that there are."""
        folders = sorted(self._live.iterdir()) if self._live.is_dir() else []
        names = {folder.name for folder in folders}
        self._submitted &= names  # what is judged is moved or removed
        for folder in folders:
            if folder.name not in self._submitted and (over or self._is_due(folder)):
                self._submitted.add(folder.name)
                self._seen.pop(folder.name, None)
                log = self._log if self._log is not None and self._log.is_file() else None
                self._judge.submit(folder, log)

    def finish(self) -> None:
        """Judge what is left, and wait for all."""
        self.poll(over=True)
        self._judge.wait()

    def _is_due(self, folder: Path) -> bool:
        if is_closed(folder, self._ranks):
            return True
        if not any(folder.glob("*.closed")):
            return False
        return time.monotonic() - self._seen.setdefault(folder.name, time.monotonic()) > (
            STRAGGLERS_S
        )

"""The windows of a run that is watched: each is judged once, and the run has the worst verdict."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fp8verify.record.live.judge_process import Judged, JudgeProcess
from fp8verify.record.live.metrics import WindowMetrics
from fp8verify.record.live.sinks import Sink
from fp8verify.record.live.status import STRAGGLERS_S, is_closed
from fp8verify.record.settings import RankSelection
from fp8verify.report.model import Verdict
from fp8verify.verdict.policy import Policy

LIVE = "live"
KEPT = "kept"
MAX_KEPT = 20  # of a run whose verdict goes to and fro
# From the best to the worst: exit code 1 is worse than 3.
GRAVITY = (
    Verdict.ACTIVE,
    Verdict.PARTIAL,
    Verdict.INCONCLUSIVE,
    Verdict.INACTIVE,
    Verdict.EMULATED,
    Verdict.CONTRADICTED,
)


class History:
    """Takes the windows of a run in order.

    Args:
        capture: the capture of the run; windows whose verdict changed move to its folder `kept`.
        sinks: get each line.
        on_change: called with the verdict before, None at first, and the line.

    Attributes:
        worst: the capture of the window with the worst verdict, None without any.
        counts: windows by verdict.
        last: the last line.
        errors: what went wrong in sinks and in `on_change`, once each.
    """

    def __init__(
        self,
        capture: Path,
        sinks: Sequence[Sink],
        on_change: Callable[[str | None, WindowMetrics], None] | None = None,
    ) -> None:
        self.worst: Path | None = None
        self.counts: Counter[str] = Counter()
        self.last: WindowMetrics | None = None
        self.errors: list[str] = []
        self._capture = capture
        self._sinks = sinks
        self._on_change = on_change or (lambda *_: None)
        self._gravest = -1
        self._kept = 0

    def take(self, judged: Judged) -> None:
        """Take the next window."""
        metrics = judged.metrics or _metrics_of_failure(judged)
        before = None if self.last is None else str(self.last["verdict"])
        self.last = metrics
        self.counts[metrics["verdict"]] += 1
        gravity = GRAVITY.index(Verdict(metrics["verdict"]))
        is_worse, changed = gravity > self._gravest, before != metrics["verdict"]
        if is_worse or (changed and self._kept < MAX_KEPT):
            self._kept += 1
            kept = self._keep(judged.folder)
            if is_worse:
                self._gravest, self.worst = gravity, kept
        else:
            shutil.rmtree(judged.folder, ignore_errors=True)
        for sink in self._sinks:
            self._guarded(type(sink).__name__, partial(sink.write, metrics))
        if changed:
            self._guarded("--on-change", lambda: self._on_change(before, metrics))

    def close(self) -> None:
        """Close the sinks."""
        for sink in self._sinks:
            self._guarded(type(sink).__name__, sink.close)

    def _keep(self, folder: Path) -> Path:
        target = self._capture / KEPT / folder.name
        with suppress(OSError):
            target.parent.mkdir(mode=0o700, exist_ok=True)
            folder.rename(target)
            return target
        return folder

    def _guarded(self, what: str, call: Callable[[], object]) -> None:
        """Call what is not ours: its failure ends neither the training nor the watch."""
        try:
            call()
        except Exception as error:
            said = f"{what}: {type(error).__name__}: {error}"[:300]
            if said not in self.errors:
                self.errors.append(said)


def _metrics_of_failure(judged: Judged) -> WindowMetrics:
    number = judged.folder.name.rpartition("-")[2]
    return {
        "step": int(number) if number.isdecimal() else None,
        "verdict": Verdict.INCONCLUSIVE.value,
        "reason": f"the window could not be judged: {judged.error}",
        "exit_code": 3,
        "findings": [],
    }


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

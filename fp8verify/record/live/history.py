"""What a whole run was: the worst verdict of its windows, and which windows are kept."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fp8verify.record.live.judge_process import Judged
from fp8verify.record.live.line import Line
from fp8verify.record.live.sinks import Sink
from fp8verify.report.model import Verdict

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
        on_change: Callable[[str | None, Line], None] | None = None,
    ) -> None:
        self.worst: Path | None = None
        self.counts: Counter[str] = Counter()
        self.last: Line | None = None
        self.errors: list[str] = []
        self._capture = capture
        self._sinks = sinks
        self._on_change = on_change or (lambda *_: None)
        self._gravest = -1
        self._kept = 0

    def take(self, judged: Judged) -> None:
        """Take the next window."""
        line = judged.line or _line_of_failure(judged)
        before = None if self.last is None else str(self.last["verdict"])
        self.last = line
        self.counts[line["verdict"]] += 1
        gravity = GRAVITY.index(Verdict(line["verdict"]))
        is_worse, changed = gravity > self._gravest, before != line["verdict"]
        if is_worse or (changed and self._kept < MAX_KEPT):
            self._kept += 1
            kept = self._keep(judged.folder)
            if is_worse:
                self._gravest, self.worst = gravity, kept
        else:
            shutil.rmtree(judged.folder, ignore_errors=True)
        for sink in self._sinks:
            self._guarded(type(sink).__name__, partial(sink.write, line))
        if changed:
            self._guarded("--on-change", lambda: self._on_change(before, line))

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


def _line_of_failure(judged: Judged) -> Line:
    number = judged.folder.name.rpartition("-")[2]
    return {
        "step": int(number) if number.isdecimal() else None,
        "verdict": Verdict.INCONCLUSIVE.value,
        "reason": f"the window could not be judged: {judged.error}",
        "exit_code": 3,
        "findings": [],
    }

"""The windows of a run that goes on: which are complete, and what their verdicts amount to."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fp8verify.capture.files import find_metas, read_meta
from fp8verify.capture.schema import RankMeta
from fp8verify.errors import InputError
from fp8verify.record.judge import Judged
from fp8verify.record.settings import RankSelection
from fp8verify.record.window_metrics import Sink, WindowMetrics
from fp8verify.terms import Verdict

STRAGGLERS_S = 60.0  # how long the other ranks may take to write the traces of a window
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
    """Takes the windows of a run in order; the run has the worst verdict.

    Args:
        capture: the capture of the run; windows whose verdict changed move to its folder `kept`.
        sinks: get the metrics of each window.
        on_change: called with the verdict before, None at first, and the metrics.

    Attributes:
        worst: the capture of the window with the worst verdict, None without any.
        counts: windows by verdict.
        last: the last metrics.
        errors: what went wrong in sinks and in `on_change`, once each.
    """

    def __init__(
        self,
        capture: Path,
        sinks: Sequence[Sink],
        on_change: Callable[[str | None, WindowMetrics], object] | None = None,
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
        number = judged.folder.name.rpartition("-")[2]
        metrics = judged.metrics or {
            "step": int(number) if number.isdecimal() else None,
            "verdict": Verdict.INCONCLUSIVE.value,
            "reason": f"the window could not be judged: {judged.error}",
            "exit_code": 3,
            "findings": [],
        }
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
            self._guarded("--on-change", partial(self._on_change, before, metrics))

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
        """Call what is not ours: its failure ends neither the script nor the watch."""
        try:
            call()
        except Exception as error:
            said = f"{what}: {type(error).__name__}: {error}"[:300]
            if said not in self.errors:
                self.errors.append(said)


def is_closed(folder: Path, ranks: RankSelection) -> bool:
    """Whether all requested ranks are done with the one window of a folder in `live`.

    A rank that takes a minute longer than the first one is not waited for.
    """
    closed = [path.stat().st_mtime for path in folder.glob("*.closed")]
    if not closed:
        return False
    wanted = len(_wanted_metas(folder, ranks))
    return len(closed) >= wanted or time.time() - min(closed) > STRAGGLERS_S


def progress(capture: Path, ranks: RankSelection, count: int) -> tuple[int, bool]:
    """Return how many windows left a trace on every requested rank, and whether none is to come.

    Args:
        capture: the capture of the run.
        ranks: those that record.
        count: how many windows each of them records.
    """
    metas = _wanted_metas(capture, ranks)
    known = [meta for meta in metas if meta is not None]
    if not known or len(known) < len(metas):
        return 0, False
    closed = min(sum(w.trace is not None for w in meta.windows) for meta in known)
    windows = [window for meta in known for window in meta.windows]
    to_come = any(w.state in ("never", "cut") and w.trace is None for w in windows)
    return closed, not to_come and all(len(meta.windows) >= count for meta in known)


def _wanted_metas(capture: Path, ranks: RankSelection) -> list[RankMeta | None]:
    """Return the records of the requested ranks, None for one that is not there yet."""
    metas = {meta.rank: meta for meta in metas_of(capture)}
    size = max((meta.world_size for meta in metas.values()), default=1)
    return [metas.get(rank) for rank in range(size) if ranks.includes(rank, size)]


def metas_of(capture: Path) -> list[RankMeta]:
    """Return the records of the ranks that have one."""
    found = []
    for path in find_metas(capture):
        with suppress(InputError):  # claimed, and not written yet
            found.append(read_meta(path))
    return found

"""Which windows of a capture that is being made are complete, and which wait for a verdict."""

from __future__ import annotations

from pathlib import Path

from fp8verify.capture.files import find_metas, read_meta
from fp8verify.capture.schema import RankMeta, WindowRecord
from fp8verify.errors import InputError
from fp8verify.record.settings import RankSelection

STRAGGLERS_S = 60.0  # how long the other ranks may take to write the traces of a window
# As `fp8verify.capture.schema.WindowRecord` has them.
NEVER, CUT, SCRIPT = "never", "cut", "script"


def closed_windows(capture: Path, ranks: RankSelection) -> tuple[int, int]:
    """Return how many windows left a trace: on the rank that is ahead, and on every requested rank.

    A rank without a record has none yet.
    """
    counts = [0 if meta is None else _closed(meta) for meta in _wanted_metas(capture, ranks)]
    return max(counts, default=0), min(counts, default=0)


def all_windows_done(capture: Path, ranks: RankSelection, count: int) -> bool:
    """Whether every requested rank is done with all of its `count` windows."""
    metas = _wanted_metas(capture, ranks)
    return bool(metas) and all(meta is not None and _is_done(meta, count) for meta in metas)


def steps_seen(capture: Path) -> int:
    """Return how many steps the rank that got farthest has counted."""
    return max((meta.steps_seen for meta in _metas(capture)), default=0)


def _wanted_metas(capture: Path, ranks: RankSelection) -> list[RankMeta | None]:
    """Return the records of the requested ranks, None for one that is not there yet."""
    metas = {meta.rank: meta for meta in _metas(capture)}
    size = max((meta.world_size for meta in metas.values()), default=1)
    return [metas.get(rank) for rank in range(size) if ranks.includes(rank, size)]


def _metas(capture: Path) -> list[RankMeta]:
    found = map(_read, find_metas(capture))
    return [meta for meta in found if meta is not None]


def _read(path: Path) -> RankMeta | None:
    try:
        return read_meta(path)
    except InputError:  # claimed, and not written yet
        return None


def _closed(meta: RankMeta) -> int:
    return sum(map(_has_trace, meta.windows))


def _is_done(meta: RankMeta, count: int) -> bool:
    """Whether a rank opens none any more: those of the script's own profiler are not counted."""
    asked = [window for window in meta.windows if window.profiler != SCRIPT]
    return len(asked) >= count and not any(
        window.state in (NEVER, CUT) and window.trace is None for window in asked
    )


def _has_trace(window: WindowRecord) -> bool:
    return window.trace is not None


def is_closed(folder: Path, ranks: RankSelection) -> bool:
    """Whether every requested rank is done with the one window of a folder in `live`."""
    closed = sum(1 for _ in folder.glob("*.closed"))
    size = max((meta.world_size for meta in _metas(folder)), default=1)
    return closed >= max(1, sum(ranks.includes(rank, size) for rank in range(size)))


class PendingWindows:
    """Counts the windows of a capture that were judged.

    Attributes:
        judged: how many were.
    """

    def __init__(self, capture: Path, ranks: RankSelection) -> None:
        self.judged = 0
        self._capture, self._ranks = capture, ranks
        self._waited_s = 0.0

    def is_due(self, passed_s: float) -> bool:
        """Whether there is more to judge, which then counts as judged.

        Args:
            passed_s: seconds since this was asked before.
        """
        some, every = closed_windows(self._capture, self._ranks)
        self._waited_s = self._waited_s + passed_s if some > self.judged else 0.0
        is_late = self._waited_s > STRAGGLERS_S
        if every <= self.judged and not is_late:
            return False
        self.judged, self._waited_s = max(every, some if is_late else 0), 0.0
        return True

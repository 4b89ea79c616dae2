"""How many windows of a capture that is being made are over."""

from __future__ import annotations

from pathlib import Path

from fp8verify.capture.files import find_metas, read_meta
from fp8verify.capture.schema import RankMeta, WindowRecord
from fp8verify.errors import InputError
from fp8verify.runner.settings import RankSelection


def closed_windows(capture: Path, ranks: RankSelection) -> tuple[int, int]:
    """Return how many windows left a trace: on the rank that is ahead, and on every rank asked for.

    A rank of which there is no record yet has none.
    """
    metas = {meta.rank: meta for meta in _metas(capture)}
    size = max((meta.world_size for meta in metas.values()), default=1)
    wanted = [rank for rank in range(size) if is_wanted(rank, ranks)]
    counts = [_closed(metas[rank]) if rank in metas else 0 for rank in wanted]
    return max(counts, default=0), min(counts, default=0)


def steps_seen(capture: Path) -> int:
    """Return how many steps the rank that got farthest has counted."""
    return max((meta.steps_seen for meta in _metas(capture)), default=0)


def is_wanted(rank: int, ranks: RankSelection) -> bool:
    """Whether a rank is among those to record."""
    return rank in ranks.only or bool(ranks.every and rank % ranks.every == 0)


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


def _has_trace(window: WindowRecord) -> bool:
    return window.trace is not None


def is_closed(folder: Path, ranks: RankSelection) -> bool:
    """Whether every rank asked for is done with the one window of a folder in `live`."""
    closed = sum(1 for _ in folder.glob("*.closed"))
    size = max((meta.world_size for meta in _metas(folder)), default=1)
    return closed >= max(1, sum(is_wanted(rank, ranks) for rank in range(size)))

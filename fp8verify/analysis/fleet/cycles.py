"""Files of one process: a profiler that records in cycles writes one for each window.

torch.profiler's schedule with `repeat`, or tensorboard_trace_handler, leaves a file a cycle. Ranks
of one job work at the same time, the windows of one process one after another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from fp8verify.text import lazy_pattern

if TYPE_CHECKING:
    from fp8verify.analysis.rank import RankEvidence

# tensorboard_trace_handler's names: host_pid.time.pt.trace.json (torch/profiler/profiler.py, 2.11).
_WORKER = lazy_pattern(r"(?:^|/)(?P<worker>[^/]+)\.\d{10,}(?:\.\w+)*?\.pt\.trace\.json(?:\.\w+)?$")


def join_cycles(ranks: Iterable[RankEvidence]) -> list[RankEvidence]:
    """Join what is of one rank and process, and return all by rank.

    Ranks that are only a place among the files are numbered anew where some of them are joined.
    """
    from fp8verify.analysis.merge_windows import merge_windows

    known: list[RankEvidence] = []
    guessed: list[RankEvidence] = []
    for members in _alike(ranks):
        windows = sorted(members, key=_begin)
        joined = [merge_windows(windows)] if _one_after_another(windows) else windows
        for evidence in joined:
            (guessed if evidence.guessed else known).append(evidence)
    return sorted([*known, *_numbered(guessed, known)], key=lambda found: found.rank or 0)


def _alike(ranks: Iterable[RankEvidence]) -> Iterator[list[RankEvidence]]:
    """Yield the evidence by rank and process; what may be of any process stays alone."""
    groups: dict[Hashable, list[RankEvidence]] = defaultdict(list)
    for place, evidence in enumerate(ranks):
        rank = None if evidence.guessed else evidence.rank
        alone = evidence.process is None or evidence.bounds is None
        key: Hashable = (rank, evidence.process, _worker(evidence))
        groups[place if alone else key].append(evidence)
    return iter(groups.values())


def _worker(evidence: RankEvidence) -> str | None:
    found = _WORKER.search(evidence.source)
    return found["worker"] if found else None


def _begin(evidence: RankEvidence) -> int:
    return evidence.bounds[0] if evidence.bounds is not None else 0


def _one_after_another(windows: list[RankEvidence]) -> bool:
    bounds = [evidence.bounds for evidence in windows if evidence.bounds is not None]
    return all(before[1] <= after[0] for before, after in pairwise(bounds))


def _numbered(guessed: list[RankEvidence], known: list[RankEvidence]) -> Iterator[RankEvidence]:
    """Give ranks of unknown number the free ones, in the order of their places."""
    taken = {evidence.rank for evidence in known}
    free = 0
    for evidence in sorted(guessed, key=lambda found: found.rank or 0):
        while free in taken:
            free += 1
        yield evidence._replace(rank=free)
        free += 1

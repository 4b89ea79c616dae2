"""Tell the ranks of a job from the process that only starts them.

A profiler that is asked from outside (Kineto's daemon) records every process of a job, among them
torchrun's own, which runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8verify.analysis.rank import RankEvidence


def without_launchers(
    ranks: Iterable[RankEvidence],
) -> tuple[list[RankEvidence], tuple[str, ...]]:
    """Leave out what is of no rank, and say so; where there is nothing else it stays.

    A rank says its number, runs kernels or operators, or its trace is damaged.
    """
    found = list(ranks)
    kept = [evidence for evidence in found if not _runs_nothing(evidence)]
    if not kept:
        return found, ()
    notes = (
        f"{evidence.source} was left out of the ranks: it holds no kernels, no operators and no "
        "rank, like the trace of torchrun's own process"
        for evidence in found
        if _runs_nothing(evidence)
    )
    return kept, tuple(notes)


def _runs_nothing(evidence: RankEvidence) -> bool:
    ran = evidence.health.kernels or evidence.copies or evidence.timeline.steps
    is_whole = evidence.health.complete and evidence.unreadable is None
    return evidence.guessed and evidence.process is None and is_whole and not ran

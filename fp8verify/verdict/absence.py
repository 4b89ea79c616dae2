"""Why a rank shows no GPU kernel: told apart, since each asks for another next step."""

from __future__ import annotations

from fp8verify.analysis.rank import RankEvidence


def no_kernels_because(rank: RankEvidence) -> str:
    """Return what keeps a rank without kernels from being judged."""
    if LOG_ALONE in rank.health.notes:
        return "only a log was given, and it shows no kernels"
    if rank.health.truncated:
        return "the trace is cut off before its first GPU kernel"
    no_gpu = ", torch saw no GPU" if rank.saw_no_gpu else ""
    if rank.health.events:
        return f"no GPU kernels in the trace{no_gpu}"
    if is_empty(rank):
        return "the trace holds no events"
    if rank.health.skipped_events:
        return "no event of the trace can be read"
    return f"no trace was made{no_gpu}"


def is_empty(rank: RankEvidence) -> bool:
    """Whether there is a trace, whole and without a single event."""
    return not rank.health.events and EMPTY in rank.health.notes


LOG_ALONE = "a log, and no trace"
EMPTY = "its list of events is empty"

"""What the evidence of a rank cannot decide, whatever share is asked for."""

from __future__ import annotations

from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.ranks import missed_window
from fp8verify.verdict.absence import no_kernels_because
from fp8verify.verdict.verdict import NEGLIGIBLE

# Kernels that nobody recognises may hide a training in FP8 from this share of all that may be
# GEMMs: custom norms, losses and rotations take less beside the GEMMs of a model.
MANY_OPAQUE = 0.1


def undecidable(rank: RankEvidence) -> str | None:
    """Say why the kernels cannot decide, or None where they can."""
    if rank.unreadable is not None:
        return f"its trace cannot be read ({rank.unreadable})"
    if not rank.health.kernels:
        window = missed_window(rank.meta)
        if window is not None:
            return f"{window.reason}; the window {window.name} left no trace"
        return no_kernels_because(rank)
    if not rank.survey.linear:
        return "no matrix multiplication ran in the window"
    return _untimed(rank) if rank.ran_low else _hidden(rank)


def _untimed(rank: RankEvidence) -> str | None:
    """Say that GEMMs have no times, where a share of their time would depend on those."""
    rows = [row for row in rank.survey.linear if not row.kind.classification.split_k]
    total, untimed = sum(row.calls for row in rows), sum(row.untimed for row in rows)
    mixed = not all(row.precision.is_low for row in rows)
    if untimed == total or (mixed and untimed > NEGLIGIBLE * total):
        return f"the trace holds no possible duration of {untimed} of {total} GEMM kernels"
    return None


def _hidden(rank: RankEvidence) -> str | None:
    """Say where FP8 may have run although no GEMM shows it."""
    if not rank.health.complete:
        return "the trace is not whole and what there is of it shows no FP8"
    if not rank.has_fp8_units:
        return None
    unknown = unknown_share(rank)
    if unknown > NEGLIGIBLE:
        return f"{unknown:.1%} of GEMM time ran in kernels whose precision is unknown"
    opaque = opaque_share(rank)
    if opaque >= MANY_OPAQUE:
        return (
            f"no GEMM that is known ran in FP8, and {opaque:.1%} of the time that GEMMs may have "
            "taken ran in kernels that nobody recognises"
        )
    return None


def unknown_share(rank: RankEvidence) -> float:
    """Share of the time of layers' GEMMs that may have run in any precision."""
    upcast = sum(row.time_ns for row in rank.upcast)
    linear = rank.linear
    unknown = linear.unknown_share_of_time
    return max(0.0, unknown - upcast / linear.total_ns) if linear.total_ns else 0.0


def opaque_share(rank: RankEvidence) -> float:
    """Time of kernels that nobody recognises over theirs and that of the layers' GEMMs."""
    opaque = sum(total.time_ns for total in rank.unrecognized)
    whole = opaque + rank.linear.total_ns
    return opaque / whole if whole else 0.0

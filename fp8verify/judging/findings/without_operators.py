"""Findings on traces without operators: what kernel names alone leave open."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.evidence.facts import RankFacts
from fp8verify.evidence.promises import Promises
from fp8verify.evidence.rank import RankEvidence
from fp8verify.evidence.without_operators import lacks_operators, legs_are_proved, unplaced_ns
from fp8verify.judging.policy import USUAL_SHARE
from fp8verify.model import Finding, Severity, Verdict

_HINT = (
    "Record operators too: fp8verify run does, with --profiler nsys as well; nsys profile with "
    "--pytorch=autograd-shapes-nvtx, a script under torch.autograd.profiler.emit_nvtx(), and "
    "torch.profiler with ProfilerActivity.CPU."
)


def operators_missing(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """What would need operators to be decided; nothing where the kernels prove it all the same."""
    rank = facts.rank
    if not lacks_operators(rank) or not rank.survey.linear:
        return
    open_question = _undecided(rank, promises)
    if open_question is not None:
        yield _finding(open_question, Verdict.INCONCLUSIVE)
    elif (
        unplaced_ns(rank, promises) and (rank.linear.low_precision_share_of_time or 0) < USUAL_SHARE
    ):
        high = rank.main_high.value.upper()
        yield _finding(
            f"without operators, GEMMs in {high} may be the optimizer's or attention's", None
        )


def _undecided(rank: RankEvidence, promises: Promises) -> str | None:
    """Say what is open whatever share is asked for."""
    share = rank.linear.low_precision_share_of_time or 0
    ran = f"{rank.linear.name} GEMMs took {share:.1%} of GEMM time, but without operators"
    if not rank.trains:
        hidden = rank.ran_low or (promises.any and rank.has_fp8_units)
        nothing = f"{ran} nothing shows that a backward pass ran in the window"
        return nothing if hidden else None
    if rank.ran_low and not legs_are_proved(rank, promises):
        count = sum(rank.linear.kernels.values()) - rank.linear.low_kernels
        high = rank.main_high.value.upper()
        return f"{ran} it is open whether the {count} others ({high}) are a leg of the same layers"
    return None


def _finding(message: str, verdict: Verdict | None) -> Finding:
    return Finding(
        code="no-operators",
        severity=Severity.WARNING,
        message=message,
        hint=_HINT,
        verdict=verdict,
    )

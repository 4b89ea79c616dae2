"""Findings on traces without operators: what kernel names alone leave open."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises, lacks_operators, legs_are_proved, unplaced_ns
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model import Finding
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.policy import USUAL_SHARE


def operators_missing(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """A trace without operators, whose kernels do not prove which pass or layer they are of."""
    rank = facts.rank
    if not rank.survey.linear or not lacks_operators(rank):
        return
    undecided = _undecided(rank, promises)
    message = undecided or _unplaced(rank, promises)
    if message is not None:
        yield finding("no-operators", "open" if undecided is not None else "", what=message)


def _undecided(rank: RankEvidence, promises: Promises) -> str | None:
    """Say what is open whatever share is asked for."""
    share = rank.linear.low_precision_share_of_time or 0
    ran = f"{rank.linear.name} GEMMs took {share:.1%} of GEMM time, but without operators"
    if not rank.trains:
        hidden = rank.ran_low or (promises.any and rank.has_fp8_units)
        nothing = f"{ran} nothing shows that a backward pass ran in the window"
        return nothing if hidden else None
    if rank.ran_low and not legs_are_proved(rank, promises):
        others = rank.linear.kernels.total() - rank.linear.low_kernels
        high = rank.main_high.value.upper()
        return f"{ran} it is open whether the {others} others ({high}) are a leg of the same layers"
    return None


def _unplaced(rank: RankEvidence, promises: Promises) -> str | None:
    """Say what may be no layer's, where that keeps the usual share from being met."""
    if not unplaced_ns(rank, promises):
        return None
    if (rank.linear.low_precision_share_of_time or 0) >= USUAL_SHARE:
        return None
    high = rank.main_high.value.upper()
    return f"without operators, GEMMs in {high} may be the optimizer's or attention's"

"""How a rank stands before a share is asked for: what its facts and findings settle."""

from __future__ import annotations

from collections.abc import Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.totals import gemm_totals
from fp8verify.analysis.without_operators import unplaced_ns
from fp8verify.report.model import Finding, Verdict
from fp8verify.verdict.causes import cause_without_fp8, high_precision_cause
from fp8verify.verdict.inconclusive import undecidable
from fp8verify.verdict.verdict import Opinion, RankSummary


def summarize_rank(
    facts: RankFacts, findings: Sequence[Finding], promises: Promises
) -> RankSummary:
    """Say how a rank stands.

    Args:
        facts: of the rank.
        findings: on the rank, in the order of their rules.
        promises: what the log and the model promised.
    """
    rank = facts.rank
    linear = rank.linear
    return RankSummary(
        label=rank.label,
        settled=_settled(rank, findings, promises),
        time=linear.time_ns,
        kernels=linear.kernels,
        attention=gemm_totals(rank.survey.attention).time_ns,
        untrained=gemm_totals(rank.survey.untrained).time_ns,
        opaque=sum(total.time_ns for total in rank.unrecognized),
        unplaced=unplaced_ns(rank, promises),
        steps=len(rank.steps),
        steps_with_gemms=len({row.step for row in rank.survey.linear if row.step >= 0}),
        cut_off=rank.health.truncated,
        shortfall=_message(findings, Verdict.PARTIAL),
        rest=high_precision_cause(facts, promises),
        expected=facts.expected,
    )


def _settled(rank: RankEvidence, findings: Sequence[Finding], promises: Promises) -> Opinion | None:
    reason = undecidable(rank) or _message(findings, Verdict.INCONCLUSIVE)
    if reason is not None:
        return Opinion(Verdict.INCONCLUSIVE, reason)
    return None if rank.ran_low else _without_fp8(rank, findings, promises)


def _message(findings: Sequence[Finding], verdict: Verdict) -> str | None:
    """Return what the first finding says that makes its rank this."""
    return next((finding.message for finding in findings if finding.verdict is verdict), None)


def _without_fp8(rank: RankEvidence, findings: Sequence[Finding], promises: Promises) -> Opinion:
    """Judge a rank that ran GEMMs and none in low precision, by what its findings make of it."""
    made = {finding.verdict for finding in findings}
    ran, (_, cause) = _ran(rank), cause_without_fp8(rank, promises)
    because = f": {cause}" if cause and rank.has_fp8_units else ""
    if Verdict.EMULATED in made:
        units = next((found.message for found in findings if found.code == "no-fp8-units"), None)
        if units is not None and rank.upcast:
            return Opinion(Verdict.EMULATED, units)
        return Opinion(Verdict.EMULATED, f"{_emulation(promises)} {ran}")
    if Verdict.CONTRADICTED in made:
        return Opinion(Verdict.CONTRADICTED, f"{_promise(promises)}, but {ran}{because}")
    if promises.fallback is not None:
        return Opinion(Verdict.INACTIVE, f"{ran}, as the log says: “{promises.fallback.text}”")
    return Opinion(Verdict.INACTIVE, f"{ran}, and nothing claimed FP8{because}")


def _emulation(promises: Promises) -> str:
    if not promises.emulated:
        return "tensors were cast as for FP8, but"
    count, name = len(promises.emulated), promises.emulated[0].class_name
    return f"the model's {count} {name} modules emulate FP8, and"


def _promise(promises: Promises) -> str:
    claim = promises.claim
    if claim is not None:
        if not claim.line:
            return f"the script asks {claim.framework} for {promises.name} ({claim.text})"
        return f"the log claims {promises.name} ({claim.place}: “{claim.text}”)"
    count, name = len(promises.converted), promises.converted[0].class_name
    return f"the model has {count} {name} modules set for {promises.name}"


def _ran(rank: RankEvidence) -> str:
    """Say in what the GEMMs of a rank without FP8 ran."""
    linear, main = rank.linear, rank.main_precision()
    total, same, name = linear.kernels.total(), linear.kernels[main], main.value.upper()
    of = " of linear layers" if rank.survey.attention else ""
    kernels = f"{total} GEMM kernels{' of layers that train' if rank.survey.untrained else of}"
    if same == total:
        return f"all {kernels} ran in {name}"
    return f"none of the {kernels} ran in FP8 ({same} in {name})"

"""The judge: findings and verdict, once for a run, and again for another share asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.analysis.expected import Expected
from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding, Precision, RankReport, Report, Severity, Verdict
from fp8verify.text import label_of_rank
from fp8verify.verdict.findings import join_findings, rank_findings
from fp8verify.verdict.findings.ranks import other_runs, ranks_that_can_lack
from fp8verify.verdict.policy import Policy
from fp8verify.verdict.rank_facts import summarize_rank
from fp8verify.verdict.run_verdict import judge_run
from fp8verify.verdict.verdict import (
    WITHOUT_FP8,
    Opinion,
    RankJudgement,
    RankSummary,
    judge_rank,
    outcome,
)

_FOREIGN = Opinion(Verdict.INCONCLUSIVE, "its file is of another run than the other ranks'")


class Judgement(NamedTuple):
    """The judgement of a run: its verdict, those of its ranks in their order, and the findings."""

    verdict: Verdict
    reason: str
    exit_code: int
    fails: bool
    ranks: tuple[RankJudgement, ...]
    summaries: tuple[RankSummary, ...]
    findings: tuple[Finding, ...]


def judge(ranks: Sequence[RankFacts], promises: Promises, policy: Policy) -> Judgement:
    """Judge a run by the facts of its ranks and by what was promised for all of them."""
    found = [rank_findings(facts, promises) for facts in ranks]
    summaries = tuple(
        summarize_rank(facts, findings, promises)
        for facts, findings in zip(ranks, found, strict=True)
    )
    others = other_runs([facts.rank for facts in ranks])
    summaries = tuple(
        summary._replace(judged=can, settled=_FOREIGN if facts.rank in others else summary.settled)
        for facts, summary, can in zip(ranks, summaries, ranks_that_can_lack(ranks), strict=True)
    )
    judged = tuple(judge_rank(summary, policy) for summary in summaries)
    verdict, reason = judge_run(summaries, judged)
    decided = [_decided(of, summary) for of, summary in zip(found, summaries, strict=True)]
    findings = join_findings(ranks, decided, promises)
    return Judgement(
        verdict,
        reason,
        *outcome(verdict, summaries, findings, policy),
        ranks=judged,
        summaries=summaries,
        findings=findings,
    )


def _decided(findings: Sequence[Finding], summary: RankSummary) -> list[Finding]:
    """Return what may be said of a rank: no finding decides what its verdict leaves open."""
    settled = summary.settled
    if not summary.judged:
        return [found for found in findings if found.verdict not in WITHOUT_FP8]
    if settled is None or settled.verdict is not Verdict.INCONCLUSIVE:
        return list(findings)
    return [
        replace(found, severity=Severity.WARNING, verdict=None)
        if found.verdict is Verdict.PARTIAL and found.severity is Severity.ERROR
        else found
        for found in findings
        if found.verdict not in WITHOUT_FP8
    ]


def rejudge(report: Report, policy: Policy) -> Report:
    """Return the report that `inspect` would have made of the same run under another policy.

    What a baseline added to the findings stays, and still fails the run.
    """
    summaries = list(map(_standing_in, report.ranks))
    judged = [judge_rank(summary, policy) for summary in summaries]
    verdict, reason = judge_run(summaries, judged)
    code, fails = outcome(verdict, summaries, report.findings, policy)
    return replace(
        report,
        verdict=verdict,
        reason=reason,
        exit_code=code,
        fails=fails,
        ranks=tuple(
            replace(rank, verdict=found.verdict, reason=found.reason)
            for rank, found in zip(report.ranks, judged, strict=True)
        ),
    )


def _standing_in(rank: RankReport) -> RankSummary:
    """Read from a finished report how a rank stands."""
    attention, untrained = _nanos(rank.attention_gemm.time_us), _nanos(rank.untrained_gemm.time_us)
    whole, launched = _nanos(rank.gemm.time_us), rank.gemm.kernels
    apart = (rank.attention_gemm.kernels, rank.untrained_gemm.kernels)
    return RankSummary(
        label=label_of_rank(rank.rank, rank.source),
        settled=Opinion(rank.verdict, rank.reason) if rank.settled else None,
        time={p: ns - attention[p] - untrained[p] for p, ns in whole.items()},
        kernels={
            Precision(name): count - sum(kernels[name] for kernels in apart)
            for name, count in launched.items()
        },
        attention=attention,
        untrained=untrained,
        opaque=round(rank.opaque_us * 1000),
        unplaced=round(rank.unplaced_us * 1000),
        steps=len(rank.steps),
        steps_with_gemms=sum(step.trains for step in rank.steps),
        cut_off=rank.health.truncated,
        shortfall=rank.shortfall,
        rest=rank.rest,
        judged=rank.judged,
        expected=None
        if rank.expected is None
        else Expected(
            rank.expected.share_of_flops,
            rank.expected.measured_share_of_flops,
            rank.expected.left_out,
            rank.expected.stated,
        ),
    )


def _nanos(time_us: Mapping[str, float]) -> dict[Precision, int]:
    """Undo the report's µs, which keep every nanosecond."""
    return {Precision(name): round(us * 1000) for name, us in time_us.items()}

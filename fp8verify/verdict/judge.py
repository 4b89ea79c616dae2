"""The judge: what the findings settle, once for a run, and its verdict under any policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.analysis.gemms import GemmRow, micros
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model.parts import ExpectedReport, Finding, Proof, ProofRow
from fp8verify.report.model.report import Report
from fp8verify.terms import Precision, Severity, Verdict
from fp8verify.thresholds import SHOWN_ROWS
from fp8verify.verdict.expected import Promises
from fp8verify.verdict.findings import join_findings, rank_findings
from fp8verify.verdict.findings.parts import Parts, name_value
from fp8verify.verdict.findings.recorded import other_runs
from fp8verify.verdict.findings_table import place_of
from fp8verify.verdict.grid import COORDINATES, VALUE_OF, Cell
from fp8verify.verdict.headline import RankSummary
from fp8verify.verdict.policy import Policy
from fp8verify.verdict.reasons import cause_without_fp8, logged_cause, ran_high, undecidable
from fp8verify.verdict.verdict import WITHOUT_FP8, Opinion, judge_rank, judge_run, outcome

_FOREIGN = Opinion(
    Verdict.INCONCLUSIVE, "its file belongs to another run than those of the other ranks"
)


class Assessment(NamedTuple):
    """What findings make of one rank, whatever share is required: fields of a `RankReport`."""

    verdict: Verdict
    reason: str
    settled: bool
    shortfall: str | None
    rest: str | None
    judged: bool
    cause: str | None
    expected: ExpectedReport | None


class Judgement(NamedTuple):
    """What the evidence of all ranks shows, whatever share is required."""

    ranks: list[Assessment]
    findings: tuple[Finding, ...]
    proof: Proof | None


def assess(ranks: Sequence[RankEvidence], promises: Promises) -> Judgement:
    """Find what the evidence of all ranks shows, and what that settles for each rank."""
    findings = [rank_findings(rank, promises) for rank in ranks]
    others = other_runs(ranks)
    trains = any(rank.trace.backward and rank.ran_low for rank in ranks)
    can = [
        rank not in others
        and (rank.ran_low or undecidable(rank) is None)
        and (rank.trace.backward or not trains)
        for rank in ranks
    ]
    rows = [
        rank.trace.trained if is_compared else []
        for rank, is_compared in zip(ranks, can, strict=True)
    ]
    parts = Parts(ranks, promises, rows)
    of_parts = list(parts.findings())
    for part in of_parts:
        for place in part.places:
            findings[place] = sorted([*findings[place], part.finding], key=place_of)
    accused = parts.accused if any(rank.ran_low for rank in ranks) else range(len(ranks))
    assessed = []
    for place, (rank, of_rank) in enumerate(zip(ranks, findings, strict=True)):
        opinion = _FOREIGN if rank in others else _settled(rank, of_rank, promises)
        short = _decider(of_rank, Verdict.PARTIAL)
        settled = opinion is not None
        opinion = opinion or Opinion(Verdict.INCONCLUSIVE, "", short.code if short else None)
        judged = rank.ran_low or rank in others or place in accused
        assessed.append(
            Assessment(
                verdict=opinion.verdict,
                reason=opinion.reason,
                settled=settled,
                shortfall=short.message if short else None,
                rest=_rest(of_rank, promises) if rank.ran_low else None,
                judged=judged or undecidable(rank) is not None,
                cause=opinion.cause,
                expected=parts.stated.report(parts.grid, place) if can[place] else None,
            )
        )
    decided = [
        parts.unexplained(place, _decided(of_rank, rank))
        for place, (of_rank, rank) in enumerate(zip(findings, assessed, strict=True))
    ]
    return Judgement(assessed, join_findings(ranks, decided, promises), prove(parts, ranks))


def judge(report: Report, policy: Policy) -> Report:
    """Return a report with the verdicts and the exit code that a policy makes of it.

    What a baseline added to the findings stays, and still fails the run.
    """
    summaries = [RankSummary(rank, report.measure) for rank in report.ranks]
    proof = report.proof if len(summaries) == 1 else None
    opinions = [judge_rank(summary, policy, proof) for summary in summaries]
    verdict, reason, cause = judge_run(summaries, opinions, policy)
    return replace(
        report,
        verdict=verdict,
        reason=reason,
        cause=cause,
        **outcome(verdict, summaries, report.findings, policy)._asdict(),
        ranks=tuple(
            replace(rank, verdict=opinion.verdict, reason=opinion.reason, cause=opinion.cause)
            for rank, opinion in zip(report.ranks, opinions, strict=True)
        ),
    )


def _decided(findings: Sequence[Finding], rank: Assessment) -> list[Finding]:
    """Return what may be said of a rank: no finding decides what its verdict leaves open."""
    if not rank.judged:
        return [finding for finding in findings if finding.verdict not in WITHOUT_FP8]
    if not rank.settled or rank.verdict is not Verdict.INCONCLUSIVE:
        return list(findings)
    return [
        replace(finding, severity=Severity.WARNING, verdict=None)
        if finding.verdict is Verdict.PARTIAL and finding.severity is Severity.ERROR
        else finding
        for finding in findings
        if finding.verdict not in WITHOUT_FP8
    ]


def _decider(findings: Sequence[Finding], verdict: Verdict) -> Finding | None:
    """Return the first finding that makes its rank this."""
    return next((finding for finding in findings if finding.verdict is verdict), None)


def _rest(findings: Sequence[Finding], promises: Promises) -> str | None:
    """Say why the share is not all: legs or layers that were left out by design."""
    info = (finding for finding in findings if finding.severity is Severity.INFO)
    by_design = (
        finding.message for finding in info if finding.code in ("leg-not-fp8", "layer-not-fp8")
    )
    return logged_cause(promises) or next(by_design, None)


def _settled(rank: RankEvidence, findings: Sequence[Finding], promises: Promises) -> Opinion | None:
    """Judge a rank that cannot be judged, or that ran no low precision, by its findings."""
    reason = undecidable(rank)
    if reason is not None:
        return Opinion(Verdict.INCONCLUSIVE, reason)
    without = () if rank.ran_low else (Verdict.EMULATED, Verdict.CONTRADICTED)
    for verdict in (Verdict.INCONCLUSIVE, *without):
        decider = _decider(findings, verdict)
        if decider is not None:
            return Opinion(verdict, decider.message, decider.code)
    if rank.ran_low:
        return None
    ran = ran_high(rank)
    if promises.fallback is not None:
        return Opinion(Verdict.INACTIVE, f"{ran}, as the log says ({promises.fallback.place})")
    cause = cause_without_fp8(rank, promises)[1] if rank.has_fp8_units else ""
    because = f": {cause}" if cause else ""
    mention = f" (line {promises.mention.line} mentions it)" if promises.mention else ""
    said = f"{ran}, and no log line or module claims FP8{mention}{because}"
    return Opinion(Verdict.INACTIVE, said)


# ---- the proof: the GEMMs of layers that train along the coordinate that decides


def prove(parts: Parts, ranks: Sequence[RankEvidence]) -> Proof | None:
    """Return the table along what explains most of what is short, else along ranks, steps, legs."""
    cells = parts.grid.cells
    if not cells:
        return None
    names = parts.shortfalls[0].coordinates if parts.shortfalls else ()
    if len(names) in (0, len(COORDINATES)):
        several = (name for name in ("rank", "step") if len({VALUE_OF[name](c) for c in cells}) > 1)
        names = (next(several, "leg"),)
    short = {cell for shortfall in parts.shortfalls for cell in shortfall.cells}
    groups: dict[tuple[Hashable, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[tuple(VALUE_OF[name](cell) for name in names)].append(cell)
    rows = {
        value: _row(
            ", ".join(name_value(ranks, members[0], name) for name in names),
            [row for cell in members for row in parts.grid.rows.get(cell, ())],
            short=not short.isdisjoint(members) if parts.shortfalls else False,
        )
        for value, members in groups.items()
    }
    shown = sorted(rows.values(), key=lambda row: not row.short)[:SHOWN_ROWS]
    return Proof(
        coordinate=", ".join(names),
        rows=tuple(row for row in rows.values() if row in shown),
        left_out=len(rows) - len(shown),
        ranks=tuple(n for place in {c.rank for c in cells} for n in ranks[place].numbers),
    )


def _row(value: str, rows: Sequence[GemmRow], *, short: bool) -> ProofRow:
    low = sum(row.calls for row in rows if row.precision.is_low)
    unknown = sum(row.calls for row in rows if row.precision is Precision.UNKNOWN)
    flops = None if any(row.flops is None for row in rows) else sum(row.flops or 0 for row in rows)
    return ProofRow(
        value=value,
        low=low,
        high=sum(row.calls for row in rows) - low - unknown,
        unknown=unknown,
        time_us=micros(sum(row.time_ns for row in rows)),
        flops=None if flops is None else float(flops),
        short=short,
    )

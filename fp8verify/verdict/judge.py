"""The judge: what the findings settle, once for a run, and its verdict under any policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.analysis.gemms import micros
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.ledger import LedgerReport
from fp8verify.model.report import AnyReport
from fp8verify.model.verdict import (
    CountedGemms,
    ExpectedReport,
    Finding,
    Proof,
    ProofRow,
)
from fp8verify.terms import BACKWARD_LEGS, VAGUE_LEGS, Severity, Verdict
from fp8verify.text import enumerated, listed
from fp8verify.thresholds import SHOWN_ROWS
from fp8verify.verdict import headline
from fp8verify.verdict.coordinates import VALUE_OF, by_value
from fp8verify.verdict.expected import Promises
from fp8verify.verdict.findings import join_findings, rank_findings
from fp8verify.verdict.findings.doubts import Doubts
from fp8verify.verdict.findings.ledger import LedgerFindings
from fp8verify.verdict.findings.recorded import other_runs
from fp8verify.verdict.findings_table import place_of, viewed
from fp8verify.verdict.headline import RankSummary
from fp8verify.verdict.ledger import Cell, Ledger
from fp8verify.verdict.ledger_report import ledger_report
from fp8verify.verdict.measures import Measures
from fp8verify.verdict.policy import EXPECTED, Policy
from fp8verify.verdict.reasons import (
    cause_without_fp8,
    counted_cause,
    logged_cause,
    ran_high,
    undecidable,
)
from fp8verify.verdict.wording import name_value

# Most severe first.
WITHOUT_FP8 = (Verdict.EMULATED, Verdict.CONTRADICTED, Verdict.INACTIVE)
EXIT_CODES: dict[Verdict, int] = {
    Verdict.ACTIVE: 0,
    Verdict.PARTIAL: 0,
    **dict.fromkeys(reversed(WITHOUT_FP8), 1),
    Verdict.INCONCLUSIVE: 3,
}


class Opinion(NamedTuple):
    """A verdict, the sentence that gives its reason, and the code of the finding that says it."""

    verdict: Verdict
    reason: str
    cause: str | None = None


# Legs that a rank which only runs forward does not have.
_TRAINING = frozenset({*BACKWARD_LEGS, *VAGUE_LEGS})
_APART = "other ranks ran other layers, or the traces do not show which"
_FOREIGN = "its file belongs to another run than those of the other ranks"


class Assessment(NamedTuple):
    """What findings make of one rank, whatever share is required: fields of a `RankReport`."""

    verdict: Verdict
    reason: str
    cause: str | None
    settled: bool
    shortfall: str | None
    rest: str | None
    judged: bool
    expected: ExpectedReport | None
    counted: CountedGemms | None
    low_share: float | None
    unknown_share: float


class Judgement(NamedTuple):
    """What the evidence of all ranks shows, whatever share is required."""

    ranks: list[Assessment]
    findings: tuple[Finding, ...]
    proof: Proof | None
    ledger: LedgerReport | None


def assess(ranks: Sequence[RankEvidence], promises: Promises) -> Judgement:
    """Find what the evidence of all ranks shows, and what that settles for each rank."""
    others = other_runs(ranks)
    forward_only = _forward_only(ranks)
    reasons = []
    executions = []
    for rank in ranks:
        reason = _FOREIGN if rank in others else undecidable(rank)
        is_apart = rank in others or rank in forward_only
        is_open = reason is not None and not rank.ran_low
        reasons.append(reason)
        executions.append([] if is_apart or is_open else rank.trace.executions)
    parts = LedgerFindings(ranks, promises, executions)
    judging = _Judging(ranks, promises, parts, forward_only)
    assessed = []
    decided = []
    for place, reason in enumerate(reasons):
        found = judging.findings(place)
        assessment = judging.assess(place, reason, found)
        assessed.append(assessment)
        decided.append(_decided(found, assessment, alone=place in parts.alone))
    return Judgement(
        ranks=assessed,
        findings=join_findings(ranks, decided, promises),
        proof=prove(parts, ranks),
        ledger=ledger_report(parts.lacking, parts.statements, ranks),
    )


class _Judging:
    """What is said of one rank after the other."""

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        promises: Promises,
        parts: LedgerFindings,
        forward_only: Sequence[RankEvidence],
    ) -> None:
        self._ranks = ranks
        self._promises = promises
        self._parts = parts
        self._forward_only = forward_only
        self._measures = Measures(ranks, promises, parts.statements, parts.lacking)
        self._doubts = Doubts(ranks, promises, parts, self._measures)
        self._accused = parts.accused
        if not any(rank.ran_low for rank in ranks if rank not in forward_only):
            self._accused = frozenset(range(len(ranks)))

    def findings(self, place: int) -> list[Finding]:
        """Return all findings on a rank, most severe first."""
        rank = self._ranks[place]
        found = [
            *rank_findings(rank, self._promises),
            *self._parts.findings(place),
            *self._doubts.findings(place),
        ]
        if rank in self._forward_only:
            found = [one for one in found if one.code != "no-backward"]
        return sorted(found, key=place_of)

    def assess(
        self,
        place: int,
        reason: str | None,
        found: Sequence[Finding],
    ) -> Assessment:
        """Return what findings make of a rank.

        Args:
            place: of the rank.
            reason: why its kernels cannot decide, if they cannot.
            found: the findings on it.
        """
        rank = self._ranks[place]
        if reason is None and self._is_due(place):
            reason = f"{ran_high(rank)}, and {_APART}"
        is_judged = rank.ran_low or place in self._accused or reason is not None
        short = _decider(found, Verdict.PARTIAL)
        if reason is not None:
            settled: Opinion | None = Opinion(Verdict.INCONCLUSIVE, reason)
        else:
            settled = _settled(rank, found, self._promises)
        code = None if short is None else short.code
        opinion = settled or Opinion(Verdict.INCONCLUSIVE, "", code)
        shares = self._measures.shares(place)
        return Assessment(
            verdict=opinion.verdict,
            reason=opinion.reason,
            cause=opinion.cause,
            settled=settled is not None,
            shortfall=None if short is None else short.message,
            rest=_rest(found, self._promises) if rank.ran_low else None,
            judged=is_judged and rank not in self._forward_only,
            expected=self._measures.expected(place),
            counted=self._measures.counted(place),
            low_share=shares.least,
            unknown_share=shares.open,
        )

    def _is_due(self, place: int) -> bool:
        """Whether nothing excuses a rank that trains without FP8: log, list, stage, other model."""
        rank = self._ranks[place]
        legs = {row.leg for row in rank.trace.trained}
        if place in self._accused or rank.ran_low or _TRAINING.isdisjoint(legs):
            return False
        ledger = self._parts.ledger
        cells = ledger.of_rank(place)
        widths = _widths(cells)
        others = _widths(ledger.cells.keys() - set(cells))
        if widths and others and widths.isdisjoint(others):
            return False
        is_stated = cells and all(map(self._measures.may_stay_high, cells))
        return self._parts.statements.alike and not is_stated


def _forward_only(ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks that surely train nothing, where others do: workers that generate."""
    if not any(rank.trace.backward for rank in ranks):
        return []
    return [
        rank
        for rank in ranks
        if rank.trace.trained and not (rank.trace.backward or rank.trace.trains)
    ]


def _widths(cells: Iterable[Cell]) -> set[int]:
    """Return how many inputs and outputs layers have, nothing if some of these are not known."""
    layers = {cell.layer for cell in cells}
    sizes = [layer for layer in layers if isinstance(layer, tuple)]
    if len(sizes) == len(layers):
        return {side for size in sizes for side in size}
    return set()


def _decided(
    findings: Sequence[Finding],
    rank: Assessment,
    *,
    alone: bool,
) -> list[Finding]:
    """Return what may be said of a rank: no finding decides what its verdict leaves open.

    That a claim is not met says nothing new of a rank that lacks FP8 alone.
    """
    findings = [x for x in findings if not (alone and viewed(x, "restated"))]
    if rank.judged and not (rank.settled and rank.verdict is Verdict.INCONCLUSIVE):
        return findings
    doubted = (Verdict.PARTIAL, Severity.ERROR) if rank.judged else None
    return [
        replace(x, severity=Severity.WARNING, verdict=None)
        if (x.verdict, x.severity) == doubted
        else x
        for x in findings
        if x.verdict not in WITHOUT_FP8
    ]


def _decider(findings: Sequence[Finding], verdict: Verdict) -> Finding | None:
    """Return the first finding that makes its rank this."""
    return next((finding for finding in findings if finding.verdict is verdict), None)


def _rest(findings: Sequence[Finding], promises: Promises) -> str | None:
    """Say why the share is not all: legs or layers that were left out by design."""
    left = (x for x in findings if viewed(x, "rest"))
    by_design = (x.message for x in left if x.severity is Severity.INFO)
    said = logged_cause(promises) or next(by_design, None)
    return said or counted_cause(promises)


def _settled(
    rank: RankEvidence,
    findings: Sequence[Finding],
    promises: Promises,
) -> Opinion | None:
    """Judge a rank that cannot be judged, or that ran no low precision, by its findings."""
    without = () if rank.ran_low else (Verdict.EMULATED, Verdict.CONTRADICTED)
    for verdict in (Verdict.INCONCLUSIVE, *without):
        decider = _decider(findings, verdict)
        if decider is not None:
            return Opinion(verdict, decider.message, decider.code)
    if rank.ran_low:
        return None
    ran = ran_high(rank)
    if promises.fallback is not None:
        return Opinion(
            Verdict.INACTIVE, f"{ran}, as the log says ({promises.fallback.place})"
        )
    cause = cause_without_fp8(rank, promises)[1] if rank.has_fp8_units else ""
    because = f": {cause}" if cause else ""
    mention = f" (line {promises.mention.line} mentions it)" if promises.mention else ""
    said = f"{ran}, and no log line or module claims FP8{mention}{because}"
    return Opinion(Verdict.INACTIVE, said)


# ---- the proof: the GEMMs of layers that train along the coordinate that decides


def prove(parts: LedgerFindings, ranks: Sequence[RankEvidence]) -> Proof | None:
    """Return the table along what explains most of what is short, else along ranks, steps, legs."""
    cells = parts.ledger.cells
    if not cells:
        return None
    several = (
        name for name in ("rank", "step") if len({VALUE_OF[name](c) for c in cells}) > 1
    )
    if parts.shortfalls:
        names = parts.shortfalls[0].coordinates
    else:
        names = (next(several, "leg"),)
    short = {cell for shortfall in parts.shortfalls for cell in shortfall.cells}
    rows = []
    for members in by_value(cells, names).values():
        value = ", ".join(name_value(ranks, members[0], name) for name in names)
        rows.append(
            _row(parts.ledger, value, members, short=not short.isdisjoint(members))
        )
    shown = sorted(rows, key=lambda row: not row.short)[:SHOWN_ROWS]
    return Proof(
        coordinate=", ".join(names),
        rows=tuple(row for row in rows if row in shown),
        left_out=len(rows) - len(shown),
        ranks=tuple(
            n for place in {c.rank for c in cells} for n in ranks[place].numbers
        ),
    )


def _row(ledger: Ledger, value: str, cells: Sequence[Cell], *, short: bool) -> ProofRow:
    ran = ledger.total(cells)
    time_ns, _ = ledger.times(cells)
    return ProofRow(
        value=value,
        low=round(ran.low),
        high=round(ran.high),
        unknown=round(ran.unknown),
        time_us=micros(time_ns),
        flops=ledger.flops(cells),
        short=short,
    )


# ---- the verdict under a policy


def judge(report: AnyReport, policy: Policy) -> AnyReport:
    """Return a report with the verdicts and the exit code that a policy makes of it.

    What a baseline added to the findings stays, and still fails the run.
    """
    alone = len(report.ranks) == 1
    summaries = [
        RankSummary(rank, report.measure, alone=alone) for rank in report.ranks
    ]
    proof = report.proof if len(summaries) == 1 else None
    opinions = [judge_rank(summary, policy, proof) for summary in summaries]
    ranks = zip(report.ranks, opinions, strict=True)
    judged = replace(
        report,
        **judge_run(summaries, opinions, policy)._asdict(),
        ranks=tuple(replace(rank, **opinion._asdict()) for rank, opinion in ranks),
    )
    return with_exit_code(judged, summaries, policy)


def with_exit_code(
    report: AnyReport,
    summaries: Iterable[RankSummary],
    policy: Policy,
) -> AnyReport:
    """Return a report with the exit code of its verdict and findings under a policy."""
    verdict = report.verdict
    grave = (x for x in report.findings if x.severity is Severity.ERROR)
    errors = list(dict.fromkeys(finding.code for finding in grave))
    share = EXPECTED if policy.expected else policy.min_share
    short = share is not None and any(
        summary.falls_short(policy) for summary in summaries
    )
    code = EXIT_CODES[verdict]
    why = f"the verdict is {verdict.value}"
    if not code:
        asked = share if isinstance(share, str) else f"{share or 0:.0%}"
        reasons = {
            f"{listed(errors, 2)} {'is an error' if len(errors) == 1 else 'are errors'}": errors,
            f"--min-share {asked} is not met": short,
            "--strict does not accept PARTIAL": policy.strict
            and verdict is Verdict.PARTIAL,
        }
        why = next((reason for reason, holds in reasons.items() if holds), "")
        code = int(bool(why))
    fails = code != 0
    if policy.exit_zero and fails:
        code, why = 0, f"--exit-zero; without it {code}: {why}"
    if not why and verdict is Verdict.PARTIAL:
        why = "PARTIAL passes without --strict"
    return replace(report, exit_code=code, fails=fails, exit_reason=why)


# ---- one rank


def judge_rank(
    summary: RankSummary,
    policy: Policy,
    proof: Proof | None = None,
) -> Opinion:
    """Judge one rank: by what settles it, else by its share and by what it falls short of.

    Args:
        summary: the rank.
        policy: the share that is asked for.
        proof: the table that decides, if it is of this rank alone.
    """
    rank = summary.rank
    if rank.settled:
        return Opinion(rank.verdict, rank.reason, rank.cause)
    expected = summary.expectation(policy)
    known = expected or rank.expected
    if expected is None:
        least, most = summary.bounds(policy)
        short = summary.share_of(policy) < policy.share
        doubts = summary.doubts()
        is_cut = short and summary.is_cut and rank.shortfall is None
        is_open = rank.shortfall is None and least < policy.share <= most
        if doubts and (is_open or is_cut):
            said = f"{headline.ran(summary)}, but {enumerated(doubts)}"
            return Opinion(Verdict.INCONCLUSIVE, said)
        if short and (rank.shortfall is None or proof is None):
            asked = policy.min_share
            if asked is None:
                limit = summary.less_than_half()
            else:
                limit = f"below --min-share {asked:.0%}"
            return Opinion(Verdict.PARTIAL, headline.below(summary, limit, known))
    if rank.shortfall is not None:
        return Opinion(
            Verdict.PARTIAL,
            headline.short(summary, proof, rank.shortfall),
            rank.cause,
        )
    if summary.is_cut:
        return Opinion(Verdict.INCONCLUSIVE, headline.too_few_whole(summary))
    # Nothing known leads here: the part that lacks it, or the count of its layers, is a shortfall.
    if expected is not None and not expected.is_met:
        return Opinion(Verdict.INCONCLUSIVE, headline.missed(summary, expected))
    return Opinion(Verdict.ACTIVE, headline.active(summary, known))


# ---- all ranks


def judge_run(
    summaries: Sequence[RankSummary],
    opinions: Sequence[Opinion],
    policy: Policy,
) -> Opinion:
    """Join the opinions on all ranks into the verdict on the run."""
    if len(opinions) == 1:
        return opinions[0]
    ranks = [
        pair for pair in zip(summaries, opinions, strict=True) if pair[0].rank.judged
    ]
    low = [rank for rank, _ in ranks if rank.low_kernels]
    without = [
        one.rank.label for one, opinion in ranks if opinion.verdict in WITHOUT_FP8
    ]
    if low and without:
        return Opinion(
            Verdict.PARTIAL,
            headline.without_low(low, without),
            "rank-without-fp8",
        )
    # Ranks that cannot be judged come after what no judgment of them could change.
    for verdict in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        for rank, opinion in ranks:
            if opinion.verdict is verdict:
                return opinion._replace(reason=f"{rank.rank.label}: {opinion.reason}")
    if not low:
        rank, opinion = min(ranks, key=lambda pair: WITHOUT_FP8.index(pair[1].verdict))
        is_one = len({opinion.reason for _, opinion in ranks}) == 1
        if is_one:
            where = f"on each of the {len(ranks)} ranks, "
        else:
            where = f"{rank.rank.label}: "
        return opinion._replace(reason=f"{where}{opinion.reason}")
    # Ranks without FP8 that train count, though something excuses them.
    training = [
        x
        for x in summaries
        if x.rank.judged or _TRAINING & {y.leg for y in x.rank.legs}
    ]
    whole = sum(summary.total for summary in training) or 1
    share = sum(summary.share * summary.total for summary in training) / whole
    forward_only = [one for one in summaries if one not in training]
    said = headline.active_ranks(low, training, forward_only, share)
    verdict = Verdict.ACTIVE if share >= policy.share else Verdict.PARTIAL
    return Opinion(verdict if len(low) < len(training) else Verdict.ACTIVE, said)

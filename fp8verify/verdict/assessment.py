"""What the findings settle of each rank and of the run, whatever a policy asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import filterfalse
from typing import NamedTuple

from msgspec.structs import replace

from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.ledger import LedgerReport
from fp8verify.model.verdict import (
    CountedGemms,
    ExpectedReport,
    Finding,
    Proof,
)
from fp8verify.terms import TRAINING_LEGS, Severity, Verdict
from fp8verify.verdict.clauses import first_that_holds, optional
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings import join_findings, rank_findings
from fp8verify.verdict.findings.doubts import Doubts
from fp8verify.verdict.findings.layers import left_by_design
from fp8verify.verdict.findings.ledger import LedgerFindings
from fp8verify.verdict.findings.traces import other_runs
from fp8verify.verdict.findings_table import place_of, viewed
from fp8verify.verdict.ledger import Cell
from fp8verify.verdict.ledger_report import ledger_report
from fp8verify.verdict.measures import Measures
from fp8verify.verdict.proof import prove
from fp8verify.verdict.reasons import (
    cause_without_fp8,
    counted_cause,
    logged_cause,
    ran_high,
    undecidable,
)
from fp8verify.verdict.selection import layers_of

# Most severe first.
WITHOUT_FP8 = (Verdict.EMULATED, Verdict.CONTRADICTED, Verdict.INACTIVE)
_APART = "other ranks ran other layers, or the traces do not show which"
_FOREIGN = "its file belongs to another run than those of the other ranks"
# What is said of ranks that train, and of no worker that generates beside them.
_OF_TRAINING = frozenset({"no-backward", "lm-head-fp8"})
# Says of grouped GEMMs what a shortfall of experts says too.
_GROUPED = "grouped-gemm-high-precision"
# As information it says which legs the recipe keeps in high precision.
_LEGS = "leg-not-fp8"


class Opinion(NamedTuple):
    """A verdict, the sentence that gives its reason, and the code of the finding that says it."""

    verdict: Verdict
    reason: str
    cause: str | None = None


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


def assess(ranks: Sequence[RankEvidence], requested: Requested) -> Judgement:
    """Find what the evidence of all ranks shows, and what that settles for each rank."""
    others = other_runs(ranks)
    forward_only = _forward_only(ranks)
    reasons = []
    executions = []
    for rank in ranks:
        is_apart = rank in others
        reason = optional(_FOREIGN, when=is_apart) or undecidable(rank)
        reasons.append(reason)
        can_compare = rank.ran_low or not reason
        is_left_out = is_apart or rank in forward_only or not can_compare
        executions.append([] if is_left_out else rank.trace.executions)
    parts = LedgerFindings(ranks, requested, executions)
    judging = _Judging(ranks, requested, parts, forward_only)
    assessed = []
    decided = []
    for index, reason in enumerate(reasons):
        found = judging.findings(index)
        assessment = judging.assess(index, reason, found)
        assessed.append(assessment)
        decided.append(_decided(found, assessment, alone=index in parts.alone))
    return Judgement(
        ranks=assessed,
        findings=join_findings(ranks, decided, requested),
        proof=prove(parts, ranks),
        ledger=ledger_report(parts.lacking, parts.statements, ranks),
    )


class _Judging:
    """What is said of one rank after the other."""

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        requested: Requested,
        parts: LedgerFindings,
        forward_only: Sequence[RankEvidence],
    ) -> None:
        self._ranks = ranks
        self._requested = requested
        self._parts = parts
        self._forward_only = forward_only
        self._measures = Measures(ranks, requested, parts.statements, parts.lacking)
        self._doubts = Doubts(ranks, requested, parts, self._measures)
        self._accused: set[int] = parts.accused
        if not any(rank.ran_low for rank in ranks if rank not in forward_only):
            self._accused = set(range(len(ranks)))

    def findings(self, index: int) -> list[Finding]:
        """Return all findings on a rank, most severe first."""
        rank = self._ranks[index]
        found = [
            *rank_findings(rank, self._requested),
            *self._parts.findings(index),
            *self._doubts.findings(index),
        ]
        if self._parts.tells_experts(index):
            found = list(filterfalse(_repeats_experts, found))
        if rank in self._forward_only:
            found = list(filterfalse(_is_of_training, found))
        return sorted(found, key=place_of)

    def assess(
        self,
        index: int,
        reason: str,
        found: Sequence[Finding],
    ) -> Assessment:
        """Return what findings make of a rank.

        Args:
            index: of the rank.
            reason: why its kernels cannot decide, empty if they can.
            found: the findings on it.
        """
        rank = self._ranks[index]
        if not reason and self._is_due(index):
            reason = f"{ran_high(rank)}, and {_APART}"
        is_judged = rank.ran_low or index in self._accused or bool(reason)
        short = _as_found(Verdict.PARTIAL, found) or Opinion(Verdict.PARTIAL, "")
        opinions = _settling(rank, reason, found, self._requested)
        settled = first_that_holds(opinions, None)
        opinion = settled or Opinion(Verdict.INCONCLUSIVE, "", short.cause)
        rest = optional(_rest(rank, found, self._requested), when=rank.ran_low)
        shares = self._measures.shares(index)
        return Assessment(
            verdict=opinion.verdict,
            reason=opinion.reason,
            cause=opinion.cause,
            settled=settled is not None,
            shortfall=short.reason or None,
            rest=rest or None,
            judged=is_judged and rank not in self._forward_only,
            expected=self._measures.expected(index),
            counted=self._measures.counted(index),
            low_share=shares.least,
            unknown_share=shares.open,
        )

    def _is_due(self, index: int) -> bool:
        """Whether nothing excuses a rank that trains without FP8: log, list, stage, other model."""
        rank = self._ranks[index]
        trains = any(row.leg in TRAINING_LEGS for row in rank.trace.trained)
        is_told = index in self._accused or rank.ran_low
        may_be_of_all = self._parts.statements.alike and trains and not is_told
        return may_be_of_all and not self._is_excused(index)

    def _is_excused(self, index: int) -> bool:
        """Whether a rank runs layers of other widths, or all of its layers may stay high."""
        ledger = self._parts.ledger
        cells = ledger.of_rank(index)
        widths = _widths(cells)
        others = _widths(ledger.cells.keys() - set(cells))
        is_other_model = widths and others and widths.isdisjoint(others)
        is_stated = cells and all(map(self._measures.may_stay_high, cells))
        return bool(is_other_model or is_stated)


def _forward_only(ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks that surely train nothing, where others do: workers that generate."""
    any_trains = any(rank.trace.backward for rank in ranks)
    return [rank for rank in ranks if any_trains and _runs_forward_alone(rank)]


def _runs_forward_alone(rank: RankEvidence) -> bool:
    may_train = rank.trace.backward or rank.trace.trains
    return bool(rank.trace.trained) and not may_train


def _repeats_experts(found: Finding) -> bool:
    """Whether it says of grouped GEMMs, without their names, what a shortfall of experts says."""
    return found.code == _GROUPED and not found.layers


def _is_of_training(found: Finding) -> bool:
    return found.code in _OF_TRAINING


def _widths(cells: Iterable[Cell]) -> set[int]:
    """Return how many inputs and outputs layers have, nothing if some of these are not known."""
    widths: set[int] = set()
    for layer in layers_of(cells):
        if not isinstance(layer, tuple):
            return set()
        widths.update(layer)
    return widths


def _decided(
    findings: Sequence[Finding],
    rank: Assessment,
    *,
    alone: bool,
) -> list[Finding]:
    """Return what may be said of a rank: no finding decides what its verdict leaves open.

    That a claim is not met says nothing new of a rank that lacks FP8 alone.
    """
    kept = list(findings)
    if alone:
        kept = [x for x in findings if not viewed(x, "restated")]
    is_open = rank.settled and rank.verdict is Verdict.INCONCLUSIVE
    if rank.judged and not is_open:
        return kept
    told = [x for x in kept if x.verdict not in WITHOUT_FP8]
    if rank.judged:
        return list(map(_doubted, told))
    return told


def _doubted(found: Finding) -> Finding:
    """Return a finding as a warning, if it would make its rank PARTIAL."""
    if found.verdict is Verdict.PARTIAL and found.severity is Severity.ERROR:
        return replace(found, severity=Severity.WARNING, verdict=None)
    return found


def _as_found(verdict: Verdict, findings: Sequence[Finding]) -> Opinion | None:
    """Return the opinion of the first finding that makes its rank this, None if none does."""
    for found in findings:
        if found.verdict is verdict:
            return Opinion(verdict, found.message, found.code)
    return None


def _rest(rank: RankEvidence, findings: Iterable[Finding], requested: Requested) -> str:
    """Say why the share is not all: legs or layers that were left out by design."""
    legs = (one.message for one in findings if _is_leg_by_design(one))
    by_design = next(legs, "") or left_by_design(rank, requested)
    return logged_cause(requested) or by_design or counted_cause(requested)


def _is_leg_by_design(found: Finding) -> bool:
    return found.severity is Severity.INFO and found.code == _LEGS


def _settling(
    rank: RankEvidence,
    reason: str,
    findings: Sequence[Finding],
    requested: Requested,
) -> Iterator[tuple[object, Opinion | None]]:
    """Yield what settles a rank: that it cannot be judged, or that it ran no low precision."""
    is_open = _as_found(Verdict.INCONCLUSIVE, findings)
    emulated = _as_found(Verdict.EMULATED, findings)
    contradicted = _as_found(Verdict.CONTRADICTED, findings)
    yield reason, Opinion(Verdict.INCONCLUSIVE, reason)
    yield is_open, is_open
    yield rank.ran_low, None
    yield emulated, emulated
    yield contradicted, contradicted
    yield True, Opinion(Verdict.INACTIVE, _inactive(rank, requested))


def _inactive(rank: RankEvidence, requested: Requested) -> str:
    """Say that no FP8 ran, and what the log says of it, if anything."""
    ran = ran_high(rank)
    if requested.fallback is not None:
        return f"{ran}, as the log says ({requested.fallback.place})"
    _, cause = cause_without_fp8(rank, requested)
    because = optional(f": {cause}", when=cause)
    mention = (
        f" (line {requested.mention.line} mentions it)" if requested.mention else ""
    )
    if not requested.has_log and not rank.modules:
        if because:
            return f"{ran}{because}"
        return f"{ran}; neither a log nor a module list was read"
    return f"{ran}, {_silence(rank, requested)}{mention}{because}"


def _silence(rank: RankEvidence, requested: Requested) -> str:
    """Say which sources do not claim FP8: those that there are."""
    sources = []
    if requested.has_log:
        sources.append("log line")
    if rank.modules:
        sources.append("module")
    return f"and no {' or '.join(sources)} claims FP8"

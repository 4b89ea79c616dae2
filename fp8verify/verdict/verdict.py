"""From shares, and from what findings settled, to the verdicts and the exit code: rules only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fp8verify.report.model.diagnosis import ExpectedReport
from fp8verify.report.model.parts import Finding, Proof
from fp8verify.report.model.report import RankReport
from fp8verify.report.tables import layer_gemms
from fp8verify.terms import (
    BACKWARD_LEGS,
    VAGUE_LEGS,
    Precision,
    Severity,
    Verdict,
    low_precision_count,
    low_precision_share,
)
from fp8verify.text import MEASURES, enumerated, label_of_rank, listed
from fp8verify.thresholds import NEGLIGIBLE, TOLERANCE
from fp8verify.verdict import headline
from fp8verify.verdict.policy import EXPECTED, Policy

EXIT_CODES: dict[Verdict, int] = {
    Verdict.ACTIVE: 0,
    Verdict.PARTIAL: 0,
    Verdict.INACTIVE: 1,
    Verdict.CONTRADICTED: 1,
    Verdict.EMULATED: 1,
    Verdict.INCONCLUSIVE: 3,
}
# Most severe first.
WITHOUT_FP8 = (Verdict.EMULATED, Verdict.CONTRADICTED, Verdict.INACTIVE)


class Opinion(NamedTuple):
    """A verdict, the sentence that gives its reason, and the code of the finding that says it."""

    verdict: Verdict
    reason: str
    cause: str | None = None


class RankSummary:
    """What the verdict on one rank depends on, apart from the share that is required.

    Attributes:
        rank: its report; the verdict in it is believed only if it is settled.
        measure: in what the work of its kernels is measured.
        label: what the rank is called.
        time: µs in GEMMs of layers by precision class.
        kernels: launches of GEMMs of layers by precision class.
        low_kernels: those in FP8 or FP4.
        high_us: µs of what ran in no low precision.
        share: share of the time of the layers' GEMMs in FP8 or FP4.
        share_of_all: the same of all GEMMs, None if all are of layers that train.
        opaque_us: µs in unrecognized kernels; 0 for little.
        cut_steps: steps that a damaged trace does not show whole.
        is_cut: whether they are half of all steps or more.
        trains: whether a GEMM is of a backward pass, or may be.
    """

    def __init__(self, rank: RankReport, measure: str) -> None:
        """Subtract from all GEMMs those that the verdict is not about."""
        layers = layer_gemms(rank)
        self.rank = rank
        self.measure = MEASURES[measure]
        self.label = label_of_rank(rank.rank, rank.source)
        self.time, self.kernels = layers.time_us, layers.kernels
        self.total = sum(self.time.values())
        self.low_kernels = low_precision_count(self.kernels)
        self.share = round(low_precision_share(self.time) or 0.0, 6)
        self.high_us = self.total * (1 - self.share)
        others = (rank.attention_gemm.time_us, rank.untrained_gemm.time_us)
        self.share_of_all = None
        if any(sum(time_us.values()) for time_us in others):
            self.share_of_all = low_precision_share(rank.gemm.time_us)
        is_little = rank.opaque_us < NEGLIGIBLE * (self.total + rank.opaque_us)
        self.opaque_us = 0.0 if is_little else rank.opaque_us
        self.cut_steps = sum(not step.whole for step in rank.steps)
        self.is_cut = 2 * self.cut_steps >= max(1, len(rank.steps))
        self.trains = any(row.leg in (*BACKWARD_LEGS, *VAGUE_LEGS) for row in rank.legs)

    def bounds(self) -> tuple[float, float]:
        """Return the share if all that is not known is in high precision, and if it is in low."""
        low, whole = self.share * self.total, self.total + self.opaque_us
        hidden = self.time[Precision.UNKNOWN.value] + self.opaque_us
        layers = whole - self.rank.unplaced_us
        return low / (whole or 1), round((low + hidden) / layers, 6) if layers > 0 else 1.0

    def expectation(self, policy: Policy) -> ExpectedReport | None:
        """Return what was to run in low precision, if the rank is judged by it."""
        expected = self.rank.expected
        if expected is None or policy.min_share is not None:
            return None
        return expected if expected.decides or policy.expected else None

    def falls_short(self, policy: Policy) -> bool:
        """Whether less ran in low precision than was expected, or required, or else than half."""
        expected = self.expectation(policy)
        return not expected.is_met if expected is not None else self.share < policy.share

    def doubts(self) -> list[str]:
        """Say what of the rank is not known."""
        unknown = self.time[Precision.UNKNOWN.value] / (self.total or 1)
        times = self.opaque_us / (self.total or 1)
        said = {
            f"kernels of unknown precision took {unknown:.0%} of it": unknown,
            f"unrecognized kernels took {times:.2g} times as long as all GEMMs": times,
            "the others may be the optimizer's or attention's (the trace has no operators)": (
                self.rank.unplaced_us
            ),
            "the trace is cut off": self.is_cut,
        }
        return [doubt for doubt, holds in said.items() if holds]


class Outcome(NamedTuple):
    """The exit code, whether the run fails whatever that is, and why in a few words."""

    exit_code: int
    fails: bool
    exit_reason: str


def outcome(
    verdict: Verdict, summaries: Iterable[RankSummary], findings: Iterable[Finding], policy: Policy
) -> Outcome:
    """Return the exit code under a policy."""
    errors = list(dict.fromkeys(one.code for one in findings if one.severity is Severity.ERROR))
    share = EXPECTED if policy.expected else policy.min_share
    short = share is not None and any(summary.falls_short(policy) for summary in summaries)
    code, why = EXIT_CODES[verdict], f"the verdict is {verdict.value}"
    if not code:
        asked = share if isinstance(share, str) else f"{share or 0:.0%}"
        reasons = {
            f"{listed(errors, 2)} {'is an error' if len(errors) == 1 else 'are errors'}": errors,
            f"--min-share {asked} is not met": short,
            "--strict does not accept PARTIAL": policy.strict and verdict is Verdict.PARTIAL,
        }
        why = next((reason for reason, holds in reasons.items() if holds), "")
        code = int(bool(why))
    if policy.exit_zero and code:
        return Outcome(0, True, f"--exit-zero; without it {code}: {why}")
    if not why and verdict is Verdict.PARTIAL:
        why = "PARTIAL passes without --strict"
    return Outcome(code, code != 0, why)


# ---- one rank


def judge_rank(summary: RankSummary, policy: Policy, proof: Proof | None = None) -> Opinion:
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
    if expected is not None and not expected.is_met:
        return _short_of(expected, summary, proof)
    if expected is None:
        least, most = summary.bounds()
        short, doubts = summary.share < policy.share, summary.doubts()
        is_cut = short and summary.is_cut and rank.shortfall is None
        if doubts and (least < policy.share <= most or is_cut):
            return Opinion(
                Verdict.INCONCLUSIVE, f"{headline.ran(summary)}, but {enumerated(doubts)}"
            )
        if short and (rank.shortfall is None or proof is None):
            asked = policy.min_share
            limit = "less than half" if asked is None else f"below --min-share {asked:.0%}"
            return Opinion(Verdict.PARTIAL, headline.below(summary, limit, known))
    if rank.shortfall is not None:
        return Opinion(Verdict.PARTIAL, headline.short(summary, proof, rank.shortfall), rank.cause)
    if summary.is_cut:
        return Opinion(Verdict.INCONCLUSIVE, headline.too_few_whole(summary))
    return Opinion(Verdict.ACTIVE, headline.active(summary, known))


def _short_of(expected: ExpectedReport, summary: RankSummary, proof: Proof | None) -> Opinion:
    """Judge a rank of which less ran in low precision than was to."""
    shortfall = summary.rank.shortfall
    missing = expected.share_of_flops - TOLERANCE - expected.measured_share_of_flops
    hidden = summary.time[Precision.UNKNOWN.value] + summary.opaque_us
    if shortfall is not None:
        return Opinion(
            Verdict.PARTIAL, headline.short(summary, proof, shortfall), summary.rank.cause
        )
    said = headline.missed(expected, summary)
    if hidden >= missing * summary.total or summary.is_cut:
        return Opinion(Verdict.INCONCLUSIVE, f"{said}, but {enumerated(summary.doubts())}")
    return Opinion(Verdict.PARTIAL, said)


# ---- all ranks


def judge_run(
    summaries: Sequence[RankSummary], opinions: Sequence[Opinion], policy: Policy
) -> Opinion:
    """Join the opinions on all ranks into the verdict on the run."""
    if len(opinions) == 1:
        return opinions[0]
    ranks = [pair for pair in zip(summaries, opinions, strict=True) if pair[0].rank.judged]
    low = [rank for rank, _ in ranks if rank.low_kernels]
    without = [rank.label for rank, found in ranks if found.verdict in WITHOUT_FP8]
    if low and without:
        return Opinion(Verdict.PARTIAL, headline.without_low(low, without), "rank-without-fp8")
    # Ranks that cannot be judged come after what no judgment of them could change.
    for verdict in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        for rank, found in ranks:
            if found.verdict is verdict:
                return found._replace(reason=f"{rank.label}: {found.reason}")
    if not low:
        first = min(ranks, key=lambda pair: WITHOUT_FP8.index(pair[1].verdict))
        said = headline.on_all([rank for rank, _ in ranks], [one.reason for _, one in ranks])
        return first[1]._replace(reason=said or f"{first[0].label}: {first[1].reason}")
    # Ranks without FP8 that train count, though no other rank runs layers of their sizes.
    training = [one for one in summaries if one.rank.judged or one.trains]
    whole = sum(one.total for one in training) or 1
    share = sum(one.share * one.total for one in training) / whole
    said = headline.active_ranks(low, training, share)
    verdict = Verdict.ACTIVE if share >= policy.share else Verdict.PARTIAL
    return Opinion(verdict if len(low) < len(training) else Verdict.ACTIVE, said)

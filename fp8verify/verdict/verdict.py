"""From shares, and from what findings settled, to the verdicts and the exit code: rules only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fp8verify.report.model import (
    Finding,
    GemmSummary,
    Precision,
    RankReport,
    Severity,
    Verdict,
    low_precision_name,
)
from fp8verify.report.model.diagnosis import TOLERANCE, ExpectedReport
from fp8verify.text import abridged, in_sentences, label_of_rank, listed
from fp8verify.verdict.policy import Policy

EXIT_CODES: dict[Verdict, int] = {
    Verdict.ACTIVE: 0,
    Verdict.PARTIAL: 0,
    Verdict.INACTIVE: 1,
    Verdict.CONTRADICTED: 1,
    Verdict.EMULATED: 1,
    Verdict.INCONCLUSIVE: 3,
}
# The gravest first.
WITHOUT_FP8 = (Verdict.EMULATED, Verdict.CONTRADICTED, Verdict.INACTIVE)
# Below this share of GEMM time, what is not known cannot hide a training in FP8.
NEGLIGIBLE = 0.01
# Above this share the reason need not say what the rest is.
_NEARLY_ALL = 0.9
_SHOWN = 3


class Opinion(NamedTuple):
    """A verdict and the sentence that gives its reason."""

    verdict: Verdict
    reason: str


class RankSummary:
    """What the verdict on one rank depends on, apart from the share that is required.

    Attributes:
        rank: its report; the verdict in it is believed only where it is settled.
        label: what the rank is called.
        time: ns in GEMMs of layers by precision class.
        kernels: launches of GEMMs of layers by precision class.
        low_kernels: those in FP8 or FP4.
        apart: ns in unfused products of attention, and in GEMMs of layers that only run forward.
        steps_with_gemms: steps that ran GEMMs of layers that train.
    """

    def __init__(self, rank: RankReport) -> None:
        """Subtract from all GEMMs those that the verdict is not about."""
        others = (rank.attention_gemm, rank.untrained_gemm)
        self.rank = rank
        self.label = label_of_rank(rank.rank, rank.source)
        self.apart = tuple(map(_nanos, others))
        self.time = {
            precision: ns - sum(part[precision] for part in self.apart)
            for precision, ns in _nanos(rank.gemm).items()
        }
        self.kernels = {
            Precision(name): count - sum(other.kernels[name] for other in others)
            for name, count in rank.gemm.kernels.items()
        }
        self.low_kernels = sum(n for precision, n in self.kernels.items() if precision.is_low)
        self.steps_with_gemms = sum(step.trains for step in rank.steps)

    @property
    def in_every_step(self) -> bool:
        """Whether no step of its trace is without GEMMs."""
        return self.steps_with_gemms == len(self.rank.steps)

    @property
    def share(self) -> float:
        """Share of the time of the layers' GEMMs in FP8 or FP4."""
        return _low_share(self.time)

    @property
    def share_of_all(self) -> float | None:
        """The same of all GEMMs, where some are of attention or of layers that only run forward."""
        if not any(sum(part.values()) for part in self.apart):
            return None
        return _low_share({p: self.time[p] + sum(a[p] for a in self.apart) for p in Precision})

    @property
    def unknown(self) -> float:
        """Share of the time of the layers' GEMMs in kernels of unknown precision."""
        total = sum(self.time.values())
        return round(self.time[Precision.UNKNOWN] / total, 6) if total else 0.0

    @property
    def share_without_unplaced(self) -> float:
        """The share of low precision if no GEMM counts that may be no layer's."""
        return _low_share(self.time, less=round(self.rank.unplaced_us * 1000))

    @property
    def opaque_share(self) -> float:
        """Time in unrecognized kernels over that of the layers' GEMMs; 0 for little."""
        total, opaque = sum(self.time.values()), round(self.rank.opaque_us * 1000)
        known = not total or opaque < NEGLIGIBLE * (total + opaque)
        return 0.0 if known else opaque / total


def _nanos(gemm: GemmSummary) -> dict[Precision, int]:
    """Return ns by precision class: the report's µs keep every nanosecond."""
    return {Precision(name): round(us * 1000) for name, us in gemm.time_us.items()}


def _low_share(time: Mapping[Precision, int], less: int = 0) -> float:
    """Return the share of FP8 and FP4 in a time that is shorter by `less`."""
    total = sum(time.values()) - less
    low = sum(ns for precision, ns in time.items() if precision.is_low)
    return round(low / total, 6) if total else 0.0


class Outcome(NamedTuple):
    """How a run ends: its exit code, and whether it fails whatever --exit-zero makes of that."""

    exit_code: int
    fails: bool


def outcome(
    verdict: Verdict, summaries: Iterable[RankSummary], findings: Iterable[Finding], policy: Policy
) -> Outcome:
    """Turn verdict, shares and findings into the exit code under a policy."""
    code = EXIT_CODES[verdict]
    if code == 0 and _is_short(verdict, summaries, findings, policy):
        code = 1
    return Outcome(0 if policy.exit_zero else code, code != 0)


def _is_short(
    verdict: Verdict, summaries: Iterable[RankSummary], findings: Iterable[Finding], policy: Policy
) -> bool:
    """Whether a run that ran in low precision fails nonetheless."""
    if policy.strict and verdict is Verdict.PARTIAL:
        return True
    if any(finding.severity is Severity.ERROR for finding in findings):
        return True
    asked = policy.min_share
    if policy.expected:
        return any(_falls_short(summary, policy) for summary in summaries)
    return asked is not None and any(summary.share < asked for summary in summaries)


def _falls_short(summary: RankSummary, policy: Policy) -> bool:
    """Whether less ran in low precision than was expected, or required, or else than half."""
    if (
        policy.min_share is None
        and summary.rank.expected is not None
        and summary.rank.expected.decides
    ):
        return not summary.rank.expected.is_met
    return summary.share < policy.share


# ---- one rank


def judge_rank(summary: RankSummary, policy: Policy) -> Opinion:
    """Judge one rank: by what settles it, else by its share and by what it falls short of."""
    if summary.rank.settled:
        return Opinion(summary.rank.verdict, summary.rank.reason)
    share, expected = summary.share, summary.rank.expected
    min_share = policy.share
    if policy.min_share is not None or expected is None or not expected.decides:
        expected = None
    if expected is not None:
        if _falls_short(summary, policy):
            return _short_of(expected, summary)
        min_share = 0.0  # what was to run in low precision did
    undecided = _undecided(summary, min_share)
    if undecided is not None:
        return Opinion(Verdict.INCONCLUSIVE, undecided)
    if share < min_share:
        because = "" if summary.rank.rest is None else f": {summary.rank.rest}"
        minimum = "default minimum" if policy.min_share is None else "required minimum"
        below = f"below the {minimum} of {min_share:.0%}{because}"
        return Opinion(Verdict.PARTIAL, f"{_ran(summary)}, {below}")
    if summary.rank.shortfall is not None:
        return Opinion(Verdict.PARTIAL, f"{_ran(summary)}, but {summary.rank.shortfall}")
    if share >= _NEARLY_ALL:
        return Opinion(Verdict.ACTIVE, _ran(summary) + _steps(summary))
    if expected is not None:
        said = f"{_ran(summary)}{_steps(summary)}; {expectation(expected)}"
        return Opinion(Verdict.ACTIVE, said)
    return Opinion(Verdict.ACTIVE, _ran(summary, summary.rank.rest) + _steps(summary))


def _short_of(expected: ExpectedReport, summary: RankSummary) -> Opinion:
    """Judge a rank of which less ran in low precision than was to."""
    but = "" if summary.rank.shortfall is None else f", but {summary.rank.shortfall}"
    said = f"{_ran(summary)}{but}; {expectation(expected)}"
    missing = expected.share_of_flops - TOLERANCE - expected.measured_share_of_flops
    if summary.rank.shortfall is None and summary.unknown + summary.opaque_share >= missing:
        return Opinion(
            Verdict.INCONCLUSIVE, f"{said}, and kernels of unknown precision may be the rest"
        )
    if summary.rank.shortfall is None and summary.rank.health.truncated:
        return Opinion(Verdict.INCONCLUSIVE, f"{said} up to where the trace is cut off")
    return Opinion(Verdict.PARTIAL, said)


def expectation(expected: ExpectedReport) -> str:
    """Say what was to run in low precision, and what did."""
    left = abridged(in_sentences(expected.left_out), _SHOWN)
    out = f" ({left} excluded)" if left else ""
    share, measured = expected.share_of_flops, expected.measured_share_of_flops
    return f"expected {share:.0%} of GEMM FLOPs in FP8{out}, measured {measured:.0%}"


def _undecided(summary: RankSummary, min_share: float) -> str | None:
    """Say what could change the verdict if it were known, None if nothing could."""
    share, unknown, opaque = summary.share, summary.unknown, summary.opaque_share
    took = f"{low_precision_name(summary.kernels)} GEMMs took {share:.1%} of GEMM time"
    if share < min_share <= share + unknown:
        return f"{took}, kernels of unknown precision {unknown:.1%}"
    if share < min_share <= summary.share_without_unplaced:
        others = "the trace has no operators: the others may be the optimizer's or attention's"
        return f"{took}, and {others}"
    if share < min_share and summary.rank.health.truncated:
        return f"{took} up to where the trace is cut off"
    least, most = share / (1 + opaque), (share + unknown + opaque) / (1 + opaque)
    if (least < min_share <= share) or (share < min_share <= most):
        return f"{took}, and unrecognized kernels took {opaque:.2g} times as long as all GEMMs"
    return None


def _ran(summary: RankSummary, rest: str | None = None) -> str:
    """Say how much ran in low precision, with attention where it is unfused, and the rest."""
    total = sum(summary.kernels.values())
    formats, whole = low_precision_name(summary.kernels), summary.share_of_all
    of, time = ("", "GEMM time") if whole is None else (" of linear layers", "their time")
    said = None if whole is None else f"{whole:.1%} of all GEMM time, with unfused attention"
    if sum(summary.rank.untrained_gemm.time_us.values()):
        of = " of layers that train"
        said = f"{whole:.1%} of all GEMM time, with layers that only run forward"
    remarks = "; ".join(filter(None, [said, rest]))
    return (
        f"{summary.low_kernels} of {total} GEMM kernels{of} ran in {formats}, "
        f"{summary.share:.1%} of {time}{f' ({remarks})' if remarks else ''}"
    )


def _steps(summary: RankSummary) -> str:
    steps, trained = len(summary.rank.steps), summary.steps_with_gemms
    if steps < 2 or not trained:
        return ""
    if steps == trained:
        return ", in every step"
    return f", in {trained} of {steps} steps (the others ran no GEMM)"


# ---- all ranks


def judge_run(summaries: Sequence[RankSummary], opinions: Sequence[Opinion]) -> Opinion:
    """Join the opinions on all ranks into the verdict on the run."""
    if len(opinions) == 1:
        return opinions[0]
    ranks = [pair for pair in zip(summaries, opinions, strict=True) if pair[0].rank.judged]
    low = sum(rank.low_kernels > 0 for rank, _ in ranks)
    formats = low_precision_name(sum((Counter(rank.kernels) for rank, _ in ranks), Counter()))
    without = [rank.label for rank, found in ranks if found.verdict in WITHOUT_FP8]
    if low and without:
        ran = f"{formats} GEMMs ran on {low} of {len(ranks)} ranks and not on {listed(without)}"
        return Opinion(Verdict.PARTIAL, ran)
    # Ranks that cannot be judged come after what no judgement of them could change.
    for verdict in (Verdict.PARTIAL, Verdict.INCONCLUSIVE):
        for rank, found in ranks:
            if found.verdict is verdict:
                return Opinion(verdict, f"{rank.label}: {found.reason}")
    if not low:
        found = min((found for _, found in ranks), key=lambda one: WITHOUT_FP8.index(one.verdict))
        return Opinion(found.verdict, f"on all {len(ranks)} ranks {found.reason}")
    lowest = min(rank.share for rank, _ in ranks)
    steps = " and in every step" if all(rank.in_every_step for rank, _ in ranks) else ""
    apart = any(rank.share_of_all is not None for rank, _ in ranks)
    return Opinion(
        Verdict.ACTIVE,
        f"{formats} GEMMs ran on all {len(ranks)} ranks{steps}, at least {lowest:.1%} of each "
        f"rank's GEMM time{' in linear layers' if apart else ''}",
    )

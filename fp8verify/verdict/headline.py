"""The one sentence of a verdict: how many GEMMs ran in FP8, where the others did not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fp8verify.model.report import RankReport
from fp8verify.model.verdict import ExpectedReport, Proof, ProofRow
from fp8verify.terms import (
    LEGS,
    VAGUE_LEGS,
    Leg,
    Precision,
    low_precision_count,
    low_precision_name,
)
from fp8verify.text import (
    MEASURES,
    about,
    counted,
    enumerated,
    in_sentences,
    join_windows,
    show_window,
)
from fp8verify.thresholds import HALF, NEGLIGIBLE, SHOWN_IN_REASON
from fp8verify.verdict.policy import Policy


class RankSummary:
    """What the verdict on one rank depends on, apart from the share that is required.

    Attributes:
        rank: its report; the verdict in it is believed only if it is settled.
        alone: whether the run has no other rank.
        measure: what the work of its kernels is measured as: time or FLOPs.
        time: µs in GEMMs of layers by precision class.
        kernels: launches of GEMMs of layers by precision class.
        low_kernels: those in FP8 or FP4.
        high_us: µs of what ran in no low precision.
        share: share of the time of the layers' GEMMs in FP8 or FP4.
        has_others: whether GEMMs ran that the verdict is not about.
        opaque_us: µs in unrecognized kernels; 0 for little.
        cut_steps: steps that a damaged trace does not show whole.
        is_cut: whether they are half of all steps or more.
    """

    def __init__(self, rank: RankReport, measure: str, *, alone: bool = True) -> None:
        """Subtract from all GEMMs those that the verdict is not about.

        Args:
            rank: its report.
            measure: time or FLOPs.
            alone: whether the run has no other rank.
        """
        self.alone = alone
        layers = rank.layer_gemm
        self.rank = rank
        self.measure = MEASURES[measure].name
        self.time = layers.time_us
        self.kernels = layers.kernels
        self.total = sum(self.time.values())
        self.low_kernels = low_precision_count(self.kernels)
        self.share = round(layers.low_precision_share_of_time or 0.0, 6)
        self.high_us = self.total * (1 - self.share)
        self.has_others = (
            rank.attention_gemm.total_ns + rank.untrained_gemm.total_ns > 0
        )
        is_little = rank.opaque_us < NEGLIGIBLE * (self.total + rank.opaque_us)
        self.opaque_us = 0.0 if is_little else rank.opaque_us
        self.cut_steps = sum(not step.whole for step in rank.steps)
        self.is_cut = 2 * self.cut_steps >= max(1, len(rank.steps))

    def share_of(self, policy: Policy) -> float:
        """Return the share that a policy is about: of time if it asks for one, else of work."""
        if policy.min_share is None and self.rank.low_share is not None:
            return self.rank.low_share
        return self.share

    def bounds(self, policy: Policy) -> tuple[float, float]:
        """Return the share if all that is not known is in high precision, and if it is in low."""
        total = self.total or 1
        opaque = self.opaque_us / total
        unknown = self.time[Precision.UNKNOWN.value] / total
        if policy.min_share is None and self.rank.low_share is not None:
            unknown = self.rank.unknown_share
        low = self.share_of(policy)
        layers = 1 + opaque - self.rank.unplaced_us / total
        most = round((low + unknown + opaque) / layers, 6) if layers > 0 else 1.0
        return low / (1 + opaque), most

    def less_than_half(self) -> str:
        """Say of what less than half ran in low precision."""
        if self.rank.low_share is None or self.share < HALF:
            return "less than half"
        return f"{about(self.rank.low_share)} of GEMM FLOPs, less than half"

    def expectation(self, policy: Policy) -> ExpectedReport | None:
        """Return what was to run in low precision, if the rank is judged by it."""
        expected = self.rank.expected
        if expected is None or policy.min_share is not None:
            return None
        return expected if expected.decides or policy.expected else None

    def falls_short(self, policy: Policy) -> bool:
        """Whether less ran in low precision than was expected, or required, or else than half."""
        expected = self.expectation(policy)
        if expected is not None:
            return not expected.is_met
        return self.share_of(policy) < policy.share

    def doubts(self) -> list[str]:
        """Say what of the rank is not known."""
        unknown = self.time[Precision.UNKNOWN.value] / (self.total or 1)
        times = self.opaque_us / (self.total or 1)
        unplaced = self.rank.unplaced_us
        others = "the others may be the optimizer's or attention's (the trace has no operators)"
        said = {
            f"kernels of unknown precision took {unknown:.0%} of it": unknown,
            f"unrecognized kernels took {times:.2g} times as long as all GEMMs": times,
            others: unplaced,
            "the trace is cut off": self.is_cut,
        }
        return [doubt for doubt, holds in said.items() if holds]


def active(summary: RankSummary, expected: ExpectedReport | None) -> str:
    """Say what ran in low precision on a rank that is ACTIVE, and why not all."""
    why = _by_design(summary, expected)
    did = ran(summary)
    if expected is not None and expected.is_met:
        did = did_as_expected([summary]) or did
    return f"{did}{in_steps([summary])}{why}{apart(summary)}"


def too_few_whole(summary: RankSummary) -> str:
    """Say that a damaged trace shows less than most of its steps."""
    steps = len(summary.rank.steps)
    whole = steps - summary.cut_steps
    return f"{ran(summary)}, but only {whole} of {steps} steps can be judged (the trace is damaged)"


def missed(summary: RankSummary, expected: ExpectedReport) -> str:
    """Say that less ran in low precision than was to, and nothing says where."""
    formats = low_precision_name(summary.kernels)
    measured = expected.measured_share_of_flops
    wanted = about(expected.share_of_flops)
    return (
        f"{about(measured)} of GEMM FLOPs ran in {formats}, where {wanted} was expected"
    )


def below(summary: RankSummary, limit: str, expected: ExpectedReport | None) -> str:
    """Say that less ran in low precision than a share, and the largest cause.

    Args:
        summary: the rank.
        limit: what the share is below, as "less than half".
        expected: what was to run in low precision, where it is known.
    """
    why = _by_design(summary, expected)
    if not why and summary.rank.shortfall is not None:
        why = f": {summary.rank.shortfall}"
    return f"{ran(summary, limit)}{why}{apart(summary)}"


def did_as_expected(summaries: Sequence[RankSummary]) -> str:
    """Say how many of the GEMMs that should have run in low precision did.

    Nothing is said where this is not stated of all ranks, or where no GEMM ran in high precision.
    """
    expected = 0
    lacking = 0
    launches: Counter[str] = Counter()
    for summary in summaries:
        counted_gemms = summary.rank.counted
        if counted_gemms is None:
            return ""
        expected += counted_gemms.expected
        lacking += counted_gemms.lacking
        launches.update(summary.kernels)
    if low_precision_count(launches) == sum(launches.values()):
        return ""
    formats = low_precision_name(launches)
    did = f"{expected - lacking} of" if lacking else "all"
    return f"{did} {expected} GEMMs that should have run in {formats} did"


def ran(summary: RankSummary, limit: str = "") -> str:
    """Say how many GEMMs of linear layers ran in low precision, and their time if not all did."""
    total = sum(summary.kernels.values())
    low = summary.low_kernels
    formats = low_precision_name(summary.kernels)
    of = f"{whose_gemms(summary)} {summary.measure}"
    share = f"{about(summary.share)} of {of}" if low < total else ""
    said = ", ".join(filter(None, [share, limit]))
    what = gemms_of_layers([summary.rank])
    return f"{low} of {total} {what} ran in {formats}{f' ({said})' if said else ''}"


def gemms_of_layers(ranks: Sequence[RankReport]) -> str:
    """Name the GEMMs that the verdict is about: experts are no linear layers."""
    for rank in ranks:
        has_linear = rank.modules is None or any(rank.modules.counts.values())
        if has_linear or rank.layers is None or not rank.layers.experts:
            return "linear-layer GEMMs"
    return "expert GEMMs"


def whose_gemms(summary: RankSummary) -> str:
    """Name the whole of a share: GEMMs of layers, where others ran too; of a rank, its own."""
    if summary.alone:
        return "the layers' GEMM" if summary.has_others else "GEMM"
    return "its layers' GEMM" if summary.has_others else "its GEMM"


def in_steps(summaries: Sequence[RankSummary]) -> str:
    """Say in how many steps low precision ran, if there are several and it did on all ranks.

    Of a damaged trace only the steps that are whole count.
    """
    whole = [step for summary in summaries for step in summary.rank.steps if step.whole]
    if not all(
        step.trains and low_precision_count(step.gemm.kernels) for step in whole
    ):
        return ""
    steps, *others = {len(summary.rank.steps) for summary in summaries}
    cut = max(summary.cut_steps for summary in summaries)
    if cut:
        return f", in {steps - cut} of {steps} steps (the trace is damaged)"
    how_many = "both" if steps == 2 else f"all {steps}"
    return f", in {how_many} steps" if not others and steps > 1 else ""


def _by_design(summary: RankSummary, expected: ExpectedReport | None) -> str:
    """Say what kept the others in high precision: what most of their time is."""
    rest = summary.rank.rest
    if not summary.high_us:
        return ""
    met = expected if expected is not None and expected.is_met else None
    left = in_sentences(met.left_out) if met is not None else []
    if rest and len(left) > SHOWN_IN_REASON:
        left = []  # the cause says more than some of the names
    names = _legs_in_high_precision(summary) or left
    configured = "" if met is None else ", as configured"
    if names:
        others = [
            x.value.upper()
            for x in Precision
            if not x.is_low and summary.kernels[x.value]
        ]
        ran_in = enumerated(others).replace("UNKNOWN", "unknown precision")
        named = enumerated(names, SHOWN_IN_REASON)
        if configured:
            return f"; {named} stayed in {ran_in}, as configured"
        return f"; {named} in {ran_in}"
    if rest:
        return f"{configured}{':' if configured else ';'} {rest}"
    return configured


def _legs_in_high_precision(summary: RankSummary) -> list[str]:
    """Return the legs without low precision, if they took most of the time in high precision."""
    high = [row for row in summary.rank.legs if not low_precision_count(row.kernels)]
    without = [row for row in high if row.leg in LEGS]
    is_most = (
        sum(sum(row.time_us.values()) for row in without) >= HALF * summary.high_us
    )
    may_be_low = any(
        row.leg in VAGUE_LEGS and row not in high for row in summary.rank.legs
    )
    is_part = is_most and len(without) < len(LEGS) and not may_be_low
    return [row.leg.value for row in without] if is_part else []


def apart(summary: RankSummary) -> str:
    """Say what of the GEMM time the verdict is not about, unless it is next to nothing."""
    rank = summary.rank
    measure = summary.measure
    total_ns = rank.gemm.total_ns or 1
    attention = rank.attention_gemm.total_ns / total_ns
    untrained = rank.untrained_gemm.total_ns / total_ns
    loose_us = sum(
        sum(row.time_us.values()) for row in rank.legs if row.leg is Leg.UNKNOWN
    )
    loose = 1000 * loose_us / total_ns
    # What takes longer than all that trains nothing does train, as in replays.
    outside = loose if loose <= untrained + _ROUNDING else 0.0
    kernels = rank.attention_gemm.kernels
    formats = enumerated([name.upper() for name, count in kernels.items() if count])
    said = ""
    whole = f"all GEMM {measure}"
    if attention >= NEGLIGIBLE:
        said = f"; attention ran as {formats} GEMMs ({about(attention)} of {whole})"
    forward = "layers that only run forward", untrained - outside
    for what, share in (forward, ("GEMMs outside of operators", outside)):
        if share >= NEGLIGIBLE:
            said += f"; {what} ({about(share)} of {whole}) do not count"
    return said


# ---- what fell short, along the coordinate that decides

_ROUNDING = 1e-6

# A sentence along these says by itself what ran.
_ALONE = frozenset({"step", "micro-batch"})


def short(summary: RankSummary, proof: Proof | None, shortfall: str) -> str:
    """Say what fell short on a rank, and how the other values of the coordinate ran."""
    if proof is None or proof.coordinate not in _ALONE:
        did = did_as_expected([summary]) or ran(summary)
        return f"{did}, but {shortfall}"
    others = [row for row in proof.rows if not row.short]
    is_part = 0 < len(others) < len(proof.rows)
    return f"{shortfall}; {_did(proof, others)}" if is_part else shortfall


def _did(proof: Proof, rows: Sequence[ProofRow]) -> str:
    low = sum(row.low for row in rows)
    total = sum(r.low + r.high + r.unknown for r in rows)
    did = "all did" if low == total else f"{low} of {total} did"
    named = _values([row.value for row in rows])
    is_many = proof.coordinate == "micro-batch" and len(rows) > 1
    where = "the others" if is_many else named
    return f"in {where}{',' if did[0].isdigit() else ''} {did}"


def _values(values: Sequence[str]) -> str:
    """Join values of a coordinate: "steps 5 and 7", "ranks 0-3"; others as they are."""
    for name in ("step", "rank"):
        numbers = [value.removeprefix(f"{name} ") for value in values]
        if all(number.isdecimal() for number in numbers):
            windows = join_windows(
                (number, number) for number in sorted(map(int, numbers))
            )
            plural = "s" if len(numbers) > 1 else ""
            return f"{name}{plural} {enumerated(list(map(show_window, windows)))}"
    return enumerated(list(values))


# ---- several ranks


def active_ranks(
    summaries: Sequence[RankSummary],
    training: Sequence[RankSummary],
    forward_only: Sequence[RankSummary],
    share_of_all: float,
) -> str:
    """Say what ran in low precision on ranks that are ACTIVE.

    Args:
        summaries: the ranks that ran it.
        training: all that train.
        forward_only: those that train nothing.
        share_of_all: of the GEMM time of these, what ran in low precision.
    """
    if len(training) > len(summaries):
        of = f"{len(summaries)} of {counted(training, 'rank')}"
        formats = low_precision_name(summaries[0].kernels)
        measure = summaries[0].measure
        return f"{formats} GEMMs ran on {of} ({about(share_of_all)} of the GEMM {measure} of all)"
    kernels: Counter[str] = sum(
        (Counter(summary.kernels) for summary in summaries), Counter()
    )
    low = low_precision_count(kernels)
    total = sum(kernels.values())
    least = min(summaries, key=lambda summary: summary.share)
    of = f"{whose_gemms(least)} {least.measure}"
    if len(summaries) == 1:
        where = least.rank.label
        share = f" ({about(least.share)} of {of})"
    else:
        where = "both ranks" if len(summaries) == 2 else counted(summaries, "rank")
        share = f"; {least.rank.label} has least ({about(least.share)} of {of})"
    if low == total:
        share = ""
    what = gemms_of_layers([summary.rank for summary in summaries])
    did = did_as_expected(summaries)
    if not did:
        did = f"{low} of {total} {what} ran in {low_precision_name(kernels)}"
    said = f"{did} on {where}{in_steps(summaries)}{share}{apart(least)}"
    if not forward_only:
        return said
    workers = _values([summary.rank.label for summary in forward_only])
    verb = "does" if len(forward_only) == 1 else "do"
    return f"{said}; {workers} ran no backward pass and {verb} not count"


def without_low(low: Sequence[RankSummary], without: Sequence[str]) -> str:
    """Say on which ranks no low precision ran, and how the others ran."""
    kernels: Counter[str] = sum(
        (Counter(summary.kernels) for summary in low), Counter()
    )
    said = f"no {low_precision_name(kernels)} GEMM ran on {_values(without)}"
    count = low_precision_count(kernels)
    others = _values([summary.rank.label for summary in low])
    return f"{said}; on {others}, {count} of {sum(kernels.values())} did"

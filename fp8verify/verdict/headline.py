"""The one sentence of a verdict: how many GEMMs ran in FP8, where the others did not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fp8verify.model.kernels import LegRow
from fp8verify.model.report import RankReport
from fp8verify.model.steps import StepReport
from fp8verify.model.verdict import ExpectedReport, Proof, ProofRow
from fp8verify.terms import (
    LEGS,
    VAGUE_LEGS,
    Leg,
    Precision,
    Role,
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
from fp8verify.verdict.clauses import all_that_hold, by_number, first_said, optional
from fp8verify.verdict.expected import CONVERTED
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
        return self._shares(policy)[0]

    def _shares(self, policy: Policy) -> tuple[float, float]:
        """Return the shares in low and in unknown precision: of what a policy is about."""
        low = self.rank.low_share
        if policy.min_share is None and low is not None:
            return low, self.rank.unknown_share
        return self.share, self._unknown_share

    @property
    def _unknown_share(self) -> float:
        return self._of_total(self.time[Precision.UNKNOWN.value])

    def bounds(self, policy: Policy) -> tuple[float, float]:
        """Return the share if all that is not known is in high precision, and if it is in low."""
        low, unknown = self._shares(policy)
        opaque = self._of_total(self.opaque_us)
        # All that may be GEMMs of layers, without what may be others'.
        most_gemms = 1 + opaque
        least_gemms = most_gemms - self._of_total(self.rank.unplaced_us)
        most = 1.0
        if least_gemms > 0:
            most = round((low + unknown + opaque) / least_gemms, 6)
        return low / most_gemms, most

    def _of_total(self, time_us: float) -> float:
        """Return a time over that of all GEMMs of layers."""
        return time_us / (self.total or 1)

    @property
    def is_less_in_flops(self) -> bool:
        """Whether less than half ran in low precision by its FLOPs, and not by its time."""
        low = self.rank.low_share
        return low is not None and low < HALF <= self.share

    def expectation(self, policy: Policy) -> ExpectedReport | None:
        """Return what was to run in low precision, if the rank is judged by it."""
        expected = self.rank.expected
        if expected is None or policy.min_share is not None:
            return None
        if expected.decides or policy.expected:
            return expected
        return None

    def falls_short(self, policy: Policy) -> bool:
        """Whether less ran in low precision than was expected, or required, or else than half."""
        expected = self.expectation(policy)
        if expected is not None:
            return not expected.is_met
        return self.share_of(policy) < policy.share

    def doubts(self) -> list[str]:
        """Say what of the rank is not known."""
        unknown = self._unknown_share
        times = self._of_total(self.opaque_us)
        rows = (
            (unknown, f"kernels of unknown precision took {unknown:.0%} of it"),
            (
                times,
                f"unrecognized kernels took {times:.2g} times as long as all GEMMs",
            ),
            (self.rank.unplaced_us, _MAY_BE_OTHERS),
            (self.is_cut, "the trace is cut off"),
        )
        return list(all_that_hold(rows))


_MAY_BE_OTHERS = (
    "the others may be the optimizer's or attention's (the trace has no operators)"
)


def active(
    summary: RankSummary,
    expected: ExpectedReport | None,
    *,
    in_time: bool = False,
) -> str:
    """Say what ran in low precision on a rank that is ACTIVE, and why not all.

    Args:
        summary: the rank.
        expected: what was to run in low precision, where it is known.
        in_time: whether a share of time was asked for.
    """
    why = _by_design(summary, expected)
    did = ran(summary, in_time=in_time)
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


def below(
    summary: RankSummary,
    limit: str,
    expected: ExpectedReport | None,
    *,
    in_time: bool = False,
) -> str:
    """Say that less ran in low precision than a share, and the largest cause.

    Args:
        summary: the rank.
        limit: what the share is below, as "less than half".
        expected: what was to run in low precision, where it is known.
        in_time: whether a share of time was asked for.
    """
    shortfall = summary.rank.shortfall
    is_met = expected is not None and expected.is_met
    if is_met and not in_time and not shortfall:
        return _too_little_by_design(summary, limit, expected)
    did = ran(summary, limit, in_time=in_time)
    why = _by_design(summary, expected) or optional(f": {shortfall}", when=shortfall)
    return f"{did}{why}{apart(summary)}"


def _too_little_by_design(
    summary: RankSummary,
    limit: str,
    expected: ExpectedReport | None,
) -> str:
    """Say that all ran as it was configured, and that this is less than a share."""
    did = ran(summary, has_share=False)
    share = _share_of_work(summary)
    names = _kept_high(summary, expected)
    rest = summary.rank.rest
    rows = (
        (names, f": {_stayed(summary, names)}"),
        (rest, f": {rest}"),
    )
    why = first_said(rows)
    return f"{did}, as configured, but that is {share}, {limit}{why}{apart(summary)}"


# How a sentence begins of a run that lacks most of what was expected.
_MOST_LACKS = "only "


def did_as_expected(summaries: Sequence[RankSummary]) -> str:
    """Say how many of the GEMMs that should have run in low precision did.

    Nothing is said where this is not stated of all ranks, or where no GEMM ran in high precision.
    """
    expected = 0
    lacking = 0
    for summary in summaries:
        counted_gemms = summary.rank.counted
        if counted_gemms is None:
            return ""
        expected += counted_gemms.expected
        lacking += counted_gemms.lacking
    launches = _kernels_of(summaries)
    if low_precision_count(launches) == sum(launches.values()):
        return ""
    formats = low_precision_name(launches)
    count = f"all {expected}"
    if lacking:
        count = f"{expected - lacking} of {expected}"
    if lacking > HALF * expected:
        count = f"{_MOST_LACKS}{count}"
    if any(is_asked_by_weights(summary.rank) for summary in summaries):
        return f"{count} GEMMs on {formats} weights ran in {formats}"
    return f"{count} GEMMs that should have run in {formats} did"


def is_asked_by_weights(rank: RankReport) -> bool:
    """Whether weights are stored in low precision, and no layer was converted to compute in it.

    That a library multiplies such weights in low precision is likely for each pass, not promised.
    """
    modules = rank.modules
    if modules is None:
        return False
    states = {state for state, count in modules.counts.items() if count}
    has_low_weights = any(line.startswith("another ") for line in modules.storage)
    return has_low_weights and states.isdisjoint(CONVERTED)


def _kernels_of(summaries: Iterable[RankSummary]) -> Counter[str]:
    """Return the launches of all ranks by precision class."""
    kernels: Counter[str] = Counter()
    for summary in summaries:
        kernels.update(summary.kernels)
    return kernels


def ran(
    summary: RankSummary,
    limit: str = "",
    *,
    has_share: bool = True,
    in_time: bool = False,
) -> str:
    """Say how many GEMMs of linear layers ran in low precision, and their share if not all did.

    Args:
        summary: the rank.
        limit: what the share is below, as "less than half".
        has_share: whether to say the share at all.
        in_time: whether it is that of time in any case.
    """
    total = sum(summary.kernels.values())
    low = summary.low_kernels
    formats = low_precision_name(summary.kernels)
    share = ""
    if has_share and low < total:
        share = _share_of_work(summary, in_time=in_time)
    beside = ", ".join(filter(None, [share, limit]))
    in_brackets = optional(f" ({beside})", when=beside)
    what = gemms_of_layers([summary.rank])
    return f"{low} of {total} {what} ran in {formats}{in_brackets}"


def _share_of_work(summary: RankSummary, *, in_time: bool = False) -> str:
    """Return the share that the verdict rests on, with its whole.

    That is the share of FLOPs where it is known how much of these was expected, else of time.
    """
    expected = summary.rank.expected
    flops = summary.rank.low_share if summary.is_less_in_flops else None
    if expected is not None:
        flops = expected.measured_share_of_flops
    whole = whose_gemms(summary)
    if flops is None or in_time:
        return f"{about(summary.share)} of {whole} {summary.measure}"
    return f"{about(flops)} of {whole} FLOPs"


def gemms_of_layers(ranks: Sequence[RankReport]) -> str:
    """Name the GEMMs that the verdict is about: experts are no linear layers."""
    if all(map(_has_experts_alone, ranks)):
        return "expert GEMMs"
    if any(map(_has_experts, ranks)):
        return "linear-layer and expert GEMMs"
    return "linear-layer GEMMs"


def _has_experts_alone(rank: RankReport) -> bool:
    if not _has_experts(rank):
        return False
    if rank.modules is not None and not any(rank.modules.counts.values()):
        return True
    roles = set()
    for row in rank.kernels:
        is_of_layer = row.leg not in (None, Leg.ATTENTION, Leg.OPTIMIZER)
        if row.role.is_gemm and is_of_layer:
            roles.add(row.role)
    return roles == {Role.GROUPED_GEMM}


def _has_experts(rank: RankReport) -> bool:
    if rank.layers is not None and rank.layers.experts:
        return True
    return any(row.role is Role.GROUPED_GEMM for row in rank.kernels)


def whose_gemms(summary: RankSummary) -> str:
    """Name the whole of a share: GEMMs of layers, where others ran too; of a rank, its own."""
    whose = optional("its ", when=not summary.alone)
    if summary.has_others:
        return f"{whose or 'the '}layers' GEMM"
    return f"{whose}GEMM"


def in_steps(summaries: Sequence[RankSummary]) -> str:
    """Say in how many steps low precision ran, if there are several and it did on all ranks.

    Of a damaged trace only the steps that are whole count.
    """
    steps, *others = {len(summary.rank.steps) for summary in summaries}
    cut = max(summary.cut_steps for summary in summaries)
    rows = (
        (not all(map(_ran_low_in_all_steps, summaries)), ""),
        (cut, f", in {steps - cut} of {steps} steps (the trace is damaged)"),
        (others or steps < 2, ""),
        (steps == 2, ", in both steps"),
        (True, f", in all {steps} steps"),
    )
    return first_said(rows)


def _ran_low_in_all_steps(summary: RankSummary) -> bool:
    """Whether each step that is whole trains, and ran low precision."""
    return all(map(_may_run_low, summary.rank.steps))


def _may_run_low(step: StepReport) -> bool:
    """Whether a step trains in low precision, as far as it can be told."""
    ran_low = low_precision_count(step.gemm.kernels) > 0
    return not step.whole or (step.trains and ran_low)


def _by_design(summary: RankSummary, expected: ExpectedReport | None) -> str:
    """Say what kept the others in high precision: what most of their time is."""
    rest = summary.rank.rest
    is_met = expected is not None and expected.is_met
    names = _kept_high(summary, expected)
    named = enumerated(names, SHOWN_IN_REASON)
    rows = (
        (not summary.high_us, ""),
        (names and is_met, f"; {_stayed(summary, names)}, as configured"),
        (names, f"; {named} in {_high_formats(summary)}"),
        (rest and is_met, f", as configured: {rest}"),
        (rest, f"; {rest}"),
        (is_met, ", as configured"),
    )
    return first_said(rows)


def _kept_high(summary: RankSummary, expected: ExpectedReport | None) -> list[str]:
    """Return what ran in no low precision: legs, or else layers that were left out."""
    return _legs_in_high_precision(summary) or _left_out(summary, expected)


def _stayed(summary: RankSummary, names: Sequence[str]) -> str:
    named = enumerated(list(names), SHOWN_IN_REASON)
    return f"{named} stayed in {_high_formats(summary)}"


def _left_out(summary: RankSummary, expected: ExpectedReport | None) -> list[str]:
    """Return the gradient and the layers that stayed in high precision, as was expected.

    Where there are many, the cause says more than some of their names.
    """
    if expected is None or not expected.is_met:
        return []
    layers = in_sentences(expected.left_out)
    if summary.rank.rest and len(layers) > SHOWN_IN_REASON:
        layers = []
    return [*_legs_of_recipe(summary), *layers]


def _legs_of_recipe(summary: RankSummary) -> list[str]:
    """Return the gradient that the modules' recipe keeps in high precision, if one is kept."""
    modules = summary.rank.modules
    if modules is None or not modules.scalings:
        return []
    kept = f"{Leg.WGRAD.value} in high precision"
    if all(scaling.endswith(kept) for scaling in modules.scalings):
        return [Leg.WGRAD.value]
    return []


def _high_formats(summary: RankSummary) -> str:
    """Name the formats of GEMMs that ran in no low precision."""
    names = []
    for precision in Precision:
        if summary.kernels[precision.value] and not precision.is_low:
            names.append(precision.value.upper())
    return enumerated(names).replace("UNKNOWN", "unknown precision")


def _legs_in_high_precision(summary: RankSummary) -> list[str]:
    """Return the legs without low precision, if they took most of the time in high precision."""
    legs = summary.rank.legs
    low = {row.leg for row in legs if low_precision_count(row.kernels)}
    without = [row for row in legs if row.leg in LEGS and row.leg not in low]
    is_most = _time_us(without) >= HALF * summary.high_us
    is_certain = low.isdisjoint(VAGUE_LEGS)
    if is_most and is_certain and len(without) < len(LEGS):
        return [row.leg.value for row in without]
    return []


def _time_us(rows: Iterable[LegRow]) -> float:
    time_us = 0.0
    for row in rows:
        time_us += sum(row.time_us.values())
    return time_us


def apart(summary: RankSummary) -> str:
    """Say what of the GEMM time the verdict is not about, unless it is next to nothing."""
    rank = summary.rank
    measure = summary.measure
    total_ns = rank.gemm.total_ns or 1
    attention = rank.attention_gemm.total_ns / total_ns
    untrained = rank.untrained_gemm.total_ns / total_ns
    of_no_leg = [row for row in rank.legs if row.leg is Leg.UNKNOWN]
    loose = 1000 * _time_us(of_no_leg) / total_ns
    # What takes longer than all that trains nothing does train, as in replays.
    outside = loose if loose <= untrained + _ROUNDING else 0.0
    kernels = rank.attention_gemm.kernels
    counts = [f"{count} {name.upper()}" for name, count in kernels.items() if count]
    forward = untrained - outside
    of = f"of all GEMM {measure}"
    rows = (
        (
            attention >= NEGLIGIBLE,
            f"; attention ran as {enumerated(counts)} GEMMs",
        ),
        (
            forward >= NEGLIGIBLE,
            f"; layers that only run forward ({about(forward)} {of}) do not count",
        ),
        (
            outside >= NEGLIGIBLE,
            f"; GEMMs outside of operators ({about(outside)} {of}) do not count",
        ),
    )
    return "".join(all_that_hold(rows))


# ---- what fell short, along the coordinate that decides

_ROUNDING = 1e-6

# A sentence along these says by itself what ran.
_ALONE = frozenset({"step", "micro-batch"})


def short(summary: RankSummary, proof: Proof | None, shortfall: str) -> str:
    """Say what fell short on a rank, and how the other values of the coordinate ran."""
    if proof is None or proof.coordinate not in _ALONE:
        did = did_as_expected([summary])
        if not did:
            is_timed = " ms" in shortfall  # one share of the time is enough
            did = _did_in_layers(summary, proof)
            did = did or ran(summary, has_share=not is_timed)
        if did.startswith(_MOST_LACKS):
            return f"{did}: {shortfall}"
        return f"{did}, but {shortfall}"
    others = [row for row in proof.rows if not row.short]
    if 0 < len(others) < len(proof.rows):
        return f"{shortfall}; {_did(proof, others)}"
    return shortfall


def _did_in_layers(summary: RankSummary, proof: Proof | None) -> str:
    """Count without the layers of which no GEMM ran in low precision, and none had to.

    Nothing is said where there are none, or the table is not along layers.
    """
    if proof is None or proof.coordinate != "layer" or proof.left_out:
        return ""
    low = 0
    total = 0
    is_all = True
    for row in proof.rows:
        if row.low or row.unknown or row.short:
            low += row.low
            total += row.low + row.high + row.unknown
        else:
            is_all = False
    if is_all:
        return ""
    formats = low_precision_name(summary.kernels)
    return f"{low} of {total} GEMMs of the layers that use {formats} ran in it"


def _did(proof: Proof, rows: Sequence[ProofRow]) -> str:
    low = 0
    total = 0
    for row in rows:
        low += row.low
        total += row.low + row.high + row.unknown
    where = _values([row.value for row in rows])
    if proof.coordinate == "micro-batch" and len(rows) > 1:
        where = "the others"
    if low == total:
        return f"in {where} all did"
    return f"in {where}, {low} of {total} did"


def _labels(summaries: Sequence[RankSummary]) -> str:
    """Name ranks."""
    return _values([summary.rank.label for summary in summaries])


def _values(values: Sequence[str]) -> str:
    """Join values of a coordinate: "steps 5 and 7", "ranks 0-3"; others as they are."""
    for name in ("step", "rank"):
        numbers = [value.removeprefix(f"{name} ") for value in values]
        if all(map(str.isdecimal, numbers)):
            in_order = sorted(map(int, numbers))
            windows = join_windows(zip(in_order, in_order, strict=True))
            shown = enumerated(list(map(show_window, windows)))
            plural = optional("s", when=len(numbers) > 1)
            return f"{name}{plural} {shown}"
    return enumerated(list(values))


def passes(summaries: Iterable[RankSummary]) -> str:
    """Say why a PARTIAL run passes, and what would fail it.

    That most of what was expected lacks is not hidden by it.
    """
    though = ""
    for summary in summaries:
        counts = summary.rank.counted
        if counts is not None and counts.lacking > HALF * counts.expected:
            lacking = f"{counts.lacking} of {counts.expected} GEMMs"
            formats = low_precision_name(summary.kernels)
            though = f", though {lacking} lack {formats}"
            break
    return f"no error found{though}; --strict fails it"


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
        return _on_some(summaries, training, share_of_all)
    kernels = _kernels_of(summaries)
    low = low_precision_count(kernels)
    total = sum(kernels.values())
    least = min(summaries, key=_least_share)
    of_work = _share_of_work(least)
    are_alike = len(set(map(_share_of_work, summaries))) == 1
    of_each = of_work.replace(" its ", " each one's ")
    share = (
        (low == total, ""),
        (len(summaries) == 1, f" ({of_work})"),
        (are_alike, f" ({of_each})"),
        (True, f"; {least.rank.label} has least ({of_work})"),
    )
    where = (
        (len(summaries) == 1, least.rank.label),
        (len(summaries) == 2, "both ranks"),
        (True, counted(summaries, "rank")),
    )
    what = gemms_of_layers([summary.rank for summary in summaries])
    ran_low = f"{low} of {total} {what} ran in {low_precision_name(kernels)}"
    did = did_as_expected(summaries) or ran_low
    said = f"{did} on {first_said(where)}{in_steps(summaries)}{first_said(share)}"
    return f"{said}{apart(least)}{that_do_not_count(forward_only)}"


def _least_share(summary: RankSummary) -> float:
    """Return the share of the work of a rank that a sentence names."""
    expected = summary.rank.expected
    return summary.share if expected is None else expected.measured_share_of_flops


def _on_some(
    summaries: Sequence[RankSummary],
    training: Sequence[RankSummary],
    share_of_all: float,
) -> str:
    """Say on how many of the ranks that train low precision ran."""
    of = f"{len(summaries)} of {counted(training, 'rank')}"
    formats = low_precision_name(summaries[0].kernels)
    measure = summaries[0].measure
    return (
        f"{formats} GEMMs ran on {of} ({about(share_of_all)} of the GEMM {measure} "
        "of all)"
    )


def that_do_not_count(forward_only: Sequence[RankSummary]) -> str:
    """Say which ranks train nothing, if any."""
    if not forward_only:
        return ""
    do = by_number(forward_only, "does", "do")
    kernels: Counter[str] = Counter()
    for summary in forward_only:
        kernels.update(summary.rank.gemm.kernels)
    low = low_precision_count(kernels)
    formats = low_precision_name(kernels)
    count = f"{low} of {sum(kernels.values())} GEMMs in {formats}"
    return f"; {_labels(forward_only)} only ran forward ({count}) and {do} not count"


def without_low(low: Sequence[RankSummary], without: Sequence[str]) -> str:
    """Say on which ranks no low precision ran, and how the others ran."""
    kernels = _kernels_of(low)
    said = f"no {low_precision_name(kernels)} GEMM ran on {_values(without)}"
    count = low_precision_count(kernels)
    others = _labels(low)
    return f"{said}; on {others}, {count} of {sum(kernels.values())} did"

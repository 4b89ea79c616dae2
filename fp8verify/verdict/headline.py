"""The one sentence of a verdict: how many GEMMs ran in FP8, where the others did not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import filterfalse

from fp8verify.model.kernels import KernelRow, LegRow
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
    about,
    counted,
    enumerated,
    in_sentences,
    join_windows,
    show_window,
)
from fp8verify.thresholds import HALF, NEGLIGIBLE, SHOWN_IN_REASON
from fp8verify.verdict.clauses import (
    all_that_hold,
    by_number,
    first_said,
    first_that_holds,
    optional,
)
from fp8verify.verdict.expected import CONVERTED
from fp8verify.verdict.rank_summary import RankSummary


def active(summary: RankSummary, *, in_time: bool = False) -> str:
    """Say what ran in low precision on a rank that is ACTIVE, and why not all.

    Args:
        summary: the rank.
        in_time: whether a share of time was asked for.
    """
    as_expected = optional(did_as_expected([summary]), when=summary.is_met)
    did = as_expected or ran(summary, in_time=in_time)
    why = _by_design(summary)
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


def below(summary: RankSummary, limit: str, *, in_time: bool = False) -> str:
    """Say that less ran in low precision than a share, and the largest cause.

    Args:
        summary: the rank.
        limit: what the share is below, as "less than half".
        in_time: whether a share of time was asked for.
    """
    shortfall = summary.rank.shortfall
    if summary.is_met and not in_time and not shortfall:
        return _too_little_by_design(summary, limit)
    did = ran(summary, limit, in_time=in_time)
    why = _by_design(summary) or optional(f": {shortfall}", when=shortfall)
    return f"{did}{why}{apart(summary)}"


def _too_little_by_design(summary: RankSummary, limit: str) -> str:
    """Say that all ran as it was configured, and that this is less than a share."""
    did = ran(summary, has_share=False)
    share = _share_of_work(summary)
    names = _kept_high(summary)
    rest = summary.rank.rest
    rows = (
        (names, f": {_stayed(summary, names)}"),
        (rest, f": {rest}"),
    )
    why = first_said(rows)
    return f"{did}, as configured, but that is {share}, {limit}{why}{apart(summary)}"


def did_as_expected(summaries: Sequence[RankSummary]) -> str:
    """Say how many of the GEMMs that should have run in low precision did.

    Nothing is said where this is not stated of all ranks, or where no GEMM ran in high precision.
    """
    launches = _kernels_of(summaries)
    formats = low_precision_name(launches)
    ranks = [summary.rank for summary in summaries]
    rows = (
        (
            any(map(is_asked_by_weights, ranks)),
            f"GEMMs on {formats} weights ran in {formats}",
        ),
        (
            True,
            f"GEMMs that should have run in {formats} did",
        ),
    )
    did = f"{_count_as_expected(summaries)} {first_said(rows)}"
    is_stated = all(rank.counted is not None for rank in ranks)
    ran_high = low_precision_count(launches) < launches.total()
    return optional(did, when=is_stated and ran_high)


def _count_as_expected(summaries: Iterable[RankSummary]) -> str:
    """Count the GEMMs that ran as was expected: "all 36", "33 of 36", "only 3 of 36"."""
    expected = 0
    lacking = 0
    for summary in summaries:
        expected += summary.counted.expected
        lacking += summary.counted.lacking
    of_all = f"{expected - lacking} of {expected}"
    rows = (
        (lacking > HALF * expected, f"only {of_all}"),
        (lacking, of_all),
        (True, f"all {expected}"),
    )
    return first_said(rows)


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
    says_share = has_share and low < total
    share = optional(_share_of_work(summary, in_time=in_time), when=says_share)
    beside = ", ".join(filter(None, [share, limit]))
    in_brackets = optional(f" ({beside})", when=beside)
    what = gemms_of_layers([summary.rank])
    return f"{low} of {total} {what} ran in {formats}{in_brackets}"


def _share_of_work(summary: RankSummary, *, in_time: bool = False) -> str:
    """Return the share that the verdict rests on, with its whole.

    That is the share of FLOPs where it is known how much of these was expected, else of time.
    """
    whole = whose_gemms(summary)
    if summary.flops is None or in_time:
        return f"{about(summary.share)} of {whole} {summary.measure}"
    return f"{about(summary.flops)} of {whole} FLOPs"


# What a rank may have that trains in GEMMs, as sentences name it.
_LINEAR = "linear-layer"
_EXPERT = "expert"


def gemms_of_layers(ranks: Sequence[RankReport]) -> str:
    """Name the GEMMs that the verdict is about: experts are no linear layers."""
    kinds: set[str] = set()
    for rank in ranks:
        kinds.update(_kinds_of_layers(rank))
    named = filter(kinds.__contains__, (_LINEAR, _EXPERT))
    return f"{' and '.join(named)} GEMMs"


def _kinds_of_layers(rank: RankReport) -> tuple[str, ...]:
    """Return which kinds of layers a rank has, by its list of modules and its kernels."""
    layers = rank.layers
    modules = rank.modules
    lists_experts = layers is not None and bool(layers.experts)
    lists_others = modules is None or any(modules.counts.values())
    has_grouped = any(map(_is_grouped, rank.kernels))
    roles = {row.role for row in filter(_is_of_a_layer, rank.kernels)}
    are_grouped = roles == {Role.GROUPED_GEMM}
    kinds = (
        (not lists_experts and not has_grouped, (_LINEAR,)),
        (lists_others and not are_grouped, (_LINEAR, _EXPERT)),
    )
    return first_that_holds(kinds, (_EXPERT,))


def _is_grouped(row: KernelRow) -> bool:
    return row.role is Role.GROUPED_GEMM


def _is_of_a_layer(row: KernelRow) -> bool:
    return row.role.is_gemm and row.leg not in _OF_NO_LAYER


_OF_NO_LAYER = frozenset({None, Leg.ATTENTION, Leg.OPTIMIZER})


def whose_gemms(summary: RankSummary) -> str:
    """Name the whole of a share: GEMMs of layers, where others ran too; of a rank, its own."""
    whose = optional("its ", when=not summary.alone)
    of_layers = f"{whose or 'the '}layers' GEMM"
    return optional(of_layers, when=summary.has_others) or f"{whose}GEMM"


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


def _by_design(summary: RankSummary) -> str:
    """Say what kept the others in high precision: what most of their time is."""
    rest = summary.rank.rest
    is_met = summary.is_met
    names = _kept_high(summary)
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


def _kept_high(summary: RankSummary) -> list[str]:
    """Return what ran in no low precision: legs, or else layers that were left out."""
    return _legs_in_high_precision(summary) or _left_out(summary)


def _stayed(summary: RankSummary, names: Sequence[str]) -> str:
    named = enumerated(list(names), SHOWN_IN_REASON)
    return f"{named} stayed in {_high_formats(summary)}"


def _left_out(summary: RankSummary) -> list[str]:
    """Return the gradient and the layers that stayed in high precision, as was expected.

    Where there are many, the cause says more than some of their names.
    """
    if not summary.is_met:
        return []
    layers = in_sentences(summary.left_out)
    if summary.rank.rest and len(layers) > SHOWN_IN_REASON:
        layers = []
    return [*_legs_of_recipe(summary), *layers]


def _legs_of_recipe(summary: RankSummary) -> list[str]:
    """Return the gradient that the modules' recipe keeps in high precision, if one is kept."""
    modules = summary.rank.modules
    kept = f"{Leg.WGRAD.value} in high precision"
    if modules is None:
        return []
    keep_wgrad = {scaling.endswith(kept) for scaling in modules.scalings}
    if keep_wgrad == {True}:
        return [Leg.WGRAD.value]
    return []


def _high_formats(summary: RankSummary) -> str:
    """Name the formats of GEMMs that ran in no low precision."""
    names = []
    for precision in filterfalse(_is_low, Precision):
        name = precision.value
        if summary.kernels[name]:
            names.append(name.upper())
    return enumerated(names).replace("UNKNOWN", "unknown precision")


def _is_low(precision: Precision) -> bool:
    return precision.is_low


def _legs_in_high_precision(summary: RankSummary) -> list[str]:
    """Return the legs without low precision, if they took most of the time in high precision."""
    legs = summary.rank.legs
    low = {row.leg for row in filter(_ran_low, legs)}
    without = [row for row in legs if row.leg in set(LEGS) - low]
    is_most = _time_us(without) >= HALF * summary.high_us
    is_certain = low.isdisjoint(VAGUE_LEGS)
    is_part = len(without) < len(LEGS)
    if is_most and is_certain and is_part:
        return [row.leg.value for row in without]
    return []


def _ran_low(row: LegRow) -> bool:
    return low_precision_count(row.kernels) > 0


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
_NO_PROOF = Proof(coordinate="", rows=())


def short(summary: RankSummary, proof: Proof | None, shortfall: str) -> str:
    """Say what fell short on a rank, and how the other values of the coordinate ran."""
    proof = proof or _NO_PROOF
    if proof.coordinate in _ALONE:
        whole = [row for row in proof.rows if not row.short]
        differ = 0 < len(whole) < len(proof.rows)
        others = optional(f"; {_did(proof, whole)}", when=differ)
        return f"{shortfall}{others}"
    is_timed = " ms" in shortfall  # one share of the time is enough
    as_expected = did_as_expected([summary])
    in_layers = _did_in_layers(summary, proof)
    did = as_expected or in_layers or ran(summary, has_share=not is_timed)
    lacks_most = as_expected and summary.lacks_most
    between = optional(": ", when=lacks_most) or ", but "
    return f"{did}{between}{shortfall}"


def _did_in_layers(summary: RankSummary, proof: Proof) -> str:
    """Count without the layers of which no GEMM ran in low precision, and none had to.

    Nothing is said where there are none, or the table is not along layers.
    """
    rows = list(filter(_may_run_in_low, proof.rows))
    low, total = _low_of_all(rows)
    formats = low_precision_name(summary.kernels)
    did = f"{low} of {total} GEMMs of the layers that use {formats} ran in it"
    is_of_layers = proof.coordinate == "layer" and not proof.left_out
    is_part = len(rows) < len(proof.rows)
    return optional(did, when=is_of_layers and is_part)


def _may_run_in_low(row: ProofRow) -> bool:
    """Whether any GEMM of a row did, may have, or had to run in low precision."""
    return bool(row.low or row.unknown or row.short)


def _low_of_all(rows: Iterable[ProofRow]) -> tuple[int, int]:
    """Return how many launches of rows are in low precision, and how many there are."""
    low = 0
    total = 0
    for row in rows:
        low += row.low
        total += row.low + row.high + row.unknown
    return low, total


def _did(proof: Proof, rows: Sequence[ProofRow]) -> str:
    low, total = _low_of_all(rows)
    values = [row.value for row in rows]
    are_several = proof.coordinate == "micro-batch" and len(rows) > 1
    others = optional("the others", when=are_several)
    where = others or _values(values)
    did = (
        (low == total, f"in {where} all did"),
        (True, f"in {where}, {low} of {total} did"),
    )
    return first_said(did)


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
    rows = ((summary.lacks_most, _though(summary)) for summary in summaries)
    though = first_said(rows)
    return f"no error found{though}; --strict fails it"


def _though(summary: RankSummary) -> str:
    formats = low_precision_name(summary.kernels)
    lacking = f"{summary.counted.lacking} of {summary.counted.expected}"
    return f", though {lacking} GEMMs lack {formats}"


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
    do = by_number(forward_only, "does", "do")
    kernels: Counter[str] = Counter()
    for summary in forward_only:
        kernels.update(summary.rank.gemm.kernels)
    low = low_precision_count(kernels)
    formats = low_precision_name(kernels)
    count = f"{low} of {sum(kernels.values())} GEMMs in {formats}"
    said = f"; {_labels(forward_only)} only ran forward ({count}) and {do} not count"
    return optional(said, when=forward_only)


def without_low(low: Sequence[RankSummary], without: Sequence[str]) -> str:
    """Say on which ranks no low precision ran, and how the others ran."""
    kernels = _kernels_of(low)
    said = f"no {low_precision_name(kernels)} GEMM ran on {_values(without)}"
    count = low_precision_count(kernels)
    others = _labels(low)
    return f"{said}; on {others}, {count} of {sum(kernels.values())} did"

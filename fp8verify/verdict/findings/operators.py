"""Findings on sources without operators: what their kernels prove, and what stays open.

An operator shows the owner and the leg of a GEMM. Without it, a GEMM in high precision may belong
to a layer, to attention, or to the optimizer (Muon), and FP8 GEMMs may belong to forward passes
only. Kernel names still prove:

- a backward pass ran, if a kernel is named for one, for an optimizer's step, or has E5M2
  operands: recipes keep gradients in it, activations and weights in E4M3 (arXiv:2209.05433,
  section 3). They prove their own GEMMs alone: a micro-batch in BF16 leaves two FP8 GEMMs with
  gradients for each without, as a run does whose other GEMMs are those of its head;
- no GEMM in high precision belongs to a converted layer, if the layers that were left out, and
  the legs that the recipe keeps in high precision, explain all of them;
- no leg is hidden in a hundredth of GEMM time: hiding half a leg takes a sixth of equal work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import grouped
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.logs.statements import HIGH_PRECISION
from fp8verify.model.verdict import Finding
from fp8verify.terms import (
    LEGS,
    Leg,
    Precision,
    low_precision_count,
    low_precision_name,
)
from fp8verify.thresholds import HALF, NEGLIGIBLE, USUAL_SHARE
from fp8verify.verdict.clauses import first_that_holds
from fp8verify.verdict.expected import CONVERTED, Requested
from fp8verify.verdict.findings_table import told
from fp8verify.verdict.readings import Launches, high_launches
from fp8verify.verdict.reasons import main_high
from fp8verify.verdict.selection import (
    amount_of,
    calls_of,
    converted_of,
    high_of,
    in_state,
    low_of,
)
from fp8verify.verdict.statements import Statements

# A case of `no-operators`, and what is open in it.
_Open: TypeAlias = tuple[str, str]


def operators_missing(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """A trace without operators, whose kernels do not prove which leg or layer they are of."""
    if lacks_operators(rank):
        open_of_rank = _what_is_open(rank, requested)
        case, what = first_that_holds(open_of_rank, ("", ""))
        yield from told("no-operators", case, when=what, what=what)


def _what_is_open(
    rank: RankEvidence, requested: Requested
) -> Iterator[tuple[object, _Open]]:
    """Yield what operators would show of a rank, what weighs most first."""
    kernels = rank.linear.kernels
    formats = low_precision_name(kernels)
    measure = rank.measure.name
    took = f"{formats} GEMMs took {rank.share:.1%} of GEMM {measure}"
    high = main_high(rank.trace.trained)
    may_hide = may_hide_low(rank, requested)
    backward = (
        f"{took}, but without operators nothing shows a backward pass in the window"
    )
    yield may_hide and not rank.trace.trains, ("open", backward)
    others = rank.linear.launches - low_precision_count(kernels)
    unknown = f"whether the other {others} ({high}) are a leg of the same layers"
    legs = f"{took}, but without operators it is unknown {unknown}"
    are_proved = legs_are_proved(rank, requested)
    yield rank.ran_low and not are_proved, ("open", legs)
    owners = f"the trace has no operators: GEMMs in {high} may be the optimizer's or attention's"
    unplaced = unplaced_ns(rank, requested)
    is_much = unplaced > NEGLIGIBLE * rank.linear.total_ns
    all_converted = _are_all_converted(rank.modules)
    yield is_much and all_converted, ("open", owners)
    yield is_much and rank.share < USUAL_SHARE, ("", owners)


def may_hide_low(rank: RankEvidence, requested: Requested) -> bool:
    """Whether a rank ran low precision, or was to, so that what is not seen matters."""
    return rank.ran_low or (requested.any and rank.has_fp8_units)


def lacks_operators(rank: RankEvidence) -> bool:
    """Whether it is not known what launched most of the GEMMs, or for which leg."""
    unknown = filter(_lacks_operator, rank.trace.trained)
    half = HALF * rank.linear.total_ns
    return amount_of(unknown) > half


def _lacks_operator(row: GemmRow) -> bool:
    has_operator = bool(row.kind.op.name)
    return not has_operator or row.leg is Leg.UNKNOWN


def _are_all_converted(modules: Sequence[ModuleRecord]) -> bool:
    """Whether all layers were to run in FP8: GEMMs of unknown owner may also be theirs."""
    converted = converted_of(modules)
    return 0 < len(modules) == len(converted)


# ---- what kernels prove


def legs_are_proved(rank: RankEvidence, requested: Requested) -> bool:
    """Whether all legs of the FP8 layers ran in FP8, except those that the recipe leaves out."""
    high = high_of(rank.trace.trained)
    little = NEGLIGIBLE * rank.linear.total_ns
    is_little = amount_of(high) <= little
    # dgrad, wgrad and fprop have a GEMM or more for each node; FP8 rollouts have no nodes.
    are_few = calls_of(high) < rank.trace.seen_nodes
    return is_little or are_few or high_is_explained(rank, requested)


def high_is_explained(rank: RankEvidence, requested: Requested) -> bool:
    """Whether excluded layers and high-precision legs explain all other GEMMs."""
    trained = rank.trace.trained
    low = calls_of(low_of(trained))
    high = calls_of(high_of(trained))
    kept_legs = sum(map(requested.leaves_high, LEGS))
    fp8_legs = len(LEGS) - kept_legs
    left_out, converted = _layers(rank.modules)
    # An FP8 GEMM of a converted layer stands for this part of one in high precision.
    explained = kept_legs * converted + len(LEGS) * left_out
    unexplained = high * fp8_legs * converted
    return unexplained <= low * explained or _are_passes(rank, requested)


def _are_passes(rank: RankEvidence, requested: Requested) -> bool:
    """Whether each step is passes through the module list, and no more ran high than it keeps."""
    statements = Statements([rank], requested)
    modules = statements.modules_of(0, None)
    are_known = all(map(_is_counted, rank.modules))
    if not modules or not are_known:
        return False
    by_step = grouped(rank.trace.trained, _step_of)
    for rows in by_step.values():
        ran = Launches(
            launches=calls_of(rows),
            leg=Leg.UNKNOWN,
            forward=None,
            may_repeat=True,
        )
        may_be_high = high_launches(ran, modules, statements)
        high = calls_of(high_of(rows))
        if may_be_high is None or high > may_be_high.least:
            return False
    return True


def _is_counted(module: ModuleRecord) -> bool:
    """Whether each pass runs all legs of a module, in a precision that the list states."""
    is_stated = module.state == HIGH_PRECISION or module.state in CONVERTED
    runs_all = module.training and not module.frozen
    return module.kind == "linear" and runs_all and is_stated


def _step_of(row: GemmRow) -> int:
    return row.step


def unplaced_ns(rank: RankEvidence, requested: Requested) -> int:
    """Return the time of GEMMs in high precision that may not belong to a layer."""
    lacks_owners = rank.ran_low and lacks_operators(rank)
    if not lacks_owners or high_is_explained(rank, requested):
        return 0
    high = high_of(rank.trace.trained)
    ownerless = filter(_has_no_owner, high)
    return amount_of(ownerless)


def _has_no_owner(row: GemmRow) -> bool:
    is_known = row.precision is not Precision.UNKNOWN
    return is_known and not row.kind.op.name


def _layers(modules: Sequence[ModuleRecord]) -> tuple[int, int]:
    """Return how many layers were left out of the conversion, and how many were converted.

    (0, 1) if that cannot be counted: without a module list, with experts, which run any number of
    GEMMs, and with layers whose legs differ, such as frozen ones.
    """
    counted = in_state(modules, HIGH_PRECISION, *CONVERTED)
    are_plain = all(map(_is_plain, modules))
    is_known = len(counted) == len(modules) and are_plain
    converted = _products(converted_of(modules))
    if not converted or not is_known:
        return 0, 1
    left_out = in_state(modules, HIGH_PRECISION)
    return _products(left_out), converted


def _is_plain(module: ModuleRecord) -> bool:
    return module.kind == "linear" and module.training and not module.frozen


def _products(modules: Iterable[ModuleRecord]) -> int:
    """Return how many products of weights modules run forward."""
    products = 0
    for module in modules:
        products += max(1, len(module.sizes))
    return products

"""Findings on what was recorded: traces, windows, steps that train, operators, and all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fp8verify.analysis.gemms import GemmRow
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
from fp8verify.text import counted, listed
from fp8verify.thresholds import (
    ANOTHER_RUN_NS,
    HALF,
    NEGLIGIBLE,
    SHOWN_NUMBERS,
    USUAL_SHARE,
)
from fp8verify.verdict.clauses import (
    all_that_hold,
    first_said,
    first_that_holds,
    optional,
)
from fp8verify.verdict.expected import CONVERTED, Requested
from fp8verify.verdict.findings_table import told
from fp8verify.verdict.reasons import main_high, without_kernels
from fp8verify.verdict.selection import (
    amount_of,
    calls_of,
    converted_of,
    high_of,
    in_state,
    low_of,
)

_WINDOW_STATES = {
    "never": "never began",
    "cut": "was cut short",
    "dropped": "left no trace",
    "skipped": "was not recorded",
}


# ---- the trace and its windows


def no_kernels(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """No trace, an empty one, or one of the CPU only."""
    health = rank.trace.health
    case, why = without_kernels(rank)
    has_case = not health.kernels and case is not None
    is_empty = not health.events and health.complete
    is_known = rank.recorded.observed or rank.unreadable
    yield from told(
        "no-gpu-kernels",
        case or "",
        when=has_case,
        source=rank.trace.source,
        why=why,
    )
    yield from told("no-training-step", when=is_empty and not is_known and not has_case)


def damaged(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """A trace that was not recorded or could not be read whole."""
    health = rank.trace.health
    source = rank.trace.source
    yield from told(
        "damaged-trace",
        "unreadable",
        when=rank.unreadable,
        source=source,
        damage=f"cannot be read: {rank.unreadable}",
    )
    skipped = health.skipped_events
    events = health.events + skipped
    rows = (
        (health.truncated, "is cut off"),
        (skipped, f"has {skipped} of {events} events that cannot be read"),
        (health.extra_documents, "is followed by another document that was not read"),
        (health.records_lost, "is incomplete, as the profiler itself says"),
    )
    damage = ", ".join(all_that_hold(rows))
    notes = optional(f" ({'; '.join(health.notes[:3])})", when=health.notes)
    yield from told(
        "damaged-trace",
        when=not health.complete,
        source=source,
        damage=f"{damage}{notes}",
    )


def window_not_whole(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """A window that was not recorded, or not to its end."""
    seen = rank.recorded.meta.steps_seen
    for window in rank.recorded.meta.windows:
        cases = (
            (window.state == "never" and seen >= 2, "not-reached"),
            (window.state == "never", "never"),
            (window.state == "skipped", "skipped"),
        )
        state = _WINDOW_STATES.get(window.state, "is not complete")
        first = max(2, seen - (window.last - window.first))
        of_start = optional(", counted from its start", when=window.asked)
        yield from told(
            "window-not-complete",
            first_said(cases),
            when=window.state != "complete",
            window=window.name,
            what=f"{state}, because {window.reason}",
            steps=f"{first}-{seen}{of_start}",
        )


# ---- steps that train


def no_backward(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """A window with only forward passes, as of an evaluation: dgrad and wgrad are not seen.

    It decides nothing of a run that used, or was to use, FP8; evaluation may leave it.
    """
    # GEMMs of layers that are of a backward pass, or may be.
    multiplies = any(row.leg is not Leg.FPROP for row in rank.trace.trained)
    is_seen = rank.trace.backward and (multiplies or not rank.ran_low)
    rows = (
        (
            rank.trace.backward,
            "no backward GEMM ran in the window, which ends before the first backward pass",
        ),
        (
            True,
            "no backward pass ran in the window: it shows evaluation, not training",
        ),
    )
    yield from told(
        "no-backward",
        optional("open", when=_may_hide(rank, requested)),
        when=rank.trace.trained and not is_seen,
        missing=first_said(rows),
        share=f"{rank.share:.1%} of forward GEMM {rank.measure.name}",
    )


def _may_hide(rank: RankEvidence, requested: Requested) -> bool:
    """Whether a rank ran low precision, or was to, so that what is not seen matters."""
    return rank.ran_low or (requested.any and rank.has_fp8_units)


def fp8_forward_only(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """FP8 GEMMs of layers that only run forward, and none of layers that train."""
    count = calls_of(low_of(rank.trace.untrained))
    yield from told("fp8-forward-only", when=count and not rank.ran_low, count=count)


def steps_without_gemms(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Steps that launched no GEMM while others did: they train nothing."""
    steps = rank.trace.steps
    ran = {row.step for row in rank.trace.gemms}
    without = [
        str(step.number) for n, step in enumerate(steps) if n not in ran and step.whole
    ]
    plural = optional("s", when=len(without) > 1)
    yield from told(
        "step-without-gemms",
        when=0 < len(without) < len(steps),
        steps=f"step{plural} {listed(without, SHOWN_NUMBERS)}",
        others=counted(len(steps) - len(without), "step"),
    )


def no_optimizer_step(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """A window of forward and backward passes in which no optimizer was seen to step."""
    trains = rank.trace.backward and rank.gemm.launches
    yield from told("no-optimizer-step", when=trains and not rank.trace.updates)


# ---- operators
#
# Sources without operators: an operator shows the owner and the leg of a GEMM. Without it, a GEMM
# in high precision may belong to a layer, to attention, or to the optimizer (Muon), and FP8 GEMMs
# may belong to forward passes only. Kernel names still prove:
#
# - a backward pass ran, if a kernel is named for one, for an optimizer's step, or has E5M2
#   operands: recipes keep gradients in it, activations and weights in E4M3 (arXiv:2209.05433,
#   section 3). They prove their own GEMMs alone: a micro-batch in BF16 leaves two FP8 GEMMs with
#   gradients for each without, as a run does whose other GEMMs are those of its head;
# - no GEMM in high precision belongs to a converted layer, if the layers that were left out, and
#   the legs that the recipe keeps in high precision, explain all of them;
# - no leg is hidden in a hundredth of GEMM time: hiding half a leg takes a sixth of equal work.


def lacks_operators(rank: RankEvidence) -> bool:
    """Whether it is not known what launched most of the GEMMs, or for which leg."""
    unknown = filter(_lacks_operator, rank.trace.trained)
    return amount_of(unknown) > HALF * rank.linear.total_ns


def _lacks_operator(row: GemmRow) -> bool:
    return not row.kind.op.name or row.leg is Leg.UNKNOWN


def legs_are_proved(rank: RankEvidence, requested: Requested) -> bool:
    """Whether all legs of the FP8 layers ran in FP8, except those that the recipe leaves out."""
    high = high_of(rank.trace.trained)
    is_little = amount_of(high) <= NEGLIGIBLE * rank.linear.total_ns
    # dgrad, wgrad and fprop have a GEMM or more for each node; FP8 rollouts have no nodes.
    products = calls_of(row for row in high if row.kind.multiplies)
    few = products < rank.trace.seen_nodes
    return is_little or few or high_is_explained(rank, requested)


def high_is_explained(rank: RankEvidence, requested: Requested) -> bool:
    """Whether excluded layers and high-precision legs explain all other GEMMs."""
    products = [row for row in rank.trace.trained if row.kind.multiplies]
    low = calls_of(low_of(products))
    high = calls_of(products) - low
    kept = sum(map(requested.leaves_high, LEGS))
    left, converted = _layers(rank.modules)
    fp8_legs = len(LEGS) - kept
    return high * fp8_legs * converted <= low * (kept * converted + len(LEGS) * left)


def unplaced_ns(rank: RankEvidence, requested: Requested) -> int:
    """Return the time of GEMMs in high precision that may not belong to a layer."""
    lacks_owners = rank.ran_low and lacks_operators(rank)
    if not lacks_owners or high_is_explained(rank, requested):
        return 0
    high = (row for row in high_of(rank.trace.trained) if not row.kind.op.name)
    return amount_of(row for row in high if row.precision is not Precision.UNKNOWN)


def _layers(modules: Sequence[ModuleRecord]) -> tuple[int, int]:
    """Return how many layers were left out of the conversion, and how many were converted.

    (0, 1) if that cannot be counted: without a module list, with experts, which run any number of
    GEMMs, and with layers whose legs differ, such as frozen ones.
    """
    states = {module.state for module in modules}
    is_known = all(map(_is_plain, modules)) and states <= {HIGH_PRECISION, *CONVERTED}
    converted = _products(converted_of(modules))
    if not converted or not is_known:
        return 0, 1
    return _products(in_state(modules, HIGH_PRECISION)), converted


def _is_plain(module: ModuleRecord) -> bool:
    return module.kind == "linear" and module.training and not module.frozen


def _products(modules: Iterable[ModuleRecord]) -> int:
    """Return how many products of weights modules run forward."""
    products = 0
    for module in modules:
        products += max(1, len(module.sizes))
    return products


def _is_converted(module: ModuleRecord) -> bool:
    return module.state in CONVERTED


def operators_missing(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """A trace without operators, whose kernels do not prove which leg or layer they are of."""
    if not rank.trace.trained or not lacks_operators(rank):
        return
    formats = low_precision_name(rank.linear.kernels)
    high = main_high(rank.trace.trained)
    took = f"{formats} GEMMs took {rank.share:.1%} of GEMM {rank.measure.name}"
    # All layers were to run in FP8: then GEMMs of unknown owner may also be theirs.
    every = bool(rank.modules) and all(map(_is_converted, rank.modules))
    others = rank.linear.launches - low_precision_count(rank.linear.kernels)
    unknown = f"whether the other {others} ({high}) are a pass of the same layers"
    is_much = unplaced_ns(rank, requested) > NEGLIGIBLE * rank.linear.total_ns
    may_be = f"the trace has no operators: GEMMs in {high} may be the optimizer's or attention's"
    rows = (
        (
            _may_hide(rank, requested) and not rank.trace.trains,
            (
                "open",
                f"{took}, but without operators nothing shows a backward pass in the window",
            ),
        ),
        (
            rank.ran_low and not legs_are_proved(rank, requested),
            ("open", f"{took}, but without operators it is unknown {unknown}"),
        ),
        (is_much and every, ("open", may_be)),
        (is_much and rank.share < USUAL_SHARE, ("", may_be)),
    )
    case, what = first_that_holds(rows, ("", ""))
    yield from told("no-operators", case, when=what, what=what)


# ---- all ranks together


def other_runs(ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks whose files are of another run than the rest, by world size and time."""
    known = [rank for rank in ranks if rank.trace.began_ns or rank.trace.world_size]
    current: list[RankEvidence] = []
    reached = 0
    for rank in sorted(known, key=lambda rank: rank.trace.began_ns or 0):
        begin, (first, last) = rank.trace.began_ns or 0, rank.trace.bounds or (0, 0)
        current = [*current, rank] if begin <= reached + ANOTHER_RUN_NS else [rank]
        reached = max(reached, begin + last - first)
    worlds = Counter(rank.trace.world_size for rank in current)
    usual = max(worlds, key=worlds.__getitem__, default=None)
    return [
        rank for rank in known if rank not in current or rank.trace.world_size != usual
    ]


def ranks_of_other_runs(
    ranks: Sequence[RankEvidence], _: Requested
) -> Iterator[Finding]:
    """Files of another run among those of this one: a folder that was used again."""
    others = other_runs(ranks)
    sizes = {str(rank.trace.world_size or "unknown") for rank in others}
    yield from told(
        "rank-of-another-run",
        when=others,
        labels=listed([rank.label for rank in others]),
        world=" or ".join(sorted(sizes)),
        ranks=[number for rank in others for number in rank.numbers],
    )


def ranks_not_observed(
    ranks: Sequence[RankEvidence], requested: Requested
) -> Iterator[Finding]:
    """Ranks of the run whose traces are not there."""
    world = max((rank.trace.world_size or 1 for rank in ranks), default=1)
    are_listed = requested.listed > len(ranks)
    yield from told(
        "ranks-not-observed",
        when=world > len(ranks),
        observed=len(ranks),
        world=world,
        listed=optional(f", {requested.listed} by module list", when=are_listed),
    )

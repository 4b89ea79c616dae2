"""Findings on what was recorded: traces, windows, steps that train, operators, and all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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
from fp8verify.verdict.expected import CONVERTED, Promises
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.reasons import main_high, without_kernels

_WINDOW_STATES = {
    "never": "never began",
    "cut": "was cut short",
    "dropped": "left no trace",
    "skipped": "was not recorded",
}


# ---- the trace and its windows


def no_kernels(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """No trace, an empty one, or one of the CPU only."""
    health = rank.trace.health
    case, why = without_kernels(rank)
    if not health.kernels and case is not None:
        yield finding("no-gpu-kernels", case, source=rank.trace.source, why=why)
    elif (
        not health.events
        and health.complete
        and not (rank.recorded.observed or rank.unreadable)
    ):
        yield finding("no-training-step")


def damaged(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """A trace that was not recorded or could not be read whole."""
    health = rank.trace.health
    if rank.unreadable is not None:
        what = f"cannot be read: {rank.unreadable}"
        yield finding(
            "damaged-trace",
            "unreadable",
            source=rank.trace.source,
            damage=what,
        )
    if health.complete:
        return
    skipped = health.skipped_events
    events = health.events + health.skipped_events
    damage = {
        "is cut off": health.truncated,
        f"has {skipped} of {events} events that cannot be read": skipped,
        "is followed by another document that was not read": health.extra_documents,
        "is incomplete, as the profiler itself says": health.records_lost,
    }
    notes = f" ({'; '.join(health.notes[:3])})" if health.notes else ""
    what = ", ".join(fact for fact, holds in damage.items() if holds) + notes
    yield finding("damaged-trace", source=rank.trace.source, damage=what)


def window_not_whole(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """A window that was not recorded, or not to its end."""
    seen = rank.recorded.meta.steps_seen
    cases = {"never": "not-reached" if seen >= 2 else "never", "skipped": "skipped"}
    for window in rank.recorded.meta.windows:
        if window.state == "complete":
            continue
        case = cases.get(window.state, "")
        state = _WINDOW_STATES.get(window.state)
        what = f"{state or 'is not complete'}, because {window.reason}"
        steps = f"{max(2, seen - (window.last - window.first))}-{seen}"
        steps += ", counted from its start" if window.asked else ""
        yield finding(
            "window-not-complete",
            case,
            window=window.name,
            what=what,
            steps=steps,
        )


# ---- steps that train


def no_backward(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """A window with only forward passes, as of an evaluation: dgrad and wgrad are not seen.

    It decides nothing of a run that used, or was to use, FP8; evaluation may leave it.
    """
    # GEMMs of layers that are of a backward pass, or may be.
    multiplies = any(row.leg is not Leg.FPROP for row in rank.trace.trained)
    if not rank.trace.trained or (
        rank.trace.backward and (multiplies or not rank.ran_low)
    ):
        return
    hidden = rank.ran_low or (promises.any and rank.has_fp8_units)
    missing = "no backward pass ran in the window: it shows evaluation, not training"
    if rank.trace.backward:
        missing = "no backward GEMM ran in the window, which ends before the first backward pass"
    work = f"{rank.share:.1%} of forward GEMM {rank.measure.name}"
    yield finding("no-backward", "open" if hidden else "", missing=missing, share=work)


def fp8_forward_only(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """FP8 GEMMs of layers that only run forward, and none of layers that train."""
    count = sum(row.calls for row in rank.trace.untrained if row.precision.is_low)
    if count and not rank.ran_low:
        yield finding("fp8-forward-only", count=count)


def steps_without_gemms(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Steps that launched no GEMM while others did: they train nothing."""
    steps = rank.trace.steps
    ran = {row.step for row in rank.trace.gemms}
    without = [
        str(step.number) for n, step in enumerate(steps) if n not in ran and step.whole
    ]
    if 0 < len(without) < len(steps):
        others = counted(len(steps) - len(without), "step")
        named = f"step{'s' * (len(without) > 1)} {listed(without, SHOWN_NUMBERS)}"
        yield finding("step-without-gemms", steps=named, others=others)


def no_optimizer_step(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """A window of forward and backward passes in which no optimizer was seen to step."""
    if rank.trace.backward and not rank.trace.updates and rank.gemm.launches:
        yield finding("no-optimizer-step")


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
    unknown = (
        x for x in rank.trace.trained if not x.kind.op.name or x.leg is Leg.UNKNOWN
    )
    return sum(row.time_ns for row in unknown) > HALF * rank.linear.total_ns


def legs_are_proved(rank: RankEvidence, promises: Promises) -> bool:
    """Whether all legs of the FP8 layers ran in FP8, except those that the recipe leaves out."""
    high = [row for row in rank.trace.trained if not row.precision.is_low]
    little = sum(row.time_ns for row in high) <= NEGLIGIBLE * rank.linear.total_ns
    # dgrad, wgrad and fprop have a GEMM or more for each node; FP8 rollouts have no nodes.
    few = sum(row.calls for row in high if row.kind.multiplies) < rank.trace.seen_nodes
    return little or few or high_is_explained(rank, promises)


def high_is_explained(rank: RankEvidence, promises: Promises) -> bool:
    """Whether excluded layers and high-precision legs explain all other GEMMs."""
    products = [row for row in rank.trace.trained if row.kind.multiplies]
    low = sum(row.calls for row in products if row.precision.is_low)
    high = sum(row.calls for row in products) - low
    kept = sum(map(promises.leaves_high, LEGS))
    left, converted = _layers(rank.modules)
    fp8_legs = len(LEGS) - kept
    return high * fp8_legs * converted <= low * (kept * converted + len(LEGS) * left)


def unplaced_ns(rank: RankEvidence, promises: Promises) -> int:
    """Return the time of GEMMs in high precision that may not belong to a layer."""
    if (
        not rank.ran_low
        or not lacks_operators(rank)
        or high_is_explained(rank, promises)
    ):
        return 0
    high = (
        row
        for row in rank.trace.trained
        if not row.precision.is_low and not row.kind.op.name
    )
    return sum(row.time_ns for row in high if row.precision is not Precision.UNKNOWN)


def _layers(modules: Sequence[ModuleRecord]) -> tuple[int, int]:
    """Return how many layers were left out of the conversion, and how many were converted.

    (0, 1) if that cannot be counted: without a module list, with experts, which run any number of
    GEMMs, and with layers whose legs differ, such as frozen ones.
    """
    plain = all(m.kind == "linear" and m.training and not m.frozen for m in modules)
    known = plain and all(m.state in (HIGH_PRECISION, *CONVERTED) for m in modules)
    converted = sum(max(1, len(m.sizes)) for m in modules if m.state in CONVERTED)
    left = sum(max(1, len(m.sizes)) for m in modules if m.state == HIGH_PRECISION)
    return (left, converted) if known and converted else (0, 1)


def operators_missing(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """A trace without operators, whose kernels do not prove which leg or layer they are of."""
    if not rank.trace.trained or not lacks_operators(rank):
        return
    formats = low_precision_name(rank.linear.kernels)
    high = main_high(rank.trace.trained)
    took = f"{formats} GEMMs took {rank.share:.1%} of GEMM {rank.measure.name}"
    hidden = rank.ran_low or (promises.any and rank.has_fp8_units)
    # All layers were to run in FP8: then GEMMs of unknown owner may also be theirs.
    every = bool(rank.modules) and all(one.state in CONVERTED for one in rank.modules)
    if not rank.trace.trains and hidden:
        what = (
            f"{took}, but without operators nothing shows a backward pass in the window"
        )
        yield finding("no-operators", "open", what=what)
    elif rank.ran_low and not legs_are_proved(rank, promises):
        others = rank.linear.launches - low_precision_count(rank.linear.kernels)
        unknown = f"whether the other {others} ({high}) are a pass of the same layers"
        what = f"{took}, but without operators it is unknown {unknown}"
        yield finding("no-operators", "open", what=what)
    elif unplaced_ns(rank, promises) > NEGLIGIBLE * rank.linear.total_ns:
        what = f"the trace has no operators: GEMMs in {high} may be the optimizer's or attention's"
        if every or rank.share < USUAL_SHARE:
            yield finding("no-operators", "open" if every else "", what=what)


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
    ranks: Sequence[RankEvidence], _: Promises
) -> Iterator[Finding]:
    """Files of another run among those of this one: a folder that was used again."""
    others = other_runs(ranks)
    if others:
        world = " or ".join(
            sorted({str(rank.trace.world_size or "unknown") for rank in others})
        )
        labels = listed([rank.label for rank in others])
        numbers = [number for rank in others for number in rank.numbers]
        yield finding("rank-of-another-run", labels=labels, world=world, ranks=numbers)


def ranks_not_observed(
    ranks: Sequence[RankEvidence], promises: Promises
) -> Iterator[Finding]:
    """Ranks of the run whose traces are not there."""
    world = max((rank.trace.world_size or 1 for rank in ranks), default=1)
    if world > len(ranks):
        if promises.listed > len(ranks):
            listed = f", {promises.listed} by module list"
        else:
            listed = ""
        yield finding(
            "ranks-not-observed",
            observed=len(ranks),
            world=world,
            listed=listed,
        )

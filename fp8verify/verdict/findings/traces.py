"""Findings on what was recorded: traces, windows, steps that train, and all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.verdict import Finding
from fp8verify.terms import Leg
from fp8verify.text import counted, listed
from fp8verify.thresholds import ANOTHER_RUN_NS, SHOWN_NUMBERS
from fp8verify.verdict.clauses import all_that_hold, first_said, optional
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings.operators import may_hide_low
from fp8verify.verdict.findings_table import told
from fp8verify.verdict.reasons import without_kernels
from fp8verify.verdict.selection import calls_of, low_of

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
    of_trace = not health.rows_are_sums
    rows = (
        (health.truncated and of_trace, "is cut off"),
        (health.truncated and not of_trace, "may not list all kernels"),
        (skipped and of_trace, f"has {skipped} of {events} events that cannot be read"),
        (
            skipped and not of_trace,
            f"has {counted(skipped, 'row')} that cannot be read",
        ),
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
    has_gradients = any(map(_may_be_gradient, rank.trace.trained))
    is_seen = rank.trace.backward and (has_gradients or not rank.ran_low)
    missing = "no backward pass ran in the window: it shows evaluation, not training"
    if rank.trace.backward:
        missing = "no backward GEMM ran in the window, which ends before the first backward pass"
    yield from told(
        "no-backward",
        optional("open", when=may_hide_low(rank, requested)),
        when=rank.trace.trained and not is_seen,
        missing=missing,
        share=f"{rank.share:.1%} of forward GEMM {rank.measure.name}",
    )


def _may_be_gradient(row: GemmRow) -> bool:
    return row.leg is not Leg.FPROP


def fp8_forward_only(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """FP8 GEMMs of layers that only run forward, and none of layers that train."""
    count = calls_of(low_of(rank.trace.untrained))
    yield from told("fp8-forward-only", when=count and not rank.ran_low, count=count)


def steps_without_gemms(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Steps that launched no GEMM while others did: they train nothing."""
    steps = rank.trace.steps
    with_gemms = {row.step for row in rank.trace.gemms}
    without = []
    for index, step in enumerate(steps):
        if step.whole and index not in with_gemms:
            without.append(str(step.number))
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


# ---- all ranks together


def other_runs(ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks whose files are of another run than the rest, by world size and time."""
    known = [rank for rank in ranks if rank.trace.began_ns or rank.trace.world_size]
    newest = _newest_run(known)
    worlds = Counter(rank.trace.world_size for rank in newest)
    usual = max(worlds, key=worlds.__getitem__, default=None)
    others = []
    for rank in known:
        if rank not in newest or rank.trace.world_size != usual:
            others.append(rank)
    return others


def _newest_run(ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks that began last, without a pause that parts two runs."""
    newest: list[RankEvidence] = []
    reached_ns = 0
    for rank in sorted(ranks, key=_began_ns):
        if _began_ns(rank) > reached_ns + ANOTHER_RUN_NS:
            newest = []
        newest.append(rank)
        first, last = rank.trace.bounds or (0, 0)
        reached_ns = max(reached_ns, _began_ns(rank) + last - first)
    return newest


def _began_ns(rank: RankEvidence) -> int:
    return rank.trace.began_ns or 0


def ranks_of_other_runs(
    ranks: Sequence[RankEvidence], _: Requested
) -> Iterator[Finding]:
    """Files of another run among those of this one: a folder that was used again."""
    others = other_runs(ranks)
    worlds = set()
    numbers: list[int] = []
    for rank in others:
        worlds.add(str(rank.trace.world_size or "unknown"))
        numbers += rank.numbers
    yield from told(
        "rank-of-another-run",
        when=others,
        labels=listed([rank.label for rank in others]),
        world=" or ".join(sorted(worlds)),
        ranks=numbers,
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

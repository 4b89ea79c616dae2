"""The window of a trace: what was launched in it."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

from msgspec.structs import replace

from fp8verify.analysis import communication, timeline
from fp8verify.analysis.casts import fed_gemms
from fp8verify.analysis.communication import CollectiveTotal
from fp8verify.analysis.gemms import (
    GemmRow,
    GemmTotals,
    Survey,
    classify_kernels,
    gemm_totals,
    label_gemms,
    survey,
)
from fp8verify.analysis.kinds import GemmLabel, Kinds
from fp8verify.analysis.layers import name_layers
from fp8verify.analysis.purpose import is_update, proves_training, runs_backward
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.timeline import Buckets, Timeline, bucket_times, with_steps
from fp8verify.capture.schema import RankMeta
from fp8verify.trace import Step, Trace
from fp8verify.trace.tables import Kernels, Launch


def within_window(trace: Trace) -> Trace:
    """Return the trace without the kernels that were launched outside of its window.

    A profiler that starts while the GPU works records the end of what came before: kernels whose
    launch is not in the trace, or lies before the first step. Where several ranks are recorded
    together, the recording also lasts longer than the steps of each.
    """
    columns = trace.kernels
    if not len(columns) or min(columns.step) >= 0 or (begin := _begin(trace)) is None:
        return trace
    inside = [
        step >= 0
        or (start >= begin and not (trace.steps_bound and launch != Launch.NONE))
        or (not trace.steps and launch != Launch.NONE)
        for start, step, launch in zip(columns.start_ns, columns.step, columns.launch, strict=True)
    ]
    if all(inside):
        return trace
    health = replace(trace.health, kernels_before_window=inside.count(False))
    return replace(trace, kernels=_kept(columns, inside), health=health)


def _begin(trace: Trace) -> int | None:
    """Return when the first kernel began that was launched in the window; None if that is open."""
    columns = trace.kernels
    if trace.steps:
        known = map((0).__le__, columns.step)
    else:
        known = map(Launch.NONE.__ne__, columns.launch)
    return min(compress(columns.start_ns, known), default=None)


def _kept(columns: Kernels, inside: list[bool]) -> Kernels:
    kept: dict[str, array[Any]] = {}
    for name in columns.__struct_fields__:
        values: array[Any] = getattr(columns, name)
        kept[name] = array(values.typecode, compress(values, inside))
    return Kernels(**kept)


def gather(trace: Trace, meta: RankMeta | None = None, *, layers: bool = False) -> RankEvidence:
    """Classify the kernels of a trace and add them up.

    Args:
        trace: one window of the rank.
        meta: what the runner noted of it.
        layers: add them up by layer as well; the trace was read so.
    """
    trace = within_window(trace)
    kinds = classify_kernels(trace)
    sums = _add_up(trace, kinds)
    labels, found, gemm, by_step = sums.gemms
    return RankEvidence(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        gpu=trace.gpu,
        compute_capability=trace.compute_capability,
        health=trace.health,
        copies=trace.copies,
        process=trace.process,
        bounds=sums.bounds,
        began_ns=trace.base_ns + sums.bounds[0] if trace.base_ns and sums.bounds else None,
        collectives=sums.collectives,
        timeline=sums.timeline,
        buckets=sums.buckets,
        survey=found,
        gemm=gemm,
        steps=by_step,
        meta=meta,
        named=name_layers(trace, kinds, labels) if layers else None,
        fed=0 if _any_low(found) else fed_gemms(trace, kinds, labels),
        backward=runs_backward(kinds.kinds, labels),
        updates=any(map(is_update, kinds.kinds)),
        trains=any(map(proves_training, kinds.kinds)),
        remarks=tuple(trace.remarks),
    )


class _Gemms(NamedTuple):
    """The GEMMs of a rank: each one, all of them summed up, and those of each step."""

    labels: list[GemmLabel]
    survey: Survey
    gemm: GemmTotals
    steps: tuple[tuple[Step, GemmTotals], ...]


class _Sums(NamedTuple):
    """What is added up from the kernels of a rank, each field without regard to the others."""

    timeline: Timeline
    buckets: tuple[Buckets, ...]
    collectives: tuple[CollectiveTotal, ...]
    bounds: tuple[int, int] | None
    gemms: _Gemms


def _add_up(trace: Trace, kinds: Kinds) -> _Sums:
    roles = kinds.roles()
    measured, buckets = timeline.measure(trace, roles), bucket_times(trace, kinds)
    bounds, steps = _bounds(trace), timeline.step_bounds(trace)
    return _Sums(
        measured._replace(steps=timeline.step_times(steps)),
        (with_steps(buckets, trace, steps, bounds[0]),) if buckets and bounds else (),
        communication.collective_totals(trace, roles),
        bounds,
        _gemms(trace, kinds),
    )


def _gemms(trace: Trace, kinds: Kinds) -> _Gemms:
    labels = label_gemms(trace, kinds)
    found = survey(trace, kinds, labels)
    return _Gemms(labels, found, gemm_totals(found.gemms), _by_step(trace, found.gemms))


def _by_step(trace: Trace, rows: Sequence[GemmRow]) -> tuple[tuple[Step, GemmTotals], ...]:
    members: dict[int, list[GemmRow]] = defaultdict(list)
    for row in rows:
        members[row.step].append(row)
    return tuple((step, gemm_totals(members[i])) for i, step in enumerate(trace.steps))


def _bounds(trace: Trace) -> tuple[int, int] | None:
    columns = trace.kernels
    if not len(columns):
        return None
    ends = map(int.__add__, columns.start_ns, columns.duration_ns)
    return min(columns.start_ns), max(ends)


def _any_low(found: Survey) -> bool:
    return any(row.precision.is_low for row in found.gemms)

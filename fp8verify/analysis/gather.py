"""From a trace of one rank to its evidence."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import compress
from operator import add
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fp8verify.analysis import timeline
from fp8verify.analysis.casts import fed_gemms
from fp8verify.analysis.communication import collective_totals
from fp8verify.analysis.gemms import classify_kernels, label_gemms, survey
from fp8verify.analysis.kinds import Gemm, GemmShape, Kinds
from fp8verify.analysis.layers import name_casts
from fp8verify.analysis.library_log import hear_library, remark
from fp8verify.analysis.purpose import (
    is_node_of_gemms,
    is_of_optimizer,
    is_update,
    proves_training,
    runs_backward,
)
from fp8verify.analysis.rank import RankEvidence
from fp8verify.trace import Step, Trace
from fp8verify.trace.contexts import BACKWARD
from fp8verify.trace.tables import Kernels, Launch

if TYPE_CHECKING:
    from fp8verify.trace.blas_log import Product


def gather(trace: Trace, logged: Sequence[tuple[int, Product]] | None = None) -> RankEvidence:
    """Classify the kernels of a trace, one window of a rank, and add them up.

    Args:
        trace: the window.
        logged: what the BLAS library logged of it, by thread.
    """
    trace = within_window(trace)
    kinds = classify_kernels(trace)
    if not all(step.whole for step in trace.steps):
        trace = _without_cut_steps(trace, kinds)
        kinds = classify_kernels(trace)
    library_log = None if logged is None else hear_library(trace, kinds, logged)
    roles = kinds.roles()
    steps = timeline.step_bounds(trace)
    gemms = label_gemms(trace, kinds)
    if not all(step.whole for step in trace.steps):
        _settle_cut_steps(gemms, trace.steps)
    found = survey(trace, kinds, gemms)
    columns, bounds = trace.kernels, None
    if len(columns):
        ends = map(add, columns.start_ns, columns.duration_ns)
        bounds = (min(columns.start_ns), max(ends))
    any_low = any(row.precision.is_low for row in found.gemms)
    return RankEvidence(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        gpu=trace.gpu,
        compute_capability=trace.compute_capability,
        health=trace.health,
        copies=Counter({name: time_ns for name, (_, time_ns, _) in trace.copies.items()}),
        process=trace.process,
        bounds=bounds,
        began_ns=trace.base_ns + bounds[0] if trace.base_ns and bounds else None,
        collectives=collective_totals(trace, roles),
        timeline=timeline.measure(trace, roles, steps),
        buckets=(timeline.bucket_times(trace, kinds, steps, bounds),)
        if bounds and not trace.in_flops
        else (),
        survey=found,
        steps=tuple(trace.steps),
        casts=name_casts(trace, kinds),
        fed=0 if any_low else fed_gemms(trace, kinds, gemms),
        backward=runs_backward(kinds.kinds, gemms),
        updates=any(map(is_update, kinds.kinds)) or any(map(is_of_optimizer, trace.seen)),
        trains=any(map(proves_training, kinds.kinds)) or any(map(BACKWARD.search, trace.seen)),
        seen_nodes=sum(calls for name, calls in trace.seen.items() if is_node_of_gemms(name)),
        remarks=(*trace.remarks, *(() if library_log is None else (remark(library_log),))),
        in_flops=trace.in_flops,
        library_log=library_log,
    )


def _settle_cut_steps(gemms: Sequence[Gemm], steps: Sequence[Step]) -> None:
    """Let GEMMs of steps whose backward pass may be cut away train as their like in whole steps."""
    trains: dict[tuple[int, GemmShape | None], bool] = defaultdict(bool)
    cut = [gemm for gemm in gemms if gemm.step >= 0 and not steps[gemm.step].whole]
    for gemm in gemms:
        if gemm.step >= 0 and steps[gemm.step].whole:
            trains[gemm.number, gemm.shape] |= gemm.trained
    for gemm in cut:
        gemm.trained = trains.get((gemm.number, gemm.shape), True)


def within_window(trace: Trace) -> Trace:
    """Return the trace without the kernels that were launched outside its window.

    A profiler that starts while the GPU is busy also records earlier kernels: their launch is not
    in the trace, or is before the first step. If several ranks are recorded together, the recording
    is also longer than the steps of each rank.
    """
    columns = trace.kernels
    if not len(columns) or min(columns.step) >= 0:
        return trace
    if trace.steps:
        launched = map((0).__le__, columns.step)
    else:
        launched = map(Launch.NONE.__ne__, columns.launch)
    begin = min(compress(columns.start_ns, launched), default=None)
    if begin is None:
        return trace
    inside = [
        step >= 0 or start >= begin or (not trace.steps and launch != Launch.NONE)
        for start, step, launch in zip(columns.start_ns, columns.step, columns.launch, strict=True)
    ]
    if all(inside):
        return trace
    health = replace(trace.health, kernels_before_window=inside.count(False))
    return replace(_with_kernels(trace, inside), health=health)


def _without_cut_steps(trace: Trace, kinds: Kinds) -> Trace:
    """Return a damaged trace without the kernels of steps that are not whole, if any step is.

    A step that ran GEMMs and none in low precision, as whole steps did, stays: it lacks them.
    """
    low = {
        step
        for number, step in zip(kinds.numbers, trace.kernels.step, strict=True)
        if kinds.kinds[number].classification.role.is_gemm
        and kinds.kinds[number].classification.precision.is_low
    }
    whole = {place for place, step in enumerate(trace.steps) if step.whole}
    if not whole:
        return trace
    stays = not low.isdisjoint(whole)
    return _with_kernels(
        trace, [step in whole or (stays and step not in low) for step in trace.kernels.step]
    )


def _with_kernels(trace: Trace, inside: Sequence[bool]) -> Trace:
    """Return the trace with some of its kernels."""
    columns = trace.kernels
    kept: dict[str, array[Any]] = {}
    for name in columns.__struct_fields__:
        values: array[Any] = getattr(columns, name)
        kept[name] = array(values.typecode, compress(values, inside))
    return replace(trace, kernels=Kernels(**kept))

"""The window of a trace: what was launched in it."""

from __future__ import annotations

from array import array
from itertools import compress
from typing import Any

from msgspec.structs import replace

from fp8verify.trace import Trace
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

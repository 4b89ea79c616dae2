"""When the GPU of a rank was busy: idle time, step times, communication that nothing hides."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import add
from typing import NamedTuple, TypeAlias

from fp8verify.model import Role
from fp8verify.trace import Trace

StepBounds: TypeAlias = "Sequence[tuple[int, int] | None]"


class Timeline(NamedTuple):
    """Times in ns of one rank's GPU; overlapping kernels count once.

    Attributes:
        span: from the start of the first kernel to the end of the last.
        busy: in which any kernel ran.
        communication: in which communication kernels ran.
        exposed: in which nothing but communication kernels ran.
        steps: of each step, from the end of the one before it to the end of its own last kernel,
            so that pauses between steps count; the first begins with its first kernel. None for a
            step without kernels.
    """

    span: int = 0
    busy: int = 0
    communication: int = 0
    exposed: int = 0
    steps: tuple[int | None, ...] = ()


def measure(trace: Trace, roles: Sequence[Role], bounds: StepBounds) -> Timeline:
    """Measure the timeline of a trace.

    Args:
        trace: the kernels.
        roles: those of the kernels, in the file's order.
        bounds: what `step_bounds` returned for the trace.
    """
    columns = trace.kernels
    if not len(columns):
        return Timeline(steps=(None,) * len(trace.steps))
    ends = array("q", map(add, columns.start_ns, columns.duration_ns))
    talks = map(Role.COMMUNICATION.__eq__, roles)
    ranges = sorted(zip(columns.start_ns, ends, talks, strict=True))
    busy = _covered(ranges)
    talking = [found for found in ranges if found[2]]
    computing = _covered([found for found in ranges if not found[2]]) if talking else busy
    return Timeline(
        span=max(ends) - ranges[0][0],
        busy=busy,
        communication=_covered(talking),
        exposed=busy - computing,
        steps=_step_times(bounds),
    )


def join(parts: Sequence[Timeline]) -> Timeline:
    """Add up the timelines of several traces of one rank; what lies between them is not counted."""
    return Timeline(
        span=sum(part.span for part in parts),
        busy=sum(part.busy for part in parts),
        communication=sum(part.communication for part in parts),
        exposed=sum(part.exposed for part in parts),
        steps=tuple(step for part in parts for step in part.steps),
    )


def step_bounds(trace: Trace) -> StepBounds:
    """Return when the first kernel of each step began and its last one ended, in ns."""
    columns = trace.kernels
    first, last = [_NEVER] * len(trace.steps), [-_NEVER] * len(trace.steps)
    for step, start, duration in zip(
        columns.step, columns.start_ns, columns.duration_ns, strict=True
    ):
        if step < 0:
            continue
        if start < first[step]:
            first[step] = start
        if start + duration > last[step]:
            last[step] = start + duration
    return [
        None if begin == _NEVER else (begin, end) for begin, end in zip(first, last, strict=True)
    ]


def _covered(ranges: Sequence[tuple[int, int, bool]]) -> int:
    """Return how long any of the kernels ran, given as (start, end, talks) in order."""
    covered, reached = 0, -_NEVER
    for start, end, _ in ranges:
        if start >= reached:
            covered += end - start
            reached = end
        elif end > reached:
            covered += end - reached
            reached = end
    return covered


def _step_times(bounds: StepBounds) -> tuple[int | None, ...]:
    times: list[int | None] = []
    before: tuple[int, int] | None = None
    for own in bounds:
        begin = None if own is None else own[0] if before is None else before[1]
        # Kernels of two steps may overlap on two streams; no step takes less than nothing.
        times.append(None if own is None or begin is None else max(0, own[1] - begin))
        before = own
    return tuple(times)


_NEVER = 1 << 62

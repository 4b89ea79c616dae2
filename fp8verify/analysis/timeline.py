"""When the GPU of a rank was busy: idle time, step times, communication that nothing hides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import not_
from typing import NamedTuple, TypeAlias

from fp8verify.report.model import Role
from fp8verify.trace import Kernels, Trace

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


def measure(trace: Trace, roles: Sequence[Role]) -> Timeline:
    """Measure the timeline of a trace, without its steps.

    Args:
        trace: the kernels.
        roles: those of the kernels, in the file's order.
    """
    columns = trace.kernels
    if not len(columns):
        return Timeline()
    order = sorted(range(len(columns)), key=columns.start_ns.__getitem__)
    talks = list(map(Role.COMMUNICATION.__eq__, map(roles.__getitem__, order)))
    busy, end = _covered(columns, order)
    talking, _ = _covered(columns, compress(order, talks))
    computing, _ = _covered(columns, compress(order, map(not_, talks))) if talking else (busy, end)
    return Timeline(
        span=end - columns.start_ns[order[0]],
        busy=busy,
        communication=talking,
        exposed=busy - computing,
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


def _covered(columns: Kernels, order: Iterable[int]) -> tuple[int, int]:
    """Return how long any of some kernels ran, and when the last one ended.

    Their places are given in the order of starts.
    """
    starts, durations = columns.start_ns, columns.duration_ns
    covered, reached = 0, -_NEVER
    for place in order:
        start = starts[place]
        end = start + durations[place]
        if start >= reached:
            covered += end - start
            reached = end
        elif end > reached:
            covered += end - reached
            reached = end
    return covered, reached


def step_times(bounds: StepBounds) -> tuple[int | None, ...]:
    """Return `Timeline.steps`."""
    times: list[int | None] = []
    before: tuple[int, int] | None = None
    for own in bounds:
        begin = None if own is None else own[0] if before is None else before[1]
        # Kernels of two steps may overlap on two streams; no step takes less than nothing.
        times.append(None if own is None or begin is None else max(0, own[1] - begin))
        before = own
    return tuple(times)


_NEVER = 1 << 62

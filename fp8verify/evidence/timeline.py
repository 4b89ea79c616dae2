"""When the GPU of a rank was busy: idle time, step times, communication that nothing hides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fp8verify.model import Role
from fp8verify.trace import Trace


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
    """Measure the timeline of a trace; `roles` are those of its kernels, in the file's order."""
    columns = trace.kernels
    order = sorted(range(len(columns)), key=columns.start_ns.__getitem__)
    if not order:
        return Timeline(steps=(None,) * len(trace.steps))
    busy = _covered(trace, order)
    computing = _covered(trace, (i for i in order if roles[i] is not Role.COMMUNICATION))
    talking = _covered(trace, (i for i in order if roles[i] is Role.COMMUNICATION))
    last = max(map(_end, columns.start_ns, columns.duration_ns))
    return Timeline(
        span=last - columns.start_ns[order[0]],
        busy=busy,
        communication=talking,
        exposed=busy - computing,
        steps=_step_times(trace),
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


def _covered(trace: Trace, order: Iterable[int]) -> int:
    """Return how long any of the kernels ran, given in the order of their start."""
    start_ns, duration_ns = trace.kernels.start_ns, trace.kernels.duration_ns
    covered, reached = 0, None
    for place in order:
        start, end = start_ns[place], start_ns[place] + duration_ns[place]
        if reached is None or start >= reached:
            covered += end - start
        elif end > reached:
            covered += end - reached
        reached = end if reached is None else max(reached, end)
    return covered


def _step_times(trace: Trace) -> tuple[int | None, ...]:
    columns = trace.kernels
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, start, duration in zip(
        columns.step, columns.start_ns, columns.duration_ns, strict=True
    ):
        first[step] = min(first.get(step, start), start)
        last[step] = max(last.get(step, start), start + duration)
    times: list[int | None] = []
    for step in range(len(trace.steps)):
        begin = last.get(step - 1, first.get(step)) if step else first.get(step)
        # Kernels of two steps may overlap on two streams; no step takes less than nothing.
        times.append(None if begin is None or step not in last else max(0, last[step] - begin))
    return tuple(times)


def _end(start: int, duration: int) -> int:
    return start + duration

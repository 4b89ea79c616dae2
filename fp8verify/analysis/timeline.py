"""When the GPU of a rank was busy: idle time, step times, exposed communication.

Also the buckets of the timeline chart, and the mean of step times with its uncertainty.
Steps that took far longer than usual (compilation, a checkpoint, an evaluation) are left out.
Steps of one window, and neighboring steps of a long series, are correlated: `effective` is the
equivalent number of independent steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress, pairwise
from operator import not_
from statistics import fmean, median, variance
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import Kinds
from fp8verify.kernels import Classification
from fp8verify.report.model.parts import StepStatistics, TimelineReport
from fp8verify.terms import Precision, Role
from fp8verify.thresholds import FAR, LONG_SERIES, RARE
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
            so pauses between steps count; the first begins with its first kernel. None for a
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
        roles: the roles of the kernels, in the file's order.
        bounds: start and end of each step's kernels.
    """
    columns = trace.kernels
    if not len(columns):
        return Timeline(steps=step_times(bounds))
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
        steps=step_times(bounds),
    )


def join(parts: Sequence[Timeline]) -> Timeline:
    """Add up the timelines of several traces of one rank; time between them is not counted."""
    steps = tuple(step for part in parts for step in part.steps)
    span, busy, communication, exposed = map(sum, zip(*(part[:4] for part in parts), strict=True))
    return Timeline(span, busy, communication, exposed, steps)


def step_bounds(trace: Trace) -> StepBounds:
    """Return when the first kernel of each step began and its last one ended, in ns."""
    columns = trace.kernels
    first, last = [_NEVER] * len(trace.steps), [-_NEVER] * len(trace.steps)
    launches = zip(columns.step, columns.start_ns, columns.duration_ns, strict=True)
    for step, start, duration in launches:
        if step < 0:
            continue
        if start < first[step]:
            first[step] = start
        if start + duration > last[step]:
            last[step] = start + duration
    return [None if own[0] == _NEVER else own for own in zip(first, last, strict=True)]


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


BUCKETS = 240
_FP8, _HIGH, _UNKNOWN, _REST = range(4)


def bucket_times(
    trace: Trace, kinds: Kinds, bounds: StepBounds, whole: tuple[int, int]
) -> TimelineReport:
    """Spread the kernels of a trace over `BUCKETS` buckets of equal length.

    Args:
        trace: the kernels.
        kinds: theirs.
        bounds: when the kernels of each step ran.
        whole: when the first kernel began and the last one ended.
    """
    begin, end = whole
    width = max(1, -(-(end - begin) // BUCKETS))
    # Beyond the last bucket is at most an empty kernel at the very end.
    times = [[0] * (BUCKETS + 1) for _ in range(4)]
    rows = [times[_class_of(kind.classification)] for kind in kinds.rows]
    columns = trace.kernels
    launches = zip(kinds.ids, columns.start_ns, columns.duration_ns, strict=True)
    for number, start, duration in launches:
        row, (place, offset) = rows[number], divmod(start - begin, width)
        while offset + duration > width:  # cut at the ends of buckets
            row[place] += width - offset
            place, offset, duration = place + 1, 0, duration - (width - offset)
        row[place] += duration
    # A picture needs one decimal.
    fp8, high, unknown, rest = (tuple(round(ns / 1000, 1) for ns in row[:BUCKETS]) for row in times)
    return TimelineReport(
        bucket_us=width / 1000,
        fp8_us=fp8,
        other_precision_us=high,
        unknown_precision_us=unknown,
        rest_us=rest,
        steps=tuple(
            (step.number, (own[0] - begin) / 1000, (own[1] - begin) / 1000)
            for step, own in zip(trace.steps, bounds, strict=True)
            if own is not None
        ),
    )


def _class_of(found: Classification) -> int:
    if not found.role.is_gemm:
        return _REST
    if found.precision is Precision.UNKNOWN:
        return _UNKNOWN
    return _FP8 if found.precision.is_fp8 else _HIGH


def step_statistics(
    windows: Sequence[Sequence[float]], count: int | None = None
) -> StepStatistics | None:
    """Return the mean of step times and its uncertainty; None without steps.

    Args:
        windows: the times of each window's steps, in any unit of time.
        count: total number of steps, if the times are a sample of them.
    """
    every = [time for window in windows for time in window]
    if not every:
        return None
    usual = median(every)
    far = [time for time in every if time > FAR * usual]
    left_out = len(far) if len(far) <= RARE * len(every) else 0
    most = FAR * usual if left_out else max(every)
    kept = [[time for time in window if time <= most] for window in windows]
    kept = [window for window in kept if window]
    times = [*chain.from_iterable(kept)]
    return StepStatistics(
        count=(count or len(every)) - left_out,
        left_out=left_out,
        mean_us=fmean(times),
        deviation_us=variance(times) ** 0.5 if len(times) > 1 else None,
        effective=_effective(kept, len(times)),
        median_us=median(times),
        min_us=min(times),
        max_us=max(times),
    )


def _effective(windows: Sequence[Sequence[float]], count: int) -> float:
    """Return the equivalent number of independent steps."""
    independent = float(count)
    if len(windows) > 1 and count > len(windows):
        independent = count / _design_effect(windows, count)
    elif count >= LONG_SERIES:
        alike = max(0.0, _correlation(windows[0]))
        independent = count * (1 - alike) / (1 + alike)
    return max(1.0, independent)


def _design_effect(windows: Sequence[Sequence[float]], count: int) -> float:
    """Return by how much windows inflate the variance of the mean: 1 + (size - 1) x correlation."""
    means = [fmean(window) for window in windows]
    whole = fmean(chain.from_iterable(windows))
    between = sum(len(w) * (m - whole) ** 2 for w, m in zip(windows, means, strict=True))
    between /= len(windows) - 1
    inside = sum((time - m) ** 2 for w, m in zip(windows, means, strict=True) for time in w)
    inside /= count - len(windows)
    size = count / len(windows)
    spread = between + (size - 1) * inside
    alike = (between - inside) / spread if spread else 0.0
    return 1 + (size - 1) * max(0.0, alike)


def _correlation(times: Sequence[float]) -> float:
    """Return how much neighbors resemble each other, up to 0.9 (lag-1 autocorrelation)."""
    whole = fmean(times)
    moves = sum((a - whole) * (b - whole) for a, b in pairwise(times))
    spread = sum((time - whole) ** 2 for time in times)
    if not spread:
        return 0.0
    correlation = moves / spread
    # About the mean of the same few steps it comes out too low (Marriott and Pope 1954).
    return min(0.9, correlation + (1 + 2 * max(0.0, correlation)) / len(times))

"""When the GPU of a rank was busy: idle time, step times, communication and what it moved.

Also the buckets of the timeline chart, and the mean of step times with its uncertainty.
Steps that took far longer than usual (compilation, a checkpoint, an evaluation) are left out.
Steps of one window, and neighboring steps of a long series, are correlated: `effective` is the
equivalent number of independent steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from statistics import fmean, median, variance
from typing import NamedTuple, TypeAlias

from msgspec.structs import asdict

from fp8verify import thresholds as limits
from fp8verify.analysis.gemms import micros, rounded
from fp8verify.analysis.kinds import Kind, Kinds, grouped
from fp8verify.model.costs import CollectiveRow, CommunicationReport, WeightGather
from fp8verify.model.steps import StepStatistics, TimelineReport
from fp8verify.terms import Collective, Precision, Role
from fp8verify.thresholds import LEAST_FP8_BYTES, MOST_BYTES
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


def measure(trace: Trace, kinds: Kinds, bounds: StepBounds) -> Timeline:
    """Measure the timeline of a trace.

    Args:
        trace: the kernels.
        kinds: theirs.
        bounds: start and end of each step's kernels.
    """
    columns = trace.kernels
    order = kinds.started(lambda _: True)
    begin = columns.start_ns[order[0]] if order else -_NEVER
    busy, end = computing, _ = _covered(columns, order)
    talking, _ = _covered(columns, kinds.started(_communicates))
    if talking:
        computing, _ = _covered(
            columns, kinds.started(lambda kind: not _communicates(kind))
        )
    # Kernels of two steps may overlap on two streams; no step takes less than nothing.
    steps = tuple(
        None
        if own is None
        else max(0, own[1] - (own[0] if before is None else before[1]))
        for before, own in pairwise([None, *bounds])
    )
    return Timeline(end - begin, busy, talking, busy - computing, steps)


def _communicates(kind: Kind) -> bool:
    return kind.classification.role is Role.COMMUNICATION


def join(windows: Sequence[Timeline]) -> Timeline:
    """Add up the timelines of several traces of one rank; time between them is not counted."""
    steps = tuple(step for window in windows for step in window.steps)
    figures = zip(*(window[:4] for window in windows), strict=True)
    span, busy, communication, exposed = map(sum, figures)
    return Timeline(span, busy, communication, exposed, steps)


def step_bounds(trace: Trace) -> StepBounds:
    """Return when the first kernel of each step began and its last one ended, in ns."""
    bounds: list[tuple[int, int] | None] = [None] * len(trace.steps)
    columns = trace.kernels
    launches = zip(columns.step, columns.start_ns, columns.duration_ns, strict=True)
    for step, start, time_ns in launches:
        if step >= 0:
            first, last = bounds[step] or (start, start)
            bounds[step] = min(first, start), max(last, start + time_ns)
    return bounds


def _covered(columns: Kernels, order: Iterable[int]) -> tuple[int, int]:
    """Return how long any of some kernels ran, and when the last one ended.

    Their places are given in the order of starts.
    """
    starts = columns.start_ns
    durations = columns.duration_ns
    covered = 0
    reached = -_NEVER
    for place in order:
        start = starts[place]
        end = start + durations[place]
        if end > reached:
            covered += end - (max(reached, start))
            reached = end
    return covered, reached


_NEVER = 1 << 62


BUCKETS = 240


def bucket_times(
    trace: Trace, kinds: Kinds, steps: StepBounds, span: int
) -> TimelineReport:
    """Spread the kernels of a trace over `BUCKETS` buckets of equal length.

    Args:
        trace: the kernels.
        kinds: theirs.
        steps: when the kernels of each step ran.
        span: from the start of the first kernel to the end of the last.
    """
    columns = trace.kernels
    width = max(1, -(-span // BUCKETS))
    begin = min(columns.start_ns)
    # Beyond the last bucket is at most an empty kernel at the very end.
    times = [[0] * (BUCKETS + 1) for _ in range(4)]
    rows = [times[_row_of(kind)] for kind in kinds.rows]
    launches = zip(kinds.ids, columns.start_ns, columns.duration_ns, strict=True)
    for number, start, duration in launches:
        row, (place, offset) = rows[number], divmod(start - begin, width)
        while offset + duration > width:  # cut at the ends of buckets
            row[place] += width - offset
            place, offset, duration = place + 1, 0, duration - (width - offset)
        row[place] += duration
    # A picture needs one decimal.
    fp8, high, unknown, rest = (
        tuple(round(ns / 1000, 1) for ns in row[:BUCKETS]) for row in times
    )
    return TimelineReport(
        bucket_us=width / 1000,
        fp8_us=fp8,
        other_precision_us=high,
        unknown_precision_us=unknown,
        rest_us=rest,
        steps=tuple(
            (step.number, (own[0] - begin) / 1000, (own[1] - begin) / 1000)
            for step, own in zip(trace.steps, steps, strict=True)
            if own is not None
        ),
    )


def _row_of(kind: Kind) -> int:
    """Return where the time of a kernel counts: FP8, another, unknown precision, or no GEMM."""
    precision = kind.classification.precision
    of_gemm = 0 if precision.is_fp8 else 2 if precision is Precision.UNKNOWN else 1
    return of_gemm if kind.is_gemm else 3


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
    far = [time for time in every if time > limits.FAR * usual]
    left_out = len(far) if len(far) <= limits.RARE * len(every) else 0
    most = limits.FAR * usual if left_out else max(every)
    usually = ([time for time in window if time <= most] for window in windows)
    kept = list(filter(None, usually))
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
    elif count >= limits.LONG_SERIES:
        alike = max(0.0, _correlation(windows[0]))
        independent = count * (1 - alike) / (1 + alike)
    return max(1.0, independent)


def _design_effect(windows: Sequence[Sequence[float]], count: int) -> float:
    """Return by how much windows inflate the variance of the mean: 1 + (size - 1) x correlation."""
    means = [fmean(window) for window in windows]
    whole = fmean(chain.from_iterable(windows))
    between = sum(
        len(w) * (m - whole) ** 2 for w, m in zip(windows, means, strict=True)
    )
    between /= len(windows) - 1
    inside = sum(
        (time - m) ** 2 for w, m in zip(windows, means, strict=True) for time in w
    )
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


# ---- what collectives moved

# Bytes of an element by NCCL's name for its type (c10::ScalarType, torch 2.11).
ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(
        ("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1
    ),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
# NCCL has no 8-bit float that FSDP2 uses: torchao's FP8 weights travel as bytes (measured on an
# H200, torch 2.11, torchao 0.17).
_BYTES = ("Byte", "Char")
_GATHERS = ("allgather", "_allgather_base", "all_gather")
_SCATTERS = ("reduce_scatter", "_reduce_scatter_base", "reducescatter")


class CollectiveTotal(Collective, frozen=True, kw_only=True):
    """All collectives of one kind on a rank; `in_elements` and `out_elements` are per call.

    Without a record the name is the kernel's, the type is "" and the sizes are 0.
    """

    calls: int
    time_ns: int

    def bytes_of(self, elements: int) -> int:
        """Bytes of this number of elements in all calls; 0 if the type is not known."""
        return elements * self.calls * ELEMENT_BYTES.get(self.dtype, 0)

    def has_name(self, names: tuple[str, ...]) -> bool:
        """Whether its name begins with one of these."""
        return self.name.lower().startswith(names)


def collective_totals(trace: Trace, kinds: Kinds) -> tuple[CollectiveTotal, ...]:
    """Add up the communication kernels of a trace by what they moved."""
    columns = trace.kernels
    talks = list(map(_communicates, kinds.rows))
    calls = Counter[Collective]()
    times = Counter[Collective]()
    for place, (number, collective) in enumerate(
        zip(kinds.ids, columns.collective, strict=True)
    ):
        if collective >= 0 or talks[number]:
            name = trace.names[columns.name[place]]
            known = trace.collectives[collective] if collective >= 0 else _unknown(name)
            calls[known] += 1
            times[known] += columns.duration_ns[place]
    totals = ((known, calls[known], time_ns) for known, time_ns in times.items())
    return tuple(
        CollectiveTotal(**asdict(known), calls=n, time_ns=ns) for known, n, ns in totals
    )


def _unknown(kernel: str) -> Collective:
    name = kernel.partition("(")[0][:80]
    return Collective(name=name, dtype="", in_elements=0, out_elements=0, group_size=0)


def communication_report(
    totals: Sequence[CollectiveTotal], timeline: Timeline
) -> CommunicationReport | None:
    """Return the collectives of a rank, the longest first; None if there are none."""
    if not totals:
        return None
    merged = grouped(totals, lambda total: (total.name, total.dtype, total.group_size))
    rows = [
        CollectiveRow(
            name=name,
            dtype=dtype or None,
            group_size=group_size or None,
            calls=sum(t.calls for t in same),
            bytes_in=sum(t.bytes_of(t.in_elements) for t in same) if known else None,
            bytes_out=sum(t.bytes_of(t.out_elements) for t in same) if known else None,
            time_us=micros(sum(t.time_ns for t in same)),
        )
        for (name, dtype, group_size), same in merged.items()
        for known in (dtype in ELEMENT_BYTES,)
    ]
    gathers = weight_gathers(totals)
    return CommunicationReport(
        time_us=micros(timeline.communication),
        exposed_us=micros(timeline.exposed),
        collectives=tuple(sorted(rows, key=lambda row: -row.time_us)),
        weight_gather=gathers
        if gathers.eight_bit_bytes or gathers.wider_bytes
        else None,
    )


def weight_gathers(totals: Sequence[CollectiveTotal]) -> WeightGather:
    """Add up the all-gathers of more than scalars, and compare bytes with the gradients reduced.

    FSDP2 also sends groups of mixed types as bytes, so the element type alone proves nothing:
    it is FP8 only if there is one byte per parameter.
    """
    gathers = [
        t
        for t in totals
        if t.has_name(_GATHERS) and t.in_elements > limits.FEW_ELEMENTS
    ]
    eight_bit = [t for t in gathers if ELEMENT_BYTES.get(t.dtype) == 1]
    narrow, every = (
        sum(t.bytes_of(t.in_elements) for t in some) for some in (eight_bit, gathers)
    )
    gradients = [
        t.in_elements for t in totals if t.has_name(_SCATTERS) and t.in_elements
    ]
    # Bytes per parameter of the group whose size fits: between FP8 and two FP32.
    ratios = ([t.out_elements / count for count in gradients] for t in eight_bit)
    fitting = (
        [ratio for ratio in of_one if LEAST_FP8_BYTES <= ratio <= MOST_BYTES]
        for of_one in ratios
    )
    nearest = (
        min(fit, key=lambda ratio: abs(ratio - round(ratio))) for fit in fitting if fit
    )
    is_typed = any(total.dtype not in _BYTES for total in eight_bit)
    per_parameter = 1.0 if is_typed else min(nearest, default=None)
    least = limits.LEAST_FP8_BYTES
    most = limits.MOST_FP8_BYTES
    fp8 = None if per_parameter is None else least <= per_parameter < most
    return WeightGather(
        fp8=fp8 if narrow else False,
        eight_bit_bytes=narrow,
        wider_bytes=every - narrow,
        bytes_per_parameter=rounded(per_parameter),
    )


def shards_gradients(totals: Sequence[CollectiveTotal]) -> bool:
    """Whether gradients are reduced to shards, as FSDP does and DDP does not."""
    return any(total.has_name(_SCATTERS) for total in totals)

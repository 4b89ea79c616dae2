"""When the GPU of a rank was busy: idle time, step times, communication and what it moved.

Also the buckets of the timeline chart, and the mean of step times with its uncertainty.
Steps that took far longer than usual (compilation, a checkpoint, an evaluation) are left out.
Steps of one window, and neighboring steps of a long series, are correlated: `effective` is the
equivalent number of independent steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
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
        busy: in which any kernel ran; copies are none.
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


def measure(
    trace: Trace,
    kinds: Kinds,
    bounds: StepBounds,
) -> Timeline:
    """Measure the timeline of a trace.

    Args:
        trace: the kernels.
        kinds: theirs.
        bounds: start and end of each step's kernels.
    """
    columns = trace.kernels
    order = kinds.started(lambda _: True)
    begin = columns.start_ns[order[0]] if order else -_NEVER
    busy, end = _covered(columns, order)
    computing = busy
    communication, _ = _covered(columns, kinds.started(_communicates))
    if communication:
        computing, _ = _covered(columns, kinds.started(_computes))
    return Timeline(
        span=end - begin,
        busy=busy,
        communication=communication,
        exposed=busy - computing,
        steps=_step_times(bounds),
    )


def _step_times(bounds: StepBounds) -> tuple[int | None, ...]:
    """Return how long each step took, from the end of the one before it."""
    times: list[int | None] = []
    for before, own in pairwise([None, *bounds]):
        if own is None:
            times.append(None)
            continue
        first, last = own
        begin = first if before is None else before[1]
        # Kernels of two steps may overlap on two streams; no step takes less than nothing.
        times.append(max(0, last - begin))
    return tuple(times)


def _communicates(kind: Kind) -> bool:
    return kind.role is Role.COMMUNICATION


def _computes(kind: Kind) -> bool:
    return not _communicates(kind)


def join(windows: Sequence[Timeline]) -> Timeline:
    """Add up the timelines of several traces of one rank; time between them is not counted."""
    span = 0
    busy = 0
    communication = 0
    exposed = 0
    steps: list[int | None] = []
    for window in windows:
        span += window.span
        busy += window.busy
        communication += window.communication
        exposed += window.exposed
        steps += window.steps
    return Timeline(
        span=span,
        busy=busy,
        communication=communication,
        exposed=exposed,
        steps=tuple(steps),
    )


def step_bounds(trace: Trace) -> StepBounds:
    """Return when the first kernel of each step began and its last one ended, in ns."""
    columns = trace.kernels
    begins = [_NEVER] * len(trace.steps)
    ends = [-_NEVER] * len(trace.steps)
    launches = zip(columns.step, columns.start_ns, columns.duration_ns, strict=True)
    for step, start, time_ns in launches:
        if step < 0:
            continue
        if start < begins[step]:
            begins[step] = start
        if start + time_ns > ends[step]:
            ends[step] = start + time_ns
    bounds: list[tuple[int, int] | None] = []
    for begin, end in zip(begins, ends, strict=True):
        bounds.append(None if begin == _NEVER else (begin, end))
    return bounds


def _covered(columns: Kernels, order: Iterable[int]) -> tuple[int, int]:
    """Return how long any of some kernels ran, and when the last one ended.

    Their indices are given in the order of starts.
    """
    starts = columns.start_ns
    durations = columns.duration_ns
    covered = 0
    reached = -_NEVER
    for index in order:
        start = starts[index]
        end = start + durations[index]
        if start >= reached:
            covered += end - start
            reached = end
        elif end > reached:
            covered += end - reached
            reached = end
    return covered, reached


_NEVER = 1 << 62


BUCKETS = 240


def bucket_times(
    trace: Trace,
    kinds: Kinds,
    steps: StepBounds,
    span: int,
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
    times = {what: [0] * (BUCKETS + 1) for what in _Bucket}
    rows = [times[_bucket_of(kind)] for kind in kinds.rows]
    launches = zip(kinds.ids, columns.start_ns, columns.duration_ns, strict=True)
    for number, start, duration in launches:
        row = rows[number]
        bucket, offset = divmod(start - begin, width)
        while offset + duration > width:  # cut at the ends of buckets
            row[bucket] += width - offset
            duration -= width - offset
            bucket += 1
            offset = 0
        row[bucket] += duration
    bounds: list[tuple[int, float, float]] = []
    for step, own in zip(trace.steps, steps, strict=True):
        if own is not None:
            first, last = own
            bounds.append((step.number, (first - begin) / 1000, (last - begin) / 1000))
    return TimelineReport(
        bucket_us=width / 1000,
        fp8_us=_shown(times[_Bucket.FP8]),
        other_precision_us=_shown(times[_Bucket.OTHER_PRECISION]),
        unknown_precision_us=_shown(times[_Bucket.UNKNOWN_PRECISION]),
        rest_us=_shown(times[_Bucket.REST]),
        steps=tuple(bounds),
    )


class _Bucket(Enum):
    """What the time of a kernel counts as."""

    FP8 = "fp8"
    OTHER_PRECISION = "other precision"
    UNKNOWN_PRECISION = "unknown precision"
    REST = "no GEMM"


def _bucket_of(kind: Kind) -> _Bucket:
    if not kind.is_gemm:
        return _Bucket.REST
    if kind.precision.is_fp8:
        return _Bucket.FP8
    if kind.precision is Precision.UNKNOWN:
        return _Bucket.UNKNOWN_PRECISION
    return _Bucket.OTHER_PRECISION


def _shown(times_ns: Sequence[int]) -> tuple[float, ...]:
    """Return the µs of buckets with one decimal, which a picture needs."""
    return tuple(round(ns / 1000, 1) for ns in times_ns[:BUCKETS])


def step_statistics(
    windows: Sequence[Sequence[float]],
    count: int | None = None,
) -> StepStatistics | None:
    """Return the mean of step times and its uncertainty; None without steps.

    Args:
        windows: the times of each window's steps, in any unit of time.
        count: total number of steps, if the times are a sample of them.
    """
    every = list(chain.from_iterable(windows))
    if not every:
        return None
    usual = median(every)
    most = limits.FAR * usual
    left_out = sum(time > most for time in every)
    if left_out > limits.RARE * len(every):
        left_out = 0
    usual_windows = []
    for window in windows:
        times = list(window)
        if left_out:
            times = [time for time in window if time <= most]
        if times:
            usual_windows.append(times)
    counted = list(chain.from_iterable(usual_windows))
    return StepStatistics(
        count=(count or len(every)) - left_out,
        left_out=left_out,
        mean_us=fmean(counted),
        deviation_us=variance(counted) ** 0.5 if len(counted) > 1 else None,
        effective=_effective(usual_windows, len(counted)),
        median_us=median(counted),
        min_us=min(counted),
        max_us=max(counted),
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
    whole = fmean(chain.from_iterable(windows))
    between = []
    inside = []
    for window in windows:
        mean = fmean(window)
        between.append(len(window) * (mean - whole) ** 2)
        inside += [(time - mean) ** 2 for time in window]
    between_windows = sum(between) / (len(windows) - 1)
    inside_windows = sum(inside) / (count - len(windows))
    size = count / len(windows)
    spread = between_windows + (size - 1) * inside_windows
    if not spread:
        return 1.0
    alike = (between_windows - inside_windows) / spread
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
    communicates = list(map(_communicates, kinds.rows))
    calls = Counter[Collective]()
    times = Counter[Collective]()
    launches = zip(kinds.ids, columns.collective, strict=True)
    for index, (number, collective) in enumerate(launches):
        if collective >= 0:
            known = trace.collectives[collective]
        elif communicates[number]:
            known = _unknown(trace.names[columns.name[index]])
        else:
            continue
        calls[known] += 1
        times[known] += columns.duration_ns[index]
    totals = []
    for known, time_ns in times.items():
        totals.append(
            CollectiveTotal(
                **asdict(known),
                calls=calls[known],
                time_ns=time_ns,
            )
        )
    return tuple(totals)


def _unknown(kernel: str) -> Collective:
    name = kernel.partition("(")[0][:80]
    return Collective(
        name=name,
        dtype="",
        in_elements=0,
        out_elements=0,
        group_size=0,
    )


def communication_report(
    totals: Sequence[CollectiveTotal],
    timeline: Timeline,
) -> CommunicationReport | None:
    """Return the collectives of a rank, the longest first; None if there are none."""
    if not totals:
        return None
    merged = grouped(totals, lambda total: (total.name, total.dtype, total.group_size))
    rows = [_collective_row(same) for same in merged.values()]
    rows.sort(key=lambda row: -row.time_us)
    gathers = weight_gathers(totals)
    any_gathered = gathers.eight_bit_bytes or gathers.wider_bytes
    return CommunicationReport(
        time_us=micros(timeline.communication),
        exposed_us=micros(timeline.exposed),
        collectives=tuple(rows),
        weight_gather=gathers if any_gathered else None,
    )


def _collective_row(same: Sequence[CollectiveTotal]) -> CollectiveRow:
    """Return the row of collectives of one name, type and size of group."""
    calls = 0
    time_ns = 0
    bytes_in = 0
    bytes_out = 0
    for total in same:
        calls += total.calls
        time_ns += total.time_ns
        bytes_in += total.bytes_of(total.in_elements)
        bytes_out += total.bytes_of(total.out_elements)
    first = same[0]
    has_sizes = first.dtype in ELEMENT_BYTES
    return CollectiveRow(
        name=first.name,
        dtype=first.dtype or None,
        group_size=first.group_size or None,
        calls=calls,
        bytes_in=bytes_in if has_sizes else None,
        bytes_out=bytes_out if has_sizes else None,
        time_us=micros(time_ns),
    )


def weight_gathers(totals: Sequence[CollectiveTotal]) -> WeightGather:
    """Add up the all-gathers of more than scalars, and compare bytes with the gradients reduced.

    FSDP2 also sends groups of mixed types as bytes, so the element type alone proves nothing:
    it is FP8 only if there is one byte per parameter.
    """
    eight_bit = []
    eight_bit_bytes = 0
    wider_bytes = 0
    for total in totals:
        if not total.has_name(_GATHERS) or total.in_elements <= limits.FEW_ELEMENTS:
            continue
        moved = total.bytes_of(total.in_elements)
        if ELEMENT_BYTES.get(total.dtype) == 1:
            eight_bit.append(total)
            eight_bit_bytes += moved
        else:
            wider_bytes += moved
    per_parameter = _bytes_per_parameter(eight_bit, totals)
    fp8: bool | None = False
    if eight_bit_bytes:
        fp8 = None
        if per_parameter is not None:
            fp8 = LEAST_FP8_BYTES <= per_parameter < limits.MOST_FP8_BYTES
    return WeightGather(
        fp8=fp8,
        eight_bit_bytes=eight_bit_bytes,
        wider_bytes=wider_bytes,
        bytes_per_parameter=rounded(per_parameter),
    )


def _bytes_per_parameter(
    gathers: Sequence[CollectiveTotal],
    totals: Sequence[CollectiveTotal],
) -> float | None:
    """Return the bytes that gathers of bytes move per parameter; None if nothing tells.

    These are of the group whose size fits the gradients: between FP8 and two FP32.
    """
    if any(total.dtype not in _BYTES for total in gathers):
        return 1.0
    gradients = []
    for total in totals:
        if total.has_name(_SCATTERS) and total.in_elements:
            gradients.append(total.in_elements)
    nearest = []
    for total in gathers:
        ratios = [total.out_elements / count for count in gradients]
        fitting = [ratio for ratio in ratios if LEAST_FP8_BYTES <= ratio <= MOST_BYTES]
        if fitting:
            nearest.append(min(fitting, key=_distance_from_whole))
    return min(nearest, default=None)


def _distance_from_whole(ratio: float) -> float:
    return abs(ratio - round(ratio))


def shards_gradients(totals: Sequence[CollectiveTotal]) -> bool:
    """Whether gradients are reduced to shards, as FSDP does and DDP does not."""
    return any(total.has_name(_SCATTERS) for total in totals)

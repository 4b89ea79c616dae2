"""The GPU time of a trace in a few hundred buckets: what a picture of it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import add
from typing import NamedTuple

from fp8verify.analysis.kinds import Kinds
from fp8verify.analysis.timeline import StepBounds
from fp8verify.kernels import Classification
from fp8verify.report.model import Precision
from fp8verify.trace import Trace

BUCKETS = 240
# A tooltip holds no more.
_LONGEST = 3
_FP8, _HIGH, _UNKNOWN, _REST = range(4)


class Buckets(NamedTuple):
    """Kernel time in ns by bucket of `width` ns, from the start of the first kernel on.

    GEMMs are split into FP8, other known precisions and unknown ones; `rest` is of all other
    kernels. `steps` are (step, begin, end) of the kernels that each step launched. `longest` are
    the kernels with the most time in each bucket: places in `names`, with ns.
    """

    width: int
    fp8: tuple[int, ...]
    other_precision: tuple[int, ...]
    unknown_precision: tuple[int, ...]
    rest: tuple[int, ...]
    steps: tuple[tuple[int, int, int], ...]
    names: tuple[str, ...] = ()
    longest: tuple[tuple[tuple[int, int], ...], ...] = ()


def bucket_times(trace: Trace, kinds: Kinds) -> Buckets | None:
    """Spread the kernels of a trace over `BUCKETS` buckets of equal length, None without any.

    `with_steps` adds the steps.
    """
    columns = trace.kernels
    if not len(columns):
        return None
    begin = min(columns.start_ns)
    ends = map(add, columns.start_ns, columns.duration_ns)
    width = max(1, -(-(max(ends) - begin) // BUCKETS))
    found = _by_kind(trace, kinds, begin, width)
    times = [[0] * BUCKETS for _ in range(4)]
    rows = [times[_class_of(kind.classification)] for kind in kinds.kinds]
    for bucket, members in enumerate(found):
        for number, time_ns in members.items():
            rows[number][bucket] += time_ns
    fp8, high, unknown, rest = map(tuple, times)
    return Buckets(width, fp8, high, unknown, rest, (), *_longest(found, kinds))


def _by_kind(trace: Trace, kinds: Kinds, begin: int, width: int) -> list[dict[int, int]]:
    """Return the time of each kind in each bucket."""
    columns = trace.kernels
    found: list[dict[int, int]] = [defaultdict(int) for _ in range(BUCKETS + 1)]
    low, members = begin, found[0]  # most kernels lie in the bucket of the one before them
    for number, start, duration in zip(
        kinds.numbers, columns.start_ns, columns.duration_ns, strict=True
    ):
        if not low <= start < low + width:
            place = (start - begin) // width
            low, members = begin + place * width, found[place]
        if start + duration <= low + width:
            members[number] += duration
        else:
            for place, part in _parts((low - begin) // width, start - low, duration, width):
                found[place][number] += part
    return found[:BUCKETS]  # beyond is at most an empty kernel at the very end


def with_steps(found: Buckets, trace: Trace, bounds: StepBounds, begin: int) -> Buckets:
    """Add the steps, whose kernels ran in `bounds`; the first of all began at `begin`."""
    return found._replace(steps=tuple(_steps(trace, bounds, begin)))


def _longest(
    found: list[dict[int, int]], kinds: Kinds
) -> tuple[tuple[str, ...], tuple[tuple[tuple[int, int], ...], ...]]:
    """Name the kernels with the most time in each bucket; those called alike count as one."""
    places: dict[str, int] = {}
    for number in sorted(set().union(*found)):  # kinds are numbered as they first ran
        places.setdefault(kinds.kinds[number].name, len(places))
    buckets: list[dict[int, int]] = [defaultdict(int) for _ in range(BUCKETS)]
    for bucket, members in zip(buckets, found, strict=True):
        for number, time_ns in members.items():
            bucket[places[kinds.kinds[number].name]] += time_ns
    return _renumbered([*places], list(map(_most, buckets)))


def _most(found: dict[int, int]) -> list[tuple[int, int]]:
    return sorted(found.items(), key=lambda item: -item[1])[:_LONGEST]


def _renumbered(
    names: list[str], longest: list[list[tuple[int, int]]]
) -> tuple[tuple[str, ...], tuple[tuple[tuple[int, int], ...], ...]]:
    """Keep only the names that are used."""
    used = {place: n for n, place in enumerate(sorted({p for row in longest for p, _ in row}))}
    rows = tuple(tuple((used[place], time_ns) for place, time_ns in row) for row in longest)
    return tuple(names[place] for place in used), rows


def _class_of(found: Classification) -> int:
    if not found.role.is_gemm:
        return _REST
    if found.precision is Precision.UNKNOWN:
        return _UNKNOWN
    return _FP8 if found.precision.is_fp8 else _HIGH


def _parts(place: int, offset: int, duration: int, width: int) -> Iterator[tuple[int, int]]:
    """Cut a kernel at the ends of buckets."""
    while duration > 0 and place < BUCKETS:
        part = min(duration, width - offset)
        yield place, part
        place, offset, duration = place + 1, 0, duration - part


def _steps(trace: Trace, bounds: StepBounds, begin: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each step, and when its kernels ran."""
    for step, own in zip(trace.steps, bounds, strict=True):
        if own is not None:
            yield step.number, own[0] - begin, own[1] - begin

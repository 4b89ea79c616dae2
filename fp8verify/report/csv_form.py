"""The writer of comma-separated values, and the rows that each result has in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import singledispatch

import msgspec

from fp8verify.report.escape import cell
from fp8verify.report.model import KernelRow, Report
from fp8verify.report.model.comparison import Comparison
from fp8verify.report.model.run_table import RunRow, RunTable

KERNEL_COLUMNS = ("rank", *KernelRow.__struct_fields__, "run")
COMPARISON_COLUMNS = (
    "kind",
    "name",
    "leg",
    "baseline_precision",
    "candidate_precision",
    "baseline_us",
    "candidate_us",
    "baseline_us_each",
    "candidate_us_each",
    "speedup",
)
RUN_COLUMNS = tuple(name for name in RunRow.__struct_fields__ if name != "software")
_LISTS = ("precisions", "scaling")


def write_csv(found: Report | Comparison | RunTable) -> str:
    """Write the rows of a result under a line of names; what is not known is empty.

    Text that a spreadsheet would run as a formula is quoted with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns, rows = columns_and_rows(found)
    writer.writerow(columns)
    writer.writerows([cell(v) if isinstance(v, str) else v for v in row] for row in rows)
    return buffer.getvalue()


@singledispatch
def columns_and_rows(found: object) -> tuple[tuple[str, ...], Iterable[Iterable[object]]]:
    """Return the names of the columns of a result and its rows."""
    raise TypeError(f"{type(found).__name__} has no rows")


@columns_and_rows.register
def _(found: Report) -> tuple[tuple[str, ...], Iterable[Iterable[object]]]:
    """A row for each kind of kernel on each rank; shapes are written as `64x32 32x16`."""
    rows = (
        (rank.rank, *map(_plain, msgspec.structs.astuple(kernel)), found.name)
        for rank in found.ranks
        for kernel in rank.kernels
    )
    return KERNEL_COLUMNS, rows


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        shapes = value if all(isinstance(item, tuple) for item in value) else (value,)
        return " ".join("x".join(map(str, shape)) for shape in shapes)
    return value


@columns_and_rows.register
def _(found: Comparison) -> tuple[tuple[str, ...], Iterable[Iterable[object]]]:
    """A row for each kind of work, pass, rank, layer and GEMM."""
    return COMPARISON_COLUMNS, _compared(found)


def _compared(found: Comparison) -> Iterator[tuple[object, ...]]:
    """Yield rows whose times are µs a step; GEMMs have µs of one GEMM beside it."""
    for part in found.budget:
        before, after = part.baseline_us, part.candidate_us
        speedup = before / after if before > 0 and after > 0 else None
        yield "budget", part.name, None, None, None, before, after, None, None, speedup
    for leg in found.legs:
        times = (leg.baseline_us, leg.candidate_us)
        yield "leg", None, leg.leg, None, None, *times, None, None, leg.speedup
    for rank in found.ranks:
        times = (rank.baseline_us, rank.candidate_us)
        yield "rank", rank.rank, None, None, None, *times, None, None, rank.step_speedup
    for layer in found.layers:
        classes = (layer.baseline_precision, layer.candidate_precision)
        own = (layer.baseline_us, layer.candidate_us, None, None, layer.speedup)
        yield "layer", layer.layer, None, *classes, *own
    for pair in found.gemms:
        classes = (pair.baseline_precision, pair.candidate_precision)
        each = (pair.baseline_us, pair.candidate_us)
        step = (
            round(each[0] * pair.baseline_calls, 3),
            round(each[1] * pair.candidate_calls, 3),
        )
        yield "gemm", f"{pair.n}x{pair.k}", pair.leg, *classes, *step, *each, pair.speedup


@columns_and_rows.register
def _(found: RunTable) -> tuple[tuple[str, ...], Iterable[Iterable[object]]]:
    """A row for each run."""
    rows = (
        [
            " ".join(value) if name in _LISTS else value.value if name == "verdict" else value
            for name in RUN_COLUMNS
            for value in (getattr(run, name),)
        ]
        for run in found.runs
    )
    return RUN_COLUMNS, rows

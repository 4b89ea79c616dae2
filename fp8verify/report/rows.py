"""A report's rows as comma-separated values and as pandas DataFrames.

>>> import fp8verify
>>> frames = fp8verify.inspect("traces/fp8_rowwise_gw_hp").to_pandas()
>>> frames.gemms.groupby(["leg", "precision"])["kernels"].sum()
leg    precision
dgrad  fp8          45
fprop  fp8          45
wgrad  bf16         45
Name: kernels, dtype: int64
>>> frames.layers.state.unique().tolist()
['fp8']
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from fp8verify.capture.schema import TensorRecord
from fp8verify.errors import requires
from fp8verify.model.comparison import Comparison, RunRow, RunTable
from fp8verify.model.kernels import KernelRow
from fp8verify.model.report import Frames, RankReport, Report
from fp8verify.text import printable, shown_size

if TYPE_CHECKING:
    import pandas as pd

Row = Sequence[object]
# Characters by which spreadsheets know a formula (OWASP, "CSV Injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_KERNEL = KernelRow.__struct_fields__
_TENSOR = tuple(name for name in TensorRecord.__struct_fields__ if name != "what_if")
# Of a comparison: what is paired, its name, and what both runs have of it. Times are µs a step, but
# for those of one GEMM.
_PAIR = (
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
_RUN = tuple(name for name in RunRow.__struct_fields__ if name != "software")


def to_frames(report: Report) -> Frames:
    """Lay a report out as DataFrames; kernels are in kinds, one row for each and rank.

    Raises:
        InputError: pandas is not installed.
    """
    frames = {}
    for name, (columns, rows) in _FRAMES.items():
        headings = ("rank", *columns)
        of_ranks = _of_ranks(report, rows)
        frames[name] = to_frame(headings, of_ranks)
    return Frames(**frames)


def to_frame(columns: Sequence[str], rows: Iterable[Row]) -> pd.DataFrame:
    """Make a DataFrame of rows.

    Raises:
        InputError: pandas is not installed.
    """
    with requires("pandas", "to_pandas()"):
        import pandas as pd
    return pd.DataFrame(list(rows), columns=list(columns))


def _of_ranks(
    report: Report, rows: Callable[[RankReport], Iterator[Row]]
) -> Iterator[Row]:
    """Yield the rows of each rank behind its number."""
    for rank in report.ranks:
        for row in rows(rank):
            yield (rank.rank, *row)


def _fields(row: object, names: Iterable[str]) -> Iterator[object]:
    """Yield fields of a struct, terms as their words."""
    for name in names:
        value = getattr(row, name)
        yield value.value if isinstance(value, Enum) else value


def _kernels(rank: RankReport) -> Iterator[Row]:
    for row in rank.kernels:
        yield tuple(_fields(row, _KERNEL))


def _gemms(rank: RankReport) -> Iterator[Row]:
    for row in rank.kernels:
        if row.role.is_gemm:
            yield (*_fields(row, _KERNEL), row.precision.is_fp8)


def _steps(rank: RankReport) -> Iterator[Row]:
    for step in rank.steps:
        share = step.gemm.fp8_share_of_time
        total = sum(step.gemm.time_us.values())
        yield step.step, share, total, step.duration_us, step.gpu_us


def _layers(rank: RankReport) -> Iterator[Row]:
    if rank.modules is None:
        return
    for state, names in rank.modules.names.items():
        for name in names:
            yield (name, state)


def _named_layers(rank: RankReport) -> Iterator[Row]:
    named = rank.named_layers
    if named is None:
        return
    for row in named.rows:
        for leg in row.legs:
            for name, count in leg.kernels.items():
                time_us = leg.time_us[name]
                pair = (row.layer, leg.leg.value)
                yield (*pair, name, count, time_us, named.source)


def _numerics(rank: RankReport) -> Iterator[Row]:
    if rank.numerics is None:
        return
    for row in rank.numerics.rows:
        yield tuple(_fields(row, _TENSOR))


def _ranks(rank: RankReport) -> Iterator[Row]:
    gemm_us = sum(rank.gemm.time_us.values())
    gpu_us = sum(rank.gpu_time_us.values())
    yield (
        rank.source,
        rank.verdict.value,
        rank.reason,
        rank.gemm.fp8_share_of_time,
        gemm_us,
        gpu_us,
        rank.health.kernels,
    )


# The columns of each frame behind the rank's, and the function that makes the rows of a rank.
_FRAMES: dict[str, tuple[Sequence[str], Callable[[RankReport], Iterator[Row]]]] = {
    "kernels": (_KERNEL, _kernels),
    "gemms": ((*_KERNEL, "is_fp8"), _gemms),
    "steps": (("step", "fp8_share_of_time", "gemm_us", "cpu_us", "gpu_us"), _steps),
    "layers": (("layer", "state"), _layers),
    "named_layers": (
        ("layer", "leg", "precision", "kernels", "time_us", "source"),
        _named_layers,
    ),
    "numerics": (_TENSOR, _numerics),
    "ranks": (
        (
            "source",
            "verdict",
            "reason",
            "fp8_share_of_time",
            "gemm_us",
            "gpu_us",
            "kernels",
        ),
        _ranks,
    ),
}


def write_csv(result: Report | Comparison | RunTable) -> str:
    """Write the rows of a result under a line of names; what is not known is empty.

    Text that a spreadsheet would run as a formula is quoted with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns, rows = columns_and_rows(result)
    writer.writerow(columns)
    for row in rows:
        writer.writerow(map(_cell, row))
    return buffer.getvalue()


def _cell(value: object) -> object:
    """Return a value; text as text that a spreadsheet takes for text, not for a formula."""
    if not isinstance(value, str):
        return value
    safe = printable(value)
    if safe.startswith(_FORMULA):
        return f"'{safe}"
    return safe


def columns_and_rows(
    result: Report | Comparison | RunTable,
) -> tuple[Sequence[str], Iterable[Row]]:
    """Return the names of the columns of a result, and its rows.

    Of a report each kind of kernel on each rank; shapes are written as `64x32 32x16`. Of a
    comparison each kind of work, leg, rank, layer and size of GEMMs. Of a table each run.
    """
    if isinstance(result, Comparison):
        return _PAIR, _pairs(result)
    if isinstance(result, RunTable):
        return _RUN, _runs(result)
    return ("rank", *_KERNEL, "run"), _kernels_of_run(result)


def _runs(table: RunTable) -> Iterator[Row]:
    for run in table.runs:
        yield list(map(_words, _fields(run, _RUN)))


def _kernels_of_run(report: Report) -> Iterator[Row]:
    for row in _of_ranks(report, _kernels):
        yield [*map(_words, row), report.name]


def _words(value: object) -> object:
    """Return a list of words with blanks, a list of shapes as "64x32 32x16"."""
    if not isinstance(value, tuple):
        return value
    if all(isinstance(item, str) for item in value):
        return " ".join(value)
    shapes = value
    if not all(isinstance(item, tuple) for item in value):
        shapes = (value,)
    return " ".join(map(shown_size, shapes))


def _pairs(comparison: Comparison) -> Iterator[Row]:
    """Yield what both runs of a comparison have, a row each."""
    for work in comparison.budget:
        times = (work.baseline_us, work.candidate_us)
        speedup = _ratio(*times)
        yield _pair(
            "budget",
            name=work.name,
            times=times,
            speedup=speedup,
        )
    for leg in comparison.legs:
        times = (leg.baseline_us, leg.candidate_us)
        yield _pair(
            "leg",
            leg=leg.leg,
            times=times,
            speedup=leg.speedup,
        )
    for rank in comparison.ranks:
        times = (rank.baseline_us, rank.candidate_us)
        yield _pair(
            "rank",
            name=str(rank.rank),
            times=times,
            speedup=rank.step_speedup,
        )
    for layer in comparison.layers:
        yield _pair(
            "layer",
            name=layer.layer,
            precisions=(layer.baseline_precision, layer.candidate_precision),
            times=(layer.baseline_us, layer.candidate_us),
            speedup=layer.speedup,
        )
    for gemm in comparison.gemms:
        before_us = gemm.baseline_us * gemm.baseline_calls
        after_us = gemm.candidate_us * gemm.candidate_calls
        yield _pair(
            "gemm",
            name=shown_size((gemm.n, gemm.k)),
            leg=gemm.leg,
            precisions=(gemm.baseline_precision, gemm.candidate_precision),
            times=(round(before_us, 3), round(after_us, 3)),
            each=(gemm.baseline_us, gemm.candidate_us),
            speedup=gemm.speedup,
        )


def _pair(
    kind: str,
    *,
    times: tuple[float | None, float | None],
    speedup: float | None,
    name: str = "",
    leg: str = "",
    precisions: tuple[str, str] = ("", ""),
    each: tuple[float | None, float | None] = (None, None),
) -> Row:
    return (kind, name, leg, *precisions, *times, *each, speedup)


def _ratio(before: float, after: float) -> float | None:
    if before > 0 and after > 0:
        return round(before / after, 4)
    return None

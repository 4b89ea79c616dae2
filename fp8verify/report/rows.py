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

from msgspec import Struct
from msgspec.structs import asdict

from fp8verify.capture.schema import TensorRecord
from fp8verify.errors import requires
from fp8verify.report.model.comparison import Comparison, RunRow, RunTable
from fp8verify.report.model.parts import KernelRow
from fp8verify.report.model.report import Frames, RankReport, Rendered, Report
from fp8verify.text import printable

if TYPE_CHECKING:
    import pandas as pd

Row = Sequence[object]
_COMPARISON = (
    "kind name leg baseline_precision candidate_precision baseline_us candidate_us "
    "baseline_us_each candidate_us_each speedup"
)
# Characters by which spreadsheets know a formula (OWASP, "CSV Injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_frames(report: Report) -> Frames:
    """Lay a report out as DataFrames; kernels are in kinds, one row for each and rank.

    Raises:
        InputError: pandas is not installed.
    """
    return Frames(**{name: to_frame(*_table(report, name)) for name in _FRAMES})


def to_frame(columns: Sequence[str], rows: Iterable[Row]) -> pd.DataFrame:
    """Make a DataFrame of rows.

    Raises:
        InputError: pandas is not installed.
    """
    with requires("pandas", "to_pandas()"):
        import pandas as pd
    return pd.DataFrame(list(rows), columns=list(columns))


def _fields(row: object, names: Iterable[str]) -> Iterator[object]:
    """Yield fields of a struct, terms as their words."""
    for name in names:
        value = getattr(row, name)
        yield value.value if isinstance(value, Enum) else value


def _kernels(rank: RankReport) -> Iterator[Row]:
    for row in rank.kernels:
        yield tuple(_fields(row, KernelRow.__struct_fields__))


def _gemms(rank: RankReport) -> Iterator[Row]:
    for row, fields in zip(rank.kernels, _kernels(rank), strict=True):
        if row.role.is_gemm:
            yield *fields, row.precision.is_fp8


def _steps(rank: RankReport) -> Iterator[Row]:
    for step in rank.steps:
        share, total = step.gemm.fp8_share_of_time, sum(step.gemm.time_us.values())
        yield step.step, share, total, step.duration_us, step.gpu_us


def _layers(rank: RankReport) -> Iterator[Row]:
    for state, names in (rank.modules.names if rank.modules else {}).items():
        yield from ((name, state) for name in names)


def _named_layers(rank: RankReport) -> Iterator[Row]:
    named = rank.named_layers
    for row in named.rows if named else ():
        for leg in row.legs:
            for name, count in leg.kernels.items():
                own = (leg.leg.value, name, count, leg.time_us[name])
                yield row.layer, *own, named and named.source


_TENSOR = [name for name in TensorRecord.__struct_fields__ if name != "what_if"]


def _numerics(rank: RankReport) -> Iterator[Row]:
    for row in rank.numerics.rows if rank.numerics is not None else ():
        yield tuple(_fields(row, _TENSOR))


def _ranks(rank: RankReport) -> Iterator[Row]:
    gemm_us, gpu_us = sum(rank.gemm.time_us.values()), sum(rank.gpu_time_us.values())
    head = (rank.source, rank.verdict.value, rank.reason)
    yield *head, rank.gemm.fp8_share_of_time, gemm_us, gpu_us, rank.health.kernels


# The columns of each frame behind the rank's, and the function that makes the rows of a rank.
_FRAMES: dict[str, tuple[str, Callable[[RankReport], Iterator[Row]]]] = {
    "kernels": (" ".join(KernelRow.__struct_fields__), _kernels),
    "gemms": (" ".join((*KernelRow.__struct_fields__, "is_fp8")), _gemms),
    "steps": ("step fp8_share_of_time gemm_us cpu_us gpu_us", _steps),
    "layers": ("layer state", _layers),
    "named_layers": ("layer leg precision kernels time_us source", _named_layers),
    "numerics": (" ".join(_TENSOR), _numerics),
    "ranks": ("source verdict reason fp8_share_of_time gemm_us gpu_us kernels", _ranks),
}


def _table(report: Report, name: str) -> tuple[Sequence[str], Iterator[Row]]:
    """Return the columns of a frame, and the rows of all ranks."""
    columns, make = _FRAMES[name]
    rows = ((rank.rank, *row) for rank in report.ranks for row in make(rank))
    return ("rank", *columns.split()), rows


def write_csv(result: Rendered) -> str:
    """Write the rows of a result under a line of names; what is not known is empty.

    Text that a spreadsheet would run as a formula is quoted with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns, rows = columns_and_rows(result)
    writer.writerow(columns)
    writer.writerows([_cell(v) if isinstance(v, str) else v for v in row] for row in rows)
    return buffer.getvalue()


def _cell(text: str) -> str:
    """Return text that a spreadsheet takes for text, not for a formula."""
    safe = printable(text)
    return f"'{safe}" if safe.startswith(_FORMULA) else safe


def columns_and_rows(result: Rendered) -> tuple[Sequence[str], Iterable[Row]]:
    """Return the names of the columns of a result, and its rows.

    Of a report each kind of kernel on each rank; shapes are written as `64x32 32x16`. Of a
    comparison each kind of work, pass, rank, layer and GEMM. Of a table each run.
    """
    if isinstance(result, Comparison):
        return _COMPARISON.split(), _compared(result)
    if isinstance(result, RunTable):
        names = [name for name in RunRow.__struct_fields__ if name != "software"]
        return names, ([*map(_words, _fields(run, names))] for run in result.runs)
    if not isinstance(result, Report):
        raise TypeError(f"a {type(result).__name__} has no rows")
    columns, kernels = _table(result, "kernels")
    return (*columns, "run"), ([*map(_words, row), result.name] for row in kernels)


def _words(value: object) -> object:
    """Return a list of words with blanks, a list of shapes as "64x32 32x16"."""
    if not isinstance(value, tuple):
        return value
    if all(isinstance(item, str) for item in value):
        return " ".join(value)
    shapes = value if all(isinstance(item, tuple) for item in value) else (value,)
    return " ".join("x".join(map(str, shape)) for shape in shapes)


def _compared(comparison: Comparison) -> Iterator[Row]:
    """Yield rows whose times are µs a step; GEMMs have µs of one GEMM in further columns."""
    for part in comparison.budget:
        before, after = part.baseline_us, part.candidate_us
        yield _paired("budget", part, speedup=before / after if before > 0 and after > 0 else None)
    yield from (_paired("leg", leg) for leg in comparison.legs)
    for rank in comparison.ranks:
        yield _paired("rank", rank, name=rank.rank, speedup=rank.step_speedup)
    yield from (_paired("layer", layer, name=layer.layer) for layer in comparison.layers)
    for pair in comparison.gemms:
        each = {"baseline_us_each": pair.baseline_us, "candidate_us_each": pair.candidate_us}
        before = round(pair.baseline_us * pair.baseline_calls, 3)
        after = round(pair.candidate_us * pair.candidate_calls, 3)
        size = f"{pair.n}x{pair.k}"
        yield _paired("gemm", pair, name=size, baseline_us=before, candidate_us=after, **each)


def _paired(kind: str, pair: Struct, **own: object) -> Row:
    """Return the row of a pair: its fields by the names of the columns, or others given."""
    fields = {"kind": kind, **asdict(pair), **own}
    return [fields.get(column) for column in _COMPARISON.split()]

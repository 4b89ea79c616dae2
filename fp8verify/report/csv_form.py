"""The kernels of a report as comma-separated values, one row for each kind on each rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from enum import Enum

import msgspec

from fp8verify.report.escape import cell
from fp8verify.report.model import KernelRow, Report

_FIELDS = KernelRow.__struct_fields__


def to_csv(report: Report) -> str:
    """Render `rank`, the fields of `report.model.KernelRow` and `run`, under a line of names.

    Shapes are written as `64x32 32x16`; what is not known is empty. Text that a spreadsheet would
    run as a formula is quoted with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("rank", *_FIELDS, "run"))
    writer.writerows(_rows(report))
    return buffer.getvalue()


def _rows(report: Report) -> Iterator[list[object]]:
    for rank in report.ranks:
        for kernel in rank.kernels:
            yield [rank.rank, *map(_value, msgspec.structs.astuple(kernel)), cell(report.name)]


def _value(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        shapes = value if all(isinstance(item, tuple) for item in value) else (value,)
        return " ".join("x".join(map(str, shape)) for shape in shapes)
    return cell(value) if isinstance(value, str) else value

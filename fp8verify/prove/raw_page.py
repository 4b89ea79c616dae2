"""Read what `ncu --csv --page raw` wrote: one row for each profiled launch.

The log mixes ncu's own lines (`==PROF== …`) with the table, a second row holds units, and newer
versions may write one row for each metric instead. Numbers have thousands separators, of the
locale. A table appears again for every process.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fp8verify.analysis.kinds import gemm_shape
from fp8verify.report.model import OpContext
from fp8verify.text import clean

_NAME: Final = "Kernel Name"
_LONG: Final = ("Metric Name", "Metric Value")
# Ranges of torch.autograd.profiler.emit_nvtx(record_shapes=True), and of our own script.
_NVTX: Final = re.compile(r"(?P<op>[\w.:]{1,200}), [^\"]{0,300}?sizes = \[(?P<sizes>[\[\]\d, ]*)\]")
_OWN: Final = re.compile(r"fp8verify m=(?P<m>\d{1,15}) n=(?P<n>\d{1,15}) k=(?P<k>\d{1,15})")
_SIZE: Final = re.compile(r"\[([\d, ]*)\]")
MAX_ROWS: Final = 100_000
_MAX_LINE: Final = 1 << 16


class Launch(NamedTuple):
    """A profiled launch: its kernel, its metrics by base name, and 2·M·N·K where it is known."""

    kernel: str
    metrics: dict[str, int]
    flops: int | None


def read(lines: Iterable[str]) -> list[Launch]:
    """Return the launches of a log, in order; rows that cannot be read are left out."""
    found: dict[tuple[int, str], Launch] = {}
    for at, (table, row) in enumerate(_rows(lines)):
        if at >= MAX_ROWS:
            break
        kernel = clean(row.get(_NAME, ""))
        if not kernel or not row.get("ID", "").strip():
            continue  # the row of units
        key = (table, f"{row['ID']} {row.get('Process ID', '')}")
        launch = found.setdefault(key, Launch(kernel, {}, _flops(row)))
        launch.metrics.update(_metrics(row))
    return list(found.values())


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of every table in the log with the table's number."""
    header: list[str] = []
    table = 0
    for line in lines:
        if not line.startswith('"') or len(line) > _MAX_LINE:
            continue
        try:
            cells = next(csv.reader([line.rstrip("\r\n")]), [])
        except csv.Error:
            continue
        if _NAME in cells and "ID" in cells:
            header, table = cells, table + 1
        elif header and len(cells) > len(header) // 2:
            yield table, dict(zip(header, cells, strict=False))


def _metrics(row: Mapping[str, str]) -> dict[str, int]:
    if all(column in row for column in _LONG):
        pairs = [(row[_LONG[0]], row[_LONG[1]])]
    else:
        pairs = [(column, text) for column, text in row.items() if "__" in column]
    counts = ((name.removesuffix(".sum"), _number(text)) for name, text in pairs)
    return {name: count for name, count in counts if count is not None}


def _number(text: str) -> int | None:
    """Read a count: 17,179,869,184 · 17179869184 · 17.179.869.184 · 1.7e10 · 0.00."""
    bare = text.strip()
    if re.fullmatch(r"\d{1,3}(?:[,.\u00a0\u202f ]\d{3})+", bare):
        return int(re.sub(r"\D", "", bare))
    try:
        return round(float(bare.replace(",", "")))
    except (ValueError, OverflowError):
        return None


def _flops(row: Mapping[str, str]) -> int | None:
    """Return 2·M·N·K from the innermost NVTX range that tells sizes."""
    texts = [text for column, text in row.items() if column != _NAME and text]
    for text in reversed(texts):
        own = _OWN.search(text)
        if own:
            return 2 * int(own["m"]) * int(own["n"]) * int(own["k"])
        ranges = list(_NVTX.finditer(text))
        if ranges:
            return _recorded(ranges[-1])
    return None


def _recorded(match: re.Match[str]) -> int | None:
    sizes = [
        tuple(int(size[:15]) for size in found[1].replace(" ", "").split(",") if size)
        for found in _SIZE.finditer(match["sizes"])
    ]
    shape = gemm_shape(OpContext(name=match["op"], dims=tuple(sizes)))
    return None if shape is None else shape.flops

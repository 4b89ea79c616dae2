"""The numbers of FP8 layers for the page: a grid of layers and tensors, and bars of amax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fp8verify.report.charts import Segment, segments
from fp8verify.report.model import Report
from fp8verify.report.model.numerics import NumericsReport, TensorRow
from fp8verify.report.numerics_text import DEAD, amax_of, figure, sampled_of

TENSORS = ("input", "weight", "grad_output")
_MAX_ROWS = 512
# dB below which a cell is coloured so; the last is that of `sqnr-low`, an FP8 cast's floor.
_GOOD_DB, _FAIR_DB = 24.0, 20.0


class Cell(NamedTuple):
    """A tensor of a layer; `kind` is the CSS class that colours it."""

    text: str
    kind: str
    note: str


class AmaxBar(NamedTuple):
    """The largest magnitude of a layer's input, on a logarithmic scale."""

    label: str
    segments: list[Segment]
    figures: str


class NumericsPage(NamedTuple):
    """What the page shows of one rank's numbers.

    Attributes:
        hidden: how many layers were left out.
        sampled: what part of the values was looked at; empty where all were.
    """

    step: int
    rows: list[tuple[str, list[Cell | None]]]
    bars: list[AmaxBar]
    hidden: int
    sampled: str
    notes: tuple[str, ...]


def numerics_page(report: Report) -> NumericsPage | None:
    """Lay out the first rank that measured tensors; None where none did."""
    found = next((r.numerics for r in report.ranks if r.numerics and r.numerics.rows), None)
    return None if found is None else _page(found)


def _page(found: NumericsReport) -> NumericsPage:
    by_layer: dict[str, dict[str, TensorRow]] = {}
    for row in found.rows:
        by_layer.setdefault(row.layer, {})[row.tensor] = row
    shown = list(by_layer.items())[:_MAX_ROWS]
    return NumericsPage(
        step=found.step or 0,
        rows=[(layer, [_cell(rows.get(tensor)) for tensor in TENSORS]) for layer, rows in shown],
        bars=_bars([rows["input"] for _, rows in shown if "input" in rows]),
        hidden=len(by_layer) - len(shown),
        sampled=sampled_of(found.rows),
        notes=found.notes,
    )


def _cell(row: TensorRow | None) -> Cell | None:
    if row is None:
        return None
    note = (
        f"{row.format or 'cast unknown'} {row.scaling or ''}: amax {amax_of(row)}, "
        f"flushed {figure(row.flushed, '.3%')}, clipped {figure(row.saturated, '.3%')}"
    )
    if row.nan or row.inf:
        return Cell("NaN" if row.nan else "inf", "high", note)
    if (row.flushed or 0.0) > DEAD:
        return Cell("dead", "high", note)
    if row.sqnr_db is None:
        return Cell("-", "unknown", note)
    fair = _FAIR_DB <= row.sqnr_db < _GOOD_DB
    kind = "fp8" if row.sqnr_db >= _GOOD_DB else "mixed" if fair else "high"
    return Cell(f"{row.sqnr_db:.1f}", kind, note)


def _bars(rows: Sequence[TensorRow]) -> list[AmaxBar]:
    """Bars of amax from the smallest to the largest, in octaves."""
    known = [(row, math.log2(row.amax)) for row in rows if row.amax]
    if not known:
        return []
    low, high = min(log for _, log in known) - 1, max(log for _, log in known)
    return [
        AmaxBar(row.layer, segments([("fp8", log - low, "")], high - low), figure(row.amax, ".3g"))
        for row, log in known
    ]

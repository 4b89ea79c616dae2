"""A picture of the model: its layers from left to right, the legs of their GEMMs below each other.

With names every layer has the same width; without, layers of one size are as wide as their share
of the GEMM FLOPs.
"""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.report.escape import printable
from fp8verify.report.layers_by_name import kernels_of, legs_shown
from fp8verify.report.model import LEGS, Report, fp8_count
from fp8verify.report.model.diagnosis import LayerRow, NamedLayerRow

WIDTH = 1000.0
ROW_HEIGHT = 20
_MOST = 2000


class MapCell(NamedTuple):
    """One leg of one layer: where it stands, how it is coloured, what it says when hovered."""

    x: float
    y: int
    width: float
    kind: str
    tip: str


class LayerMap(NamedTuple):
    """The cells under the names of the legs; `height` in the units of the cells."""

    legs: list[str]
    cells: list[MapCell]
    height: int
    note: str


def layer_map(report: Report) -> LayerMap | None:
    """Draw the first rank whose layers are known; None where none are."""
    for rank in report.ranks:
        if rank.named_layers is not None and rank.named_layers.rows:
            return _by_name(rank.named_layers.rows[:_MOST])
    for rank in report.ranks:
        if rank.layers is not None and rank.layers.rows:
            return _by_size(rank.layers.rows)
    return None


def _by_name(rows: tuple[NamedLayerRow, ...]) -> LayerMap:
    legs, width = legs_shown(rows), WIDTH / len(rows)
    cells = [
        _cell(place * width, y, width, printable(row.layer), leg, ran)
        for place, row in enumerate(rows)
        for y, leg in enumerate(legs)
        if (ran := _counts(kernels_of(row, leg)))[1]
    ]
    return LayerMap(legs, cells, len(legs) * ROW_HEIGHT, f"{len(rows)} layers in the model's order")


def _counts(kernels: dict[str, int]) -> tuple[int, int]:
    return fp8_count(kernels), sum(kernels.values())


def _by_size(rows: tuple[LayerRow, ...]) -> LayerMap:
    legs = [leg.value for leg in LEGS]
    shares = [row.share_of_flops for row in rows]
    known = [share for share in shares if share is not None]
    whole = len(known) == len(rows) and sum(known) > 0
    cells, x = [], 0.0
    for row in rows:
        width = WIDTH * (row.share_of_flops or 0.0) / sum(known) if whole else WIDTH / len(rows)
        names = f" ({printable(', '.join(row.names))})" if row.names else ""
        label = f"layers of {row.n} x {row.k}{names}"
        for y, leg in enumerate(legs):
            ran = (row.in_fp8.get(leg, 0), row.observed.get(leg, 0))
            if ran[1]:
                cells.append(_cell(x, y, width, label, leg, ran))
        x += width
    note = "each column is a size of layers (outputs x inputs)"
    note += ", as wide as its share of GEMM FLOPs" if whole else ""
    return LayerMap(legs, cells, len(legs) * ROW_HEIGHT, note)


def _cell(x: float, y: int, width: float, label: str, leg: str, ran: tuple[int, int]) -> MapCell:
    done, of_all = ran
    kind = "fp8" if done >= of_all else "mixed" if done else "high"
    tip = f"{label}, {leg}: {done} of {of_all} GEMMs in FP8"
    return MapCell(round(x, 3), y * ROW_HEIGHT, round(max(0.0, width), 3), kind, tip)

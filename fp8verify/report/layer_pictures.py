"""Pictures of a model's layers: a map of their GEMMs, and tables of coloured cells."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fp8verify.report.charts import BAR_WIDTH, Bar, segments
from fp8verify.report.model import LEGS, Report, fp8_count
from fp8verify.report.model.diagnosis import LayerRow
from fp8verify.report.model.numerics import TensorRow
from fp8verify.report.tables import DEAD, amax_of, figure, kernels_of, legs_shown, sampled_of
from fp8verify.text import printable

ROW_HEIGHT = 20
_MAX_MAPPED = 2000
_MAX_COLUMNS = 24
_MAX_BLOCKS = 256
_MAX_LAYERS = 512
_BLOCK = re.compile(r"(?P<block>(?:.*?\.)??\d+)\.(?P<place>.+)")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
# What a cell says and how it is coloured, by the state of its modules.
_STATES = {
    "fp8": ("FP8", "fp8"),
    "fp4": ("FP4", "low"),
    "high_precision": ("high", "high"),
    "fp8_emulated": ("emulated", "unknown"),
    "fp4_emulated": ("emulated", "unknown"),
    "unknown": ("unknown", "unknown"),
    "fp8_module_off": ("off", "high"),
}
_TENSORS = ["input", "weight", "grad_output"]
# dB below which a cell is coloured so; the last is that of `sqnr-low`, an FP8 cast's floor.
_GOOD_DB, _FAIR_DB = 24.0, 20.0


class Cell(NamedTuple):
    """A coloured cell; `kind` is its CSS class, `note` what it says when hovered."""

    text: str
    kind: str
    note: str


class CellTable(NamedTuple):
    """Rows of cells under the columns' names; `hidden` rows were left out."""

    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    hidden: int


def layer_grid(states: Mapping[str, str]) -> CellTable:
    """Lay out module names and their states: a row a block, a column a place in it.

    More than a screen of columns is folded together.
    """
    placed = {name: _place(name) for name in states}
    if len({place for _, place in placed.values()}) > _MAX_COLUMNS:
        placed = {name: (row, _NUMBER.sub("*", place)) for name, (row, place) in placed.items()}
    cells: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for name, (row, place) in placed.items():
        cells[row][place][states[name]] += 1
    columns = list(dict.fromkeys(place for _, place in placed.values()))
    columns.sort(key=bool)  # modules outside of blocks come first
    rows = [
        (row, [_state_cell(found[column]) if column in found else None for column in columns])
        for row, found in list(cells.items())[:_MAX_BLOCKS]
    ]
    return CellTable(columns, rows, max(0, len(cells) - _MAX_BLOCKS))


def _place(name: str) -> tuple[str, str]:
    """Split `layers.3.attn.q_proj` into its block and the place in it."""
    match = _BLOCK.fullmatch(name)
    return (match["block"], match["place"]) if match else (name, "")


def _state_cell(counts: Counter[str]) -> Cell:
    note = ", ".join(f"{count} {state}" for state, count in counts.items())
    if len(counts) == 1:
        (state,) = counts
        return Cell(*_STATES.get(state, (state, "unknown")), note)
    return Cell(f"{counts['fp8']}/{sum(counts.values())}", "mixed", note)


class Numerics(NamedTuple):
    """What the page shows of one rank's tensors.

    Attributes:
        step: the measured one.
        table: dB of each layer and tensor.
        bars: amax of inputs, in octaves.
        sampled: what part of the values was measured; empty where all were.
        notes: what could not be measured.
    """

    step: int
    table: CellTable
    bars: list[Bar]
    sampled: str
    notes: tuple[str, ...]


def numerics_picture(report: Report) -> Numerics | None:
    """Lay out the first rank that measured tensors; None where none did."""
    found = next((r.numerics for r in report.ranks if r.numerics and r.numerics.rows), None)
    if found is None:
        return None
    by_layer: dict[str, dict[str, TensorRow]] = defaultdict(dict)
    for row in found.rows:
        by_layer[row.layer][row.tensor] = row
    shown = list(by_layer.items())[:_MAX_LAYERS]
    rows = [
        (layer, [_tensor_cell(own[name]) if name in own else None for name in _TENSORS])
        for layer, own in shown
    ]
    return Numerics(
        step=found.step or 0,
        table=CellTable(_TENSORS, rows, len(by_layer) - len(shown)),
        bars=_amax_bars([own["input"] for _, own in shown if "input" in own]),
        sampled=sampled_of(found.rows),
        notes=found.notes,
    )


def _tensor_cell(row: TensorRow) -> Cell:
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


def _amax_bars(rows: Sequence[TensorRow]) -> list[Bar]:
    """Draw amax from the smallest to the largest, in octaves."""
    known = [(row, math.log2(row.amax)) for row in rows if row.amax]
    low = min((log for _, log in known), default=0.0) - 1
    high = max((log for _, log in known), default=0.0)
    return [
        Bar(row.layer, segments([("fp8", log - low, "")], high - low), figure(row.amax, ".3g"))
        for row, log in known
    ]


class MapCell(NamedTuple):
    """One pass of one layer: its place, its CSS class, what it says when hovered."""

    x: float
    y: int
    width: float
    kind: str
    tip: str


class LayerMap(NamedTuple):
    """The layers from left to right, the passes of their GEMMs below each other.

    Attributes:
        legs: names of the passes.
        cells: a cell for each pass of a layer that ran.
        height: in the units of the cells.
        note: what a column is.
    """

    legs: list[str]
    cells: list[MapCell]
    height: int
    note: str


def layer_map(report: Report) -> LayerMap | None:
    """Draw the first rank whose layers are known; None where none are.

    With names every layer has the same width; without, layers of one size are as wide as their
    share of the GEMM FLOPs.
    """
    for rank in report.ranks:
        if rank.named_layers is not None and rank.named_layers.rows:
            named = rank.named_layers.rows[:_MAX_MAPPED]
            legs = legs_shown(named)
            columns = []
            for row in named:
                ran = {leg: kernels_of(row, leg) for leg in legs}
                counts = {leg: (fp8_count(own), sum(own.values())) for leg, own in ran.items()}
                columns.append((1.0, printable(row.layer), counts))
            return _map(legs, columns, f"{len(named)} layers in the model's order")
    for rank in report.ranks:
        if rank.layers is not None and rank.layers.rows:
            return _map_by_size(rank.layers.rows)
    return None


def _map_by_size(rows: Sequence[LayerRow]) -> LayerMap:
    legs = [leg.value for leg in LEGS]
    known = [row.share_of_flops for row in rows if row.share_of_flops is not None]
    whole = len(known) == len(rows) and sum(known) > 0
    columns = []
    for row in rows:
        names = f" ({printable(', '.join(row.names))})" if row.names else ""
        counts = {leg: (row.in_fp8.get(leg, 0), row.observed.get(leg, 0)) for leg in legs}
        share = (row.share_of_flops or 0.0) if whole else 1.0
        columns.append((share, f"layers of {row.n} x {row.k}{names}", counts))
    note = "each column is a size of layers (outputs x inputs)"
    note += ", as wide as its share of GEMM FLOPs" if whole else ""
    return _map(legs, columns, note)


Column = tuple[float, str, Mapping[str, tuple[int, int]]]


def _map(legs: list[str], columns: Sequence[Column], note: str) -> LayerMap:
    """Draw columns: share of the width, label, and GEMMs in FP8 and in all by pass."""
    whole = sum(share for share, _, _ in columns)
    cells, x = [], 0.0
    for share, label, counts in columns:
        width = BAR_WIDTH * share / whole
        for place, leg in enumerate(legs):
            done, ran = counts[leg]
            if ran:
                kind = "fp8" if done >= ran else "mixed" if done else "high"
                tip = f"{label}, {leg}: {done} of {ran} GEMMs in FP8"
                cells.append(
                    MapCell(round(x, 3), place * ROW_HEIGHT, round(max(0.0, width), 3), kind, tip)
                )
        x += width
    return LayerMap(legs, cells, len(legs) * ROW_HEIGHT, note)

"""Layers as a table: those that are called alike and ran the same are one row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fp8verify.report.model.diagnosis import LayersReport, NamedLayerRow, NamedLayersReport
from fp8verify.report.model.report import Report
from fp8verify.report.tables import layer_states, millis, percent
from fp8verify.terms import LEGS, Leg, low_precision_count
from fp8verify.text import indexed, pattern, patterns, shorten


class LayerLine(NamedTuple):
    """A row: name, size, GEMMs in FP8 of all by leg, what was configured, and ms or FLOPs."""

    name: str
    size: str
    legs: tuple[tuple[int, int], ...]
    configured: str
    amount: str


class LayerTable(NamedTuple):
    """All rows, and what their columns are called; `note` says what the reader has to know."""

    legs: tuple[str, ...]
    unit: str
    rows: tuple[LayerLine, ...]
    note: str = ""


def layer_table(report: Report) -> LayerTable | None:
    """Lay out layers by name, else by size, else the module list; None if nothing is known.

    Of several ranks the first one is shown that has any.
    """
    named = next((r.named_layers for r in report.ranks if r.named_layers), None)
    if named is not None and named.rows:
        return _by_name(named)
    sizes = next((r.layers for r in report.ranks if r.layers and r.layers.rows), None)
    if sizes is not None:
        return _by_size(sizes)
    states = layer_states(report)
    kinds = sorted(dict.fromkeys(states.values()), key=lambda state: state == "fp8")
    rows = tuple(
        LayerLine(name, "-", (), state.replace("_", " "), "-")
        for state in kinds
        for name in shorten([name for name, own in states.items() if own == state], states)
    )
    return LayerTable((), "ms", rows) if rows else None


def _by_name(found: NamedLayersReport) -> LayerTable:
    legs = legs_shown(found.rows)
    eager = found.source == "step"
    notes = [f"From step {found.step}, which ran without torch.compile"] if eager else []
    if found.unjoined:
        notes.append(f"{found.unjoined} of {found.gemms} GEMMs could not be joined to a layer")
    return LayerTable(
        legs=tuple(legs),
        unit="ms",
        rows=tuple(
            LayerLine(
                name=name,
                size=f"{alike[0].n} x {alike[0].k}" if alike[0].n else "-",
                legs=tuple(low_of_all(alike, leg) for leg in legs),
                configured=(alike[0].state or "-").replace("_", " "),
                amount="-" if eager else millis(sum(map(layer_us, alike))),
            )
            for name, alike in layer_groups(found, joined=True)
        ),
        note="; ".join([*notes, *([found.note] if found.note else [])]),
    )


def _by_size(found: LayersReport) -> LayerTable:
    return LayerTable(
        legs=tuple(leg.value for leg in LEGS),
        unit="of FLOPs",
        rows=tuple(
            LayerLine(
                name=", ".join(row.names) or "-",
                size=f"{row.n} x {row.k}",
                legs=tuple(
                    (row.in_fp8.get(leg.value, 0), row.observed.get(leg.value, 0)) for leg in LEGS
                ),
                configured=f"{row.converted} of {row.modules} for FP8" if row.modules else "-",
                amount=percent(row.share_of_flops),
            )
            for row in found.rows
        ),
        note=found.note or "",
    )


def layer_groups(
    found: NamedLayersReport, *, joined: bool
) -> list[tuple[str, list[NamedLayerRow]]]:
    """Return each layer under its name.

    If `joined`, those that are called alike and ran the same are one, "layers.*.up (2)", and layers
    that are not all in FP8 come first. Where others of the name ran otherwise, their numbers say
    which: "layers.{0,3}.up".
    """
    if not joined:
        return [(row.layer, [row]) for row in found.rows]
    alike: dict[tuple[str, object], list[NamedLayerRow]] = defaultdict(list)
    for row in found.rows:
        ran = tuple((leg.leg, tuple(sorted(leg.kernels.items()))) for leg in row.legs)
        alike[pattern(row.layer), ran].append(row)
    kinds = Counter(shape for shape, _ in alike)
    groups = [(list(_names(rows, kinds[shape] > 1)), rows) for (shape, _), rows in alike.items()]
    ordered = sorted(groups, key=lambda group: _all_low(group[1][0]))
    return [(", ".join(names), rows) for names, rows in ordered]


def _names(rows: Iterable[NamedLayerRow], differ: bool) -> Iterator[str]:
    names = [row.layer for row in rows]
    yield from [indexed(names)] if differ else patterns(names)


def _all_low(row: NamedLayerRow) -> bool:
    return all(low_precision_count(leg.kernels) == sum(leg.kernels.values()) for leg in row.legs)


def legs_shown(rows: Iterable[NamedLayerRow]) -> list[str]:
    """Return the three legs of a linear layer, and the others that ran."""
    seen = {leg.leg for row in rows for leg in row.legs}
    return [leg.value for leg in Leg if leg in seen or leg in LEGS]


def low_of_all(rows: Iterable[NamedLayerRow], leg: str) -> tuple[int, int]:
    """Return how many of the layers' GEMMs of a leg ran in FP8 or FP4, and how many there are."""
    ran = [found.kernels for row in rows for found in row.legs if found.leg == leg]
    return sum(map(low_precision_count, ran)), sum(sum(kernels.values()) for kernels in ran)


def precisions(row: NamedLayerRow) -> str:
    """Return the precision classes of a layer's GEMMs."""
    return ", ".join(dict.fromkeys(name for leg in row.legs for name in leg.kernels))


def layer_us(row: NamedLayerRow) -> float:
    """Return the µs of a layer's GEMMs."""
    return sum(time_us for leg in row.legs for time_us in leg.time_us.values())

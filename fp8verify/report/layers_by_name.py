"""Layers by name in the order and the groups in which every form shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from fp8verify.layer_names import pattern, patterns
from fp8verify.report.model import LEGS, Leg, low_precision_count
from fp8verify.report.model.diagnosis import NamedLayerRow, NamedLayersReport


class LayerGroup(NamedTuple):
    """Layers called alike that ran the same; `name` is "layers.*.up (2)" for two of them."""

    name: str
    rows: tuple[NamedLayerRow, ...]


def groups(found: NamedLayersReport) -> list[LayerGroup]:
    """Join layers that are called alike and ran the same; those not all in FP8 come first."""
    alike: dict[object, list[NamedLayerRow]] = defaultdict(list)
    for row in found.rows:
        ran = tuple((leg.leg, tuple(sorted(leg.kernels.items()))) for leg in row.legs)
        alike[pattern(row.layer), ran].append(row)
    joined = [
        LayerGroup(patterns(row.layer for row in rows)[0], tuple(rows)) for rows in alike.values()
    ]
    return sorted(joined, key=lambda group: _all_fp8(group.rows[0]))


def _all_fp8(row: NamedLayerRow) -> bool:
    return all(low_precision_count(leg.kernels) == sum(leg.kernels.values()) for leg in row.legs)


def legs_shown(rows: Iterable[NamedLayerRow]) -> list[str]:
    """Return the three legs of a linear layer, and what else there is."""
    seen = {leg.leg for row in rows for leg in row.legs}
    return [leg.value for leg in Leg if leg in seen or leg in LEGS]


def kernels_of(row: NamedLayerRow, leg: str) -> dict[str, int]:
    """Return a layer's launches of a leg by precision class."""
    return next((found.kernels for found in row.legs if found.leg == leg), {})


def precisions(row: NamedLayerRow) -> str:
    """Return the precision classes of a layer's GEMMs."""
    return ", ".join(dict.fromkeys(name for leg in row.legs for name in leg.kernels))


def layer_us(row: NamedLayerRow) -> float:
    """Return the µs of a layer's GEMMs."""
    return sum(time_us for leg in row.legs for time_us in leg.time_us.values())

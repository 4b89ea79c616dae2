"""The coordinates of the cells of a ledger, by which what lacks is explained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from fp8verify.verdict.ledger import Cell

COORDINATES: Final = ("step", "rank", "leg", "layer", "micro-batch")
VALUE_OF: Final = {
    name: itemgetter(Cell._fields.index(name.replace("-", "_"))) for name in COORDINATES
}
# Of these a sentence says that a part of a value falls short, and that others differ.
HAVE_PARTS: Final = frozenset({"rank", "step", "micro-batch"})
# Values of some coordinates.
Value: TypeAlias = "tuple[Hashable, ...]"


def by_value(
    cells: Iterable[Cell], names: Sequence[str]
) -> defaultdict[Value, list[Cell]]:
    """Return the cells at each value of some coordinates."""
    chosen = list(cells)
    columns = [map(VALUE_OF[name], chosen) for name in names]
    groups: defaultdict[Value, list[Cell]] = defaultdict(list)
    for value, cell in zip(zip(*columns, strict=True), chosen, strict=True):
        groups[value].append(cell)
    return groups

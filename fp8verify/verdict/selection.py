"""Parts of what ran and of what a model has, each named once, and their sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fp8verify.analysis.gemms import GemmRow
from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import Leg
from fp8verify.verdict.expected import CONVERTED
from fp8verify.verdict.ledger import Cell, Layer, Place


class _Measured(Protocol):
    """A row of kernels, and their work in ns, or in MFLOPs of a BLAS log."""

    @property
    def amount(self) -> int: ...


def calls_of(rows: Iterable[GemmRow]) -> int:
    """Return how many GEMMs rows have."""
    calls = 0
    for row in rows:
        calls += row.calls
    return calls


def amount_of(rows: Iterable[_Measured]) -> int:
    """Return the work of rows, in ns or in MFLOPs."""
    amount = 0
    for row in rows:
        amount += row.amount
    return amount


def low_of(rows: Iterable[GemmRow]) -> list[GemmRow]:
    """Return the GEMMs in FP8 or FP4."""
    return [row for row in rows if row.precision.is_low]


def high_of(rows: Iterable[GemmRow]) -> list[GemmRow]:
    """Return the GEMMs in no low precision, or in an unknown one."""
    return [row for row in rows if not row.precision.is_low]


def names_of(modules: Iterable[ModuleRecord]) -> list[str]:
    """Return the full names of modules."""
    return [module.fqn for module in modules]


def in_state(modules: Iterable[ModuleRecord], *states: str) -> list[ModuleRecord]:
    """Return the modules that the list has in one of some states."""
    return [module for module in modules if module.state in states]


def converted_of(modules: Iterable[ModuleRecord]) -> list[ModuleRecord]:
    """Return the modules that are to compute in low precision."""
    return in_state(modules, *CONVERTED)


# ---- cells of a ledger


def ranks_of(cells: Iterable[Cell]) -> frozenset[int]:
    """Return the indices of the ranks of cells."""
    return frozenset(cell.rank for cell in cells)


def layers_of(cells: Iterable[Cell]) -> set[Layer]:
    """Return the layers of cells."""
    return {cell.layer for cell in cells}


def legs_in(cells: Iterable[Cell]) -> set[Leg]:
    """Return the legs of cells."""
    return {cell.leg for cell in cells}


def places_of(cells: Iterable[Cell]) -> set[Place]:
    """Return the executions of cells."""
    return {cell.place for cell in cells}


def of_one_rank(cells: Iterable[Cell], rank: int) -> list[Cell]:
    """Return the cells of a rank."""
    return [cell for cell in cells if cell.rank == rank]

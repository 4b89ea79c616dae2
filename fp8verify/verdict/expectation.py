"""What one witness expects of launches: how many of them run in low precision at least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from fp8verify.terms import Leg
from fp8verify.verdict.ledger import Cell, Entry, Layer, Place


class Witness(IntEnum):
    """Who expects it, by authority; those up to `COUNT` state it."""

    NAMES = 0
    MODULES = 1
    LOG = 2
    COUNT = 3
    EXECUTIONS = 4
    CALL = 5
    OTHERS = 6


class Expected(NamedTuple):
    """What one witness expects of launches.

    Attributes:
        by: the witness.
        cells: where the launches are.
        launches: how many there are.
        low: those that ran in low precision.
        unknown: those of unknown precision.
        least: how many are expected in low precision.
        names: the modules that it is about, if they are known.
        is_sure: whether the launches are surely those that it is about.
    """

    by: Witness
    cells: tuple[Cell, ...]
    launches: float
    low: float
    unknown: float
    least: float
    names: tuple[str, ...] = ()
    is_sure: bool = True

    @property
    def lacks(self) -> float:
        """Launches that lack, whatever those of unknown precision are."""
        if not self.is_sure:
            return 0.0
        return max(0.0, self.least - self.low - self.unknown)

    @property
    def may_lack(self) -> float:
        """Launches that lack, if those of unknown precision ran in high precision."""
        return max(0.0, self.least - self.low)


class Said(NamedTuple):
    """What a witness says of a program: `Expected`, with layers and legs instead of cells."""

    by: Witness
    where: tuple[tuple[Layer, Leg], ...]
    launches: float
    low: float
    unknown: float
    least: float
    names: tuple[str, ...] = ()
    is_sure: bool = True

    def at(self, place: Place) -> Expected:
        """Return what it says of one execution of the program."""
        cells = tuple(Cell(*place, layer, leg) for layer, leg in self.where)
        return Expected(
            by=self.by,
            cells=cells,
            launches=self.launches,
            low=self.low,
            unknown=self.unknown,
            least=self.least,
            names=self.names,
            is_sure=self.is_sure,
        )


def said(
    by: Witness,
    entries: Sequence[Entry],
    least: float,
    names: Sequence[str] = (),
    *,
    is_sure: bool = True,
) -> Said:
    """Return what a witness says of entries of a program."""
    return Said(
        by=by,
        where=tuple(dict.fromkeys((e.slot.layer, e.leg) for e in entries)),
        launches=sum(e.ran.launches for e in entries),
        low=sum(e.ran.low for e in entries),
        unknown=sum(e.ran.unknown for e in entries),
        least=least,
        names=tuple(names),
        is_sure=is_sure,
    )


def all_but(entries: Iterable[Entry], calls: float) -> float:
    """Return how many launches run low at least, if so many calls may run in high precision."""
    counts = sorted((e.ran.launches for e in entries), reverse=True)
    whole = int(calls)
    return float(sum(counts[whole:]))


def launches_of(entries: Iterable[Entry]) -> int:
    """Return how many launches entries have."""
    return sum(entry.ran.launches for entry in entries)

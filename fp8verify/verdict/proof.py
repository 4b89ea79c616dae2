"""The proof: a table of the GEMMs of layers that train along the coordinate that decides."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fp8verify.analysis.gemms import micros
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.verdict import Proof, ProofRow
from fp8verify.thresholds import SHOWN_ROWS
from fp8verify.verdict.clauses import optional
from fp8verify.verdict.coordinates import VALUE_OF, by_value
from fp8verify.verdict.findings.ledger import LedgerFindings
from fp8verify.verdict.ledger import Cell
from fp8verify.verdict.selection import ranks_of
from fp8verify.verdict.shortfalls import Shortfalls
from fp8verify.verdict.wording import name_value


def prove(parts: LedgerFindings, ranks: Sequence[RankEvidence]) -> Proof | None:
    """Return the table along what explains most of what is short, else along ranks, steps, legs."""
    cells = parts.ledger.cells
    if not cells:
        return None
    names = _deciding_coordinates(parts)
    short: set[Cell] = set()
    for shortfall in parts.shortfalls:
        short.update(shortfall.cells)
    rows = []
    for members in by_value(cells, names).values():
        values = [name_value(ranks, members[0], name) for name in names]
        lacking = short.intersection(members)
        note = optional(parts.names_of(lacking), when="layer" in names)
        rows.append(_row(parts, ", ".join(values), members, lacking, note))
    numbers: list[int] = []
    for index in ranks_of(cells):
        numbers += ranks[index].numbers
    shown = sorted(rows, key=_is_whole)[:SHOWN_ROWS]
    return Proof(
        coordinate=", ".join(names),
        rows=tuple(row for row in rows if row in shown),
        left_out=len(rows) - len(shown),
        ranks=tuple(numbers),
    )


def _is_whole(row: ProofRow) -> bool:
    return not row.short


def _deciding_coordinates(parts: LedgerFindings) -> tuple[str, ...]:
    """Return what explains most of what is short, else what has several values."""
    if parts.shortfalls:
        return parts.shortfalls[0].coordinates
    for name in ("rank", "step"):
        values = set(map(VALUE_OF[name], parts.ledger.cells))
        if len(values) > 1:
            return (name,)
    return ("leg",)


def _row(
    parts: LedgerFindings,
    value: str,
    cells: Sequence[Cell],
    lacking: Collection[Cell],
    note: str,
) -> ProofRow:
    ledger = parts.ledger
    ran = ledger.total(cells)
    time_ns, _ = ledger.times(cells)
    return ProofRow(
        value=value,
        low=round(ran.low),
        high=round(ran.high),
        unknown=round(ran.unknown),
        time_us=micros(time_ns),
        flops=ledger.flops(cells),
        short=bool(lacking),
        note=note,
        lacking=_launches_that_lack(parts.lacking, cells, lacking),
    )


def _launches_that_lack(
    shortfalls: Shortfalls, cells: Sequence[Cell], lacking: Collection[Cell]
) -> int | None:
    """Return how many launches of a row lack; None if none do, or that is not stated of all."""
    launches = 0.0
    for cell in cells:
        lack = shortfalls.lacks.get(cell)
        may_lack = shortfalls.may_lack.get(cell)
        if lack is None and may_lack is None:
            continue
        if lack is None or cell not in lacking or not lack.is_certain:
            return None
        if may_lack is not None and may_lack.launches > lack.launches:
            return None
        launches += lack.launches
    return round(launches) or None

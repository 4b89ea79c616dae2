"""The table that decides a verdict: the GEMMs of layers that train along one coordinate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from fp8verify.analysis.gemms import GemmRow, micros
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model.parts import Proof, ProofRow
from fp8verify.terms import Precision
from fp8verify.verdict.findings.parts import Parts, name_value
from fp8verify.verdict.grid import COORDINATES, VALUE_OF, Cell

_SHOWN = 12


def prove(parts: Parts, ranks: Sequence[RankEvidence]) -> Proof | None:
    """Return the table along what explains most of what is short, else along ranks, steps, legs."""
    cells = parts.grid.cells
    if not cells:
        return None
    names = parts.shortfalls[0].coordinates if parts.shortfalls else ()
    if len(names) in (0, len(COORDINATES)):
        several = (name for name in ("rank", "step") if len({VALUE_OF[name](c) for c in cells}) > 1)
        names = (next(several, "leg"),)
    short = {cell for found in parts.shortfalls for cell in found.cells}
    groups: dict[tuple[Hashable, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[tuple(VALUE_OF[name](cell) for name in names)].append(cell)
    rows = {
        value: _row(
            ", ".join(name_value(ranks, members[0], name) for name in names),
            [row for cell in members for row in parts.grid.rows.get(cell, ())],
            short=not short.isdisjoint(members) if parts.shortfalls else False,
        )
        for value, members in groups.items()
    }
    shown = sorted(rows.values(), key=lambda row: not row.short)[:_SHOWN]
    return Proof(
        coordinate=", ".join(names),
        rows=tuple(row for row in rows.values() if row in shown),
        left_out=len(rows) - len(shown),
        ranks=tuple(n for place in {c.rank for c in cells} for n in ranks[place].numbers),
    )


def _row(value: str, rows: Sequence[GemmRow], *, short: bool) -> ProofRow:
    low = sum(row.calls for row in rows if row.precision.is_low)
    unknown = sum(row.calls for row in rows if row.precision is Precision.UNKNOWN)
    flops = None if any(row.flops is None for row in rows) else sum(row.flops or 0 for row in rows)
    return ProofRow(
        value=value,
        low=low,
        high=sum(row.calls for row in rows) - low - unknown,
        unknown=unknown,
        time_us=micros(sum(row.time_ns for row in rows)),
        flops=None if flops is None else float(flops),
        short=short,
    )

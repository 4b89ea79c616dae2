"""The ledger as the report has it: executions, slots, and runs of equal entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.ledger import (
    LedgerEntry,
    LedgerExecution,
    LedgerReport,
    LedgerSlot,
)
from fp8verify.terms import Leg
from fp8verify.text import shown_size
from fp8verify.thresholds import SHOWN_ENTRIES
from fp8verify.verdict.blocks import InBlocks, in_blocks
from fp8verify.verdict.clauses import first_said, optional
from fp8verify.verdict.ledger import Cell, Layer, Ledger, Place, Program, Slot
from fp8verify.verdict.shortfalls import Shortfalls
from fp8verify.verdict.statements import Statements


class _Row(NamedTuple):
    """What an entry of the report says, but for where: equal ones are joined."""

    slot: Slot
    leg: Leg
    launches: int
    low: int
    unknown: int
    precision: str
    least: int | None
    by: str | None
    lacks: str | None


def ledger_report(
    lacking: Shortfalls,
    statements: Statements,
    ranks: Sequence[RankEvidence],
) -> LedgerReport | None:
    """Return the ledger of a run, None where no GEMM of a layer ran."""
    ledger = lacking.ledger
    places = sorted(ledger.program_of)
    if not places:
        return None
    number_of = {place: number for number, place in enumerate(places)}
    rows: dict[_Row, list[int]] = defaultdict(list)
    for program in ledger.programs:
        blocks = in_blocks((e.slot for e in program.entries), statements.blocks)
        for alike in _alike(program, lacking):
            numbers = [number_of[place] for place in alike]
            for row in _rows(program, alike[0], lacking, blocks):
                rows[row].extend(numbers)
    slots = {slot: n for n, slot in enumerate(dict.fromkeys(r.slot for r in rows))}
    shown = list(rows.items())[:SHOWN_ENTRIES]
    names = _names_in_order(ledger, statements)
    return LedgerReport(
        executions=tuple(_execution(place, ranks) for place in places),
        slots=tuple(_slots(list(slots), names)),
        entries=tuple(_entry(row, slots[row.slot], numbers) for row, numbers in shown),
        left_out=len(rows) - len(shown),
    )


def _alike(program: Program, lacking: Shortfalls) -> list[list[Place]]:
    """Return the executions of a program, those that lack the same together."""
    found: dict[object, list[Place]] = defaultdict(list)
    for place in program.places:
        cells = [Cell(*place, *key) for key in program.by_layer]
        lacks = tuple(
            (_lacks(cell, lacking), _launches(cell, lacking)) for cell in cells
        )
        found[lacks].append(place)
    return list(found.values())


def _lacks(cell: Cell, lacking: Shortfalls) -> str | None:
    rows = ((cell in lacking.lacks, "surely"), (cell in lacking.may_lack, "perhaps"))
    return first_said(rows) or None


def _launches(cell: Cell, lacking: Shortfalls) -> int:
    """Return how many launches of a cell lack, surely or else perhaps."""
    lack = lacking.lacks.get(cell) or lacking.may_lack.get(cell)
    return round(lack.launches) if lack is not None else 0


def _rows(
    program: Program, place: Place, lacking: Shortfalls, blocks: InBlocks
) -> Iterator[_Row]:
    """Yield what an execution ran and lacks, an entry a row.

    Of entries of one layer and leg, the first that did not run low lack what lacks, but none of
    blocks that the log keeps in high precision.
    """
    rest: dict[Cell, int] = {}
    for entry in program.entries:
        cell = Cell(*place, entry.slot.layer, entry.leg)
        ran = entry.ran
        amount = rest.setdefault(cell, _launches(cell, lacking))
        lacks = min(amount, ran.launches - ran.low)
        if blocks.is_pinned(entry.slot):
            lacks = 0
        rest[cell] -= lacks
        by = lacking.by.get(cell)
        is_expected = cell in lacking.expected and by is not None
        yield _Row(
            slot=entry.slot,
            leg=entry.leg,
            launches=ran.launches,
            low=ran.low,
            unknown=ran.unknown,
            precision=ran.precision.value,
            least=ran.low + lacks if is_expected or lacks else None,
            by=by.name.lower() if by is not None else None,
            lacks=_lacks(cell, lacking) if lacks else None,
        )


def _entry(row: _Row, slot: int, numbers: Iterable[int]) -> LedgerEntry:
    return LedgerEntry(
        slot=slot,
        leg=row.leg,
        executions=tuple(_ranges(sorted(numbers))),
        launches=row.launches,
        low=row.low,
        unknown=row.unknown,
        precision=row.precision,
        least=row.least,
        by=row.by,
        lacks=row.lacks,
    )


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Join neighbors among numbers in order."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        first = number
        if ranges and number - ranges[-1][1] <= 1:
            first, _ = ranges.pop()
        ranges.append((first, number))
    return ranges


def _execution(place: Place, ranks: Sequence[RankEvidence]) -> LedgerExecution:
    trace = ranks[place.rank].trace
    step = None
    if place.step >= 0:
        step = trace.steps[place.step].number
    return LedgerExecution(
        rank=trace.rank,
        step=step,
        micro_batch=place.micro_batch + 1,
    )


# ---- what a slot is called


def _names_in_order(
    ledger: Ledger, statements: Statements
) -> dict[Slot, tuple[str, ...]]:
    """Return the modules of slots, where the order of the calls is that of the module list."""
    names: dict[Slot, tuple[str, ...]] = {}
    for program in ledger.programs:
        for calls, modules in statements.in_order(program, program.places[0].rank):
            for call in calls:
                slot = program.by_call[call][0].slot
                fqns = tuple(module.fqn for module in modules)
                if names.setdefault(slot, fqns) != fqns:
                    names[slot] = ()  # experts of several blocks take turns
    return names


def _slots(
    slots: Sequence[Slot], names: Mapping[Slot, tuple[str, ...]]
) -> Iterable[LedgerSlot]:
    blocks = in_blocks(slots, None).total
    for slot in slots:
        yield _slot(slot, blocks, names.get(slot, ()))


def _slot(slot: Slot, blocks: int, ordered: tuple[str, ...]) -> LedgerSlot:
    each = slot.of // blocks if blocks > 1 and slot.of % blocks == 0 else 0
    block = None
    position = slot.number
    if each:
        block, position = divmod(slot.number, each)
    what, size = _kind_of(slot.layer)
    names = ordered
    named_by = optional("order", when=ordered)
    if isinstance(slot.layer, str):
        names = (slot.layer,)
        named_by = "trace"
    where = f"block {block}, {what}" if block is not None else what
    outputs, inputs = size or (None, None)
    return LedgerSlot(
        label=" or ".join(names) or where,
        names=names,
        named_by=named_by or None,
        block=block,
        position=position,
        n=outputs,
        k=inputs,
    )


def _kind_of(layer: Layer) -> tuple[str, tuple[int, ...] | None]:
    """Return how a slot of a layer is called that has no name, and outputs and inputs if known."""
    if layer == EXPERTS:
        return "experts", None
    if isinstance(layer, tuple):
        return shown_size(layer), layer
    return "call", None

"""The ledger as the report has it: executions, slots, and runs of equal entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.ledger import (
    LedgerEntry,
    LedgerExecution,
    LedgerReport,
    LedgerSlot,
)
from fp8verify.terms import Leg
from fp8verify.text import join_windows, shown_size
from fp8verify.thresholds import SHOWN_ENTRIES
from fp8verify.verdict.blocks import InBlocks, in_blocks
from fp8verify.verdict.clauses import optional
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.ledger import Cell, Layer, Ledger, Place, Program, Slot
from fp8verify.verdict.shortfalls import Shortfalls
from fp8verify.verdict.statements import Statements


class _Lacking(NamedTuple):
    """How many launches of a cell lack, and whether "surely" or "perhaps"."""

    launches: int = 0
    how: str | None = None


class _Row(NamedTuple):
    """What an entry of the report says, but for where: equal ones are joined."""

    slot: Slot
    leg: Leg
    launches: int
    low: int
    unknown: int
    precision: str
    least: int | None = None
    by: str | None = None
    lacks: str | None = None


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
        slots_of_program = [entry.slot for entry in program.entries]
        blocks = in_blocks(slots_of_program, statements.blocks)
        for alike in _alike(program, lacking):
            numbers = [number_of[place] for place in alike]
            for row in _rows(program, alike[0], lacking, blocks):
                rows[row].extend(numbers)
    slots = list(dict.fromkeys(row.slot for row in rows))
    number_of_slot = {slot: number for number, slot in enumerate(slots)}
    entries = []
    for row, numbers in islice(rows.items(), SHOWN_ENTRIES):
        entries.append(_entry(row, number_of_slot[row.slot], numbers))
    names = _names_in_order(ledger, statements)
    return LedgerReport(
        executions=tuple(_execution(place, ranks) for place in places),
        slots=tuple(_slots(slots, names)),
        entries=tuple(entries),
        left_out=len(rows) - len(entries),
    )


def _alike(program: Program, lacking: Shortfalls) -> list[list[Place]]:
    """Return the executions of a program, those that lack the same together."""
    found: dict[object, list[Place]] = defaultdict(list)
    for place in program.places:
        lacks = []
        for key in program.by_layer:
            cell = Cell(*place, *key)
            lacks.append(_lacking_of(cell, lacking))
        found[tuple(lacks)].append(place)
    return list(found.values())


def _lacking_of(cell: Cell, lacking: Shortfalls) -> _Lacking:
    """Return what of a cell lacks, surely or else perhaps."""
    ways = {"surely": lacking.lacks, "perhaps": lacking.may_lack}
    for how, lacks in ways.items():
        lack = lacks.get(cell)
        if lack is not None:
            return _Lacking(round(lack.launches), how)
    return _Lacking()


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
        lack = _lacking_of(cell, lacking)
        left = rest.setdefault(cell, lack.launches)
        lacks = min(left, ran.launches - ran.low)
        if blocks.is_pinned(entry.slot):
            lacks = 0
        rest[cell] -= lacks
        witness = lacking.by.get(cell)
        is_expected = witness is not None and cell in lacking.expected
        least = None
        if is_expected or lacks:
            least = ran.low + lacks
        yield _Row(
            slot=entry.slot,
            leg=entry.leg,
            launches=ran.launches,
            low=ran.low,
            unknown=ran.unknown,
            precision=ran.precision.value,
            least=least,
            by=_CALLED.get(witness),
            lacks=lack.how if lacks else None,
        )


# How the report calls a witness, and none.
_CALLED: Final[dict[Witness | None, str]] = {
    witness: witness.name.lower() for witness in Witness
}


def _entry(row: _Row, slot: int, numbers: Iterable[int]) -> LedgerEntry:
    in_order = sorted(set(numbers))
    windows = join_windows(zip(in_order, in_order, strict=True))
    return LedgerEntry(
        slot=slot,
        leg=row.leg,
        executions=tuple(windows),
        launches=row.launches,
        low=row.low,
        unknown=row.unknown,
        precision=row.precision,
        least=row.least,
        by=row.by,
        lacks=row.lacks,
    )


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
    layer = _layer_of(slot.layer)
    label = layer.label
    block = None
    position = slot.number
    if blocks > 1 and slot.of >= blocks and slot.of % blocks == 0:
        block, position = divmod(slot.number, slot.of // blocks)
        label = f"block {block}, {label}"
    names = layer.names or ordered
    by_trace = optional("trace", when=layer.names)
    by_order = optional("order", when=ordered)
    named_by = by_trace or by_order
    return LedgerSlot(
        label=" or ".join(names) or label,
        names=names,
        named_by=named_by or None,
        block=block,
        position=position,
        n=layer.outputs,
        k=layer.inputs,
    )


class _Layer(NamedTuple):
    """A layer as slots have it: how it is called without a name, its names, and its size."""

    label: str
    names: tuple[str, ...] = ()
    outputs: int | None = None
    inputs: int | None = None


_UNSIZED: Final[dict[Layer, _Layer]] = {
    EXPERTS: _Layer("experts"),
    None: _Layer("unknown layer"),
}


def _layer_of(layer: Layer) -> _Layer:
    if isinstance(layer, str):
        return _Layer(layer, (layer,))
    if isinstance(layer, tuple) and layer not in _UNSIZED:
        return _Layer(shown_size(layer), (), *layer)
    return _UNSIZED[layer]

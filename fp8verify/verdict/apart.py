"""Which calls of inner blocks ran in high precision, where the other blocks ran them in low.

Blocks call the same layers. Recipes keep the first and the last blocks in high precision, and some
models every second or third; one block between others is neither. Nothing states that it should
have run in low precision, so that is a warning and no verdict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import filterfalse, pairwise
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.kinds import EXPERTS
from fp8verify.capture.schema import ModuleRecord
from fp8verify.terms import Leg
from fp8verify.thresholds import HALF, LEAST_BLOCKS, MOST_APART
from fp8verify.verdict.blocks import between, block_in, in_blocks
from fp8verify.verdict.ledger import Layer, Ledger, Program
from fp8verify.verdict.statements import Statements


class Apart(NamedTuple):
    """A call of an inner block that ran otherwise than that of the other blocks.

    Attributes:
        block: the number of the block, counted from 0.
        others: how many other blocks there are.
        layer: the layer.
        modules: the names of those that it may be; empty if the order of calls names none.
    """

    block: int
    others: int
    layer: Layer
    modules: tuple[str, ...]


class _Position(NamedTuple):
    """What the calls of all blocks have in common.

    Attributes:
        name: of the layer, without the number of its block; empty if it is not known.
        layer: its size.
        number: the place of the call among those of the layer in a block, or of a name.
        blocks: how many blocks there are; 0 if their names number them.
    """

    name: str
    layer: Layer
    number: int
    blocks: int


class _Call(NamedTuple):
    """A call of the forward pass, with its position and its block."""

    position: _Position
    block: int
    place: int
    modules: tuple[str, ...]


class _Ran:
    """What a call of a block ran in all executions."""

    def __init__(self, call: _Call, layer: Layer) -> None:
        self.layer = layer
        self.modules = call.modules
        self.launches = 0
        self.low = 0
        self.unknown = 0

    @property
    def is_low(self) -> bool:
        return self.low == self.launches

    @property
    def is_high(self) -> bool:
        return not self.low and not self.unknown


_ByBlock: TypeAlias = "dict[int, _Ran]"
_ByPosition: TypeAlias = "dict[_Position, _ByBlock]"


def _no_positions() -> _ByPosition:
    return defaultdict(dict)


def calls_apart(ledger: Ledger, statements: Statements) -> dict[int, list[Apart]]:
    """Return by rank the calls that ran in high precision in few inner blocks alone."""
    ran: dict[int, _ByPosition] = defaultdict(_no_positions)
    for program in ledger.programs:
        free = filterfalse(statements.is_high, program.places)
        executions = Counter(place.rank for place in free)
        # Ranks with equal module lists have equal calls.
        by_context: dict[int, list[_Call]] = {}
        for rank, count in executions.items():
            context = statements.context(rank)
            if context not in by_context:
                calls = _calls(program, rank, statements)
                by_context[context] = list(calls)
            for call in by_context[context]:
                _add(ran[rank][call.position], call, program, count)
    return {rank: list(_apart(positions)) for rank, positions in ran.items()}


def _apart(positions: _ByPosition) -> Iterator[Apart]:
    for position, by_block in positions.items():
        for block in _odd(by_block, is_named=bool(position.name)):
            ran = by_block[block]
            yield Apart(
                block=block,
                others=len(by_block) - 1,
                layer=ran.layer,
                modules=ran.modules,
            )


def _add(
    by_block: _ByBlock,
    call: _Call,
    program: Program,
    executions: int,
) -> None:
    entries = program.by_call[call.place]
    layer = entries[0].slot.layer
    ran = by_block.setdefault(call.block, _Ran(call, layer))
    for entry in entries:
        if entry.leg is Leg.FPROP:
            ran.launches += entry.ran.launches * executions
            ran.low += entry.ran.low * executions
            ran.unknown += entry.ran.unknown * executions


def _odd(by_block: Mapping[int, _Ran], *, is_named: bool) -> Sequence[int]:
    """Return the few blocks between others that alone ran in high precision.

    Sizes that each block has several times make more blocks than there are, so without names the
    fewer have to be odd. What returns at equal distances is how the model is built.
    """
    low = [block for block, ran in by_block.items() if ran.is_low]
    high = [block for block, ran in by_block.items() if ran.is_high]
    if len(low) + len(high) < len(by_block):
        return ()
    inner = between(sorted(high), low)
    most = HALF if is_named else MOST_APART
    are_few = len(inner) < most * len(by_block)
    if not are_few or _is_regular(high):
        return ()
    if not is_named and len(by_block) < LEAST_BLOCKS:
        return ()
    return inner


def _is_regular(blocks: Sequence[int]) -> bool:
    """Whether blocks are at equal distances of more than one."""
    distances = {after - before for before, after in pairwise(sorted(blocks))}
    return len(distances) == 1 and distances != {1}


# ---- which block a call is of


def _calls(program: Program, rank: int, statements: Statements) -> Iterator[_Call]:
    """Yield the calls of which nothing states what they run, with their blocks."""
    if statements.modules_of(rank, None):
        yield from _named_calls(program, rank, statements)
    elif not statements.keeps_layers:
        yield from _calls_in_order(program)


def _named_calls(
    program: Program, rank: int, statements: Statements
) -> Iterator[_Call]:
    """Yield the calls of modules whose class nobody knows, by the numbers in their names."""
    for places, modules in _modules_of_calls(program, rank, statements):
        are_open = all(map(statements.is_open, modules))
        # Neighbors of one size may be called in another order than they are listed.
        names = tuple(module.fqn for module in modules)
        block = block_in(names[0])
        if block is None or not are_open:
            continue
        for number, place in enumerate(places):
            position = _Position(
                name=block.layer,
                layer=program.calls[place].size,
                number=number,
                blocks=0,
            )
            yield _Call(position, block.number, place, names)


def _modules_of_calls(
    program: Program, rank: int, statements: Statements
) -> Iterator[tuple[Sequence[int], Sequence[ModuleRecord]]]:
    """Yield calls with their modules: by the names that the trace has, else by their order."""
    has_names = False
    for place in program.forward_calls:
        layer = program.by_call[place][0].slot.layer
        if isinstance(layer, str):
            has_names = True
            modules = statements.modules_of(rank, layer)
            if modules:
                yield [place], modules
    if not has_names:
        yield from statements.in_order(program, rank)


def _calls_in_order(program: Program) -> Iterator[_Call]:
    """Yield the calls of layers that all blocks call equally often."""
    slots = [entry.slot for entry in program.entries]
    blocks = in_blocks(slots, None)
    for place in program.forward_calls:
        slot = program.by_call[place][0].slot
        in_block = blocks.place_of(slot)
        if in_block is None or slot.layer == EXPERTS:
            continue
        block, number = in_block
        position = _Position(
            name="",
            layer=slot.layer,
            number=number,
            blocks=blocks.total,
        )
        yield _Call(position, block, place, ())

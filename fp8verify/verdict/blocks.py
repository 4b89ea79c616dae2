"""Which blocks of a model calls are of: by their order, as equal blocks call equally many layers.

The names of layers have the number of their block.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Final, NamedTuple

from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Leg
from fp8verify.verdict.ledger import Cell, Ledger, Slot
from fp8verify.verdict.pins import Blocks

# The number of a block within the name of a layer.
_NUMBER: Final = lazy_pattern(r"\.(\d+)\.")


class NamedBlock(NamedTuple):
    """A layer by what it is called in all blocks, and the number of its block."""

    layer: str
    number: int


def block_in(name: str) -> NamedBlock | None:
    """Return the block of a layer by its name, which has the number of the block first.

    Of "layers.3.mlp.up" that is "layers.*.mlp.up" and 3; None is returned of "lm_head".
    """
    parts = _NUMBER.split(name, maxsplit=1)
    if len(parts) != 3:
        return None
    before, number, after = parts
    return NamedBlock(f"{before}.*.{after}", int(number))


def between(blocks: Iterable[int], ends: Iterable[int]) -> list[int]:
    """Return those of blocks that are behind the first and before the last of others."""
    in_order = sorted(ends)
    inner = []
    for block in blocks:
        if in_order and in_order[0] < block < in_order[-1]:
            inner.append(block)
    return inner


class InBlocks(NamedTuple):
    """How calls are divided among blocks.

    Attributes:
        total: how many blocks there are; 0 or 1 if they cannot be told.
        pinned: those that the log keeps in high precision.
    """

    total: int
    pinned: frozenset[int]

    def place_of(self, slot: Slot) -> tuple[int, int] | None:
        """Return the block that makes a call, and which of those of its layer in the block it is.

        None is returned if that is not known.
        """
        if self.total < 2 or slot.of % self.total or not _repeats(slot):
            return None
        each = slot.of // self.total
        return divmod(slot.number, each)

    def block_of(self, slot: Slot) -> int | None:
        """Return the number of the block that makes a call; None if it is not known."""
        place = self.place_of(slot)
        if place is None:
            return None
        block, _ = place
        return block

    def is_pinned(self, slot: Slot) -> bool:
        """Whether a call is of a block that the log keeps in high precision."""
        return self.block_of(slot) in self.pinned


def in_blocks(slots: Iterable[Slot], pinned: Blocks | None) -> InBlocks:
    """Divide calls among blocks: the calls of each layer are a multiple of their number.

    Args:
        slots: of all calls; layers that are called once are outside of blocks.
        pinned: what the log says of blocks.
    """
    repeated = [slot.of for slot in slots if _repeats(slot)]
    total = gcd(*repeated)
    if pinned is not None and pinned.total == total:
        return InBlocks(total, pinned.pinned)
    return InBlocks(total, frozenset())


def _repeats(slot: Slot) -> bool:
    """Whether a forward call is of a layer that is called several times; without sizes none is."""
    is_forward = slot.sort is Leg.FPROP
    has_size = slot.layer is not None
    return is_forward and has_size and slot.of > 1


def lacking_blocks(
    ledger: Ledger,
    lacks: dict[Cell, float],
    pinned: Blocks | None,
) -> list[int]:
    """Return the blocks whose calls are all that cells lack.

    None are returned if that cannot be told, as where a block has no entry, or if it is all blocks.

    Args:
        ledger: what ran.
        lacks: how many launches each cell lacks.
        pinned: what the log says of blocks.
    """
    found: set[int | None] = set()
    seen: set[int | None] = set()
    total = 0
    are_all = True
    for cell, launches in lacks.items():
        program = ledger.program_of[cell.place]
        slots = [entry.slot for entry in program.entries]
        blocks = in_blocks(slots, pinned)
        total = max(total, blocks.total)
        high = 0
        for entry in ledger.entries(cell):
            block = blocks.block_of(entry.slot)
            seen.add(block)
            is_pinned = block in blocks.pinned
            if not entry.is_low and not is_pinned:
                found.add(block)
                high += entry.ran.launches - entry.ran.low
        are_all = are_all and high == round(launches)
    # A block without an entry may have run in one of another block.
    every_block_ran = len(seen - {None}) == total
    lacking = [block for block in found if block is not None]
    are_known = len(lacking) == len(found)
    is_part = len(lacking) < total
    is_told = are_all and are_known and every_block_ran and is_part
    return sorted(lacking) if is_told else []

"""What the log keeps in high precision: blocks by their numbers, and layers by their names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from fp8verify.logs.statements import LayerClaim
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Leg
from fp8verify.verdict.ledger import Slot

# Names of output heads in Hugging Face, torchtitan, Megatron-LM and nanoGPT.
HEAD: Final = lazy_pattern(
    r"(?:^|\.)(?:lm_head|head|output|output_layer|embed_out|classifier)$"
)
# The path of a layer within a block: "layers.0.attention.wo".
_IN_BLOCK: Final = lazy_pattern(r"\.\d+\.\w")


class Blocks(NamedTuple):
    """The blocks of a model, by the log: how many, and the numbers of those in high precision."""

    total: int
    pinned: frozenset[int]

    def has_free(self, slot: Slot) -> bool:
        """Whether a call is of a block that is not pinned; not where its block is not known.

        The calls of a layer repeat with the blocks; without sizes those behind the last block do
        not.
        """
        each, rest = divmod(slot.of, self.total)
        block = slot.number // max(1, each)
        is_divided = each > 0 and (not rest or slot.layer is None)
        is_of_block = slot.sort is Leg.FPROP and block < self.total
        return is_divided and is_of_block and block not in self.pinned


def _ahead(placed: tuple[int, int]) -> int:
    """Return how far a block is ahead of its place: as far as others that it follows on."""
    place, block = placed
    return block - place


class Pins:
    """The lines of a log that keep layers in high precision."""

    def __init__(self, claims: Sequence[LayerClaim]) -> None:
        """Take the pins among what a log says of layers."""
        self._pins = [claim for claim in claims if claim.is_pin]
        blocks: set[int] = set()
        for pin in self._pins:
            if pin.select == "blocks":
                blocks.update(map(int, pin.names))
        # Blocks that follow one another, from the first to the last.
        self._rows: list[list[int]] = []
        in_order = enumerate(sorted(blocks))
        for _, group in groupby(in_order, key=_ahead):
            row = [block for _, block in group]
            self._rows.append(row)

    @property
    def most_in_a_row(self) -> int:
        """How many blocks that follow one another are pinned: of a stage of a pipeline."""
        lengths = map(len, self._rows)
        return max(lengths, default=0)

    @property
    def first_and_last(self) -> Blocks | None:
        """All blocks, if the first and the last ones are those that are pinned."""
        if len(self._rows) != 2 or self._rows[0][0] != 0:
            return None
        first, last = self._rows
        total = last[-1] + 1
        return Blocks(total, frozenset((*first, *last)))

    @property
    def layers(self) -> int | None:
        """How many layers are pinned; None if it may be more than there are names."""
        names: set[str] = set()
        for pin in self._pins:
            if not _names_single_layers(pin):
                return None
            names.update(pin.names)
        return len(names) or None


NO_PINS: Final = Pins(())


def _names_single_layers(pin: LayerClaim) -> bool:
    """Whether each name of a pin is one layer's: a head's, or a whole path with its block."""
    for name in pin.names:
        is_path = pin.select == "name" and _IN_BLOCK.search(name)
        if not is_path and not HEAD.search(name):
            return False
    return pin.select in ("part", "name")

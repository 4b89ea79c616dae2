"""What the log keeps in high precision: blocks by their numbers, and layers by their names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from fp8verify.logs.statements import LayerClaim
from fp8verify.patterns import lazy_pattern

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


class Pins:
    """The lines of a log that keep layers in high precision."""

    def __init__(self, claims: Sequence[LayerClaim]) -> None:
        """Take the pins among what a log says of layers."""
        self._pins = [claim for claim in claims if claim.is_pin]
        blocks: set[int] = set()
        for pin in self._pins:
            if pin.select == "blocks":
                blocks.update(map(int, pin.names))
        self._blocks = sorted(blocks)
        # The places of blocks that do not follow the one before.
        self._gaps: list[int] = []
        for place, (before, block) in enumerate(pairwise(self._blocks), 1):
            if block - before > 1:
                self._gaps.append(place)

    @property
    def most_in_a_row(self) -> int:
        """How many blocks that follow one another are pinned: of a stage of a pipeline."""
        bounds = [0, *self._gaps, len(self._blocks)]
        return max(end - begin for begin, end in pairwise(bounds))

    @property
    def first_and_last(self) -> Blocks | None:
        """All blocks, if the first and the last ones are those that are pinned."""
        if 0 not in self._blocks or len(self._gaps) != 1:
            return None
        return Blocks(self._blocks[-1] + 1, frozenset(self._blocks))

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

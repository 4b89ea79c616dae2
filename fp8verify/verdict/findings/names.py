"""How sentences name what is short: layers by name, by order or by size, micro-batches, blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from fp8verify import thresholds as limits
from fp8verify.analysis.rank import RankEvidence
from fp8verify.text import (
    abridged,
    enumerated,
    in_sentences,
    patterns,
)
from fp8verify.verdict.blocks import lacking_blocks
from fp8verify.verdict.clauses import by_number, optional
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.expected import CONVERTED
from fp8verify.verdict.explanation import Shortfall
from fp8verify.verdict.ledger import Cell, Layer, Place
from fp8verify.verdict.selection import layers_of, places_of
from fp8verify.verdict.shortfalls import Shortfalls
from fp8verify.verdict.statements import Statements
from fp8verify.verdict.wording import (
    join_values,
    name_values,
)


class Names:
    """The names of what shortfalls of a run are about."""

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        lacking: Shortfalls,
        statements: Statements,
    ) -> None:
        """Keep what names come from: what lacks, and what is stated of it."""
        self._ranks = ranks
        self._lacking = lacking
        self._ledger = lacking.ledger
        self._statements = statements

    def value(self, short: Shortfall, name: str) -> str:
        """Name the values of a coordinate, as a sentence does."""
        values = name_values(self._ranks, short.cells, name)
        if name == "layer":
            names = patterns(self.modules(short))
            are_sizes = all(value[:1].isdigit() for value in values)
            if not names and are_sizes:
                return f"{enumerated(values, limits.SHOWN_NUMBERS)} layers"
            return abridged(in_sentences(names or values), limits.SHOWN_NUMBERS)
        return join_values(values, name)

    def micro_batches(self, short: Shortfall) -> str:
        """Say which micro-batches are short: by number where those of every step are."""
        lacking = places_of(short.cells)
        every = places_of(self._ledger.cells)
        counts = f"{len(lacking)} of {len(every)}"
        if not _are_of_every_step(lacking, every):
            return f"{counts} micro-batches"
        named = self.value(short, "micro-batch")
        steps = {place[:2] for place in every}
        if len(steps) > 1:
            return f"{named} of each step"
        return named

    def modules(self, short: Shortfall) -> tuple[str, ...]:
        """Return the names of the converted modules that layers of a shortfall are."""
        of_layers = "layer" in short.coordinates
        by_order = self._by_order(short)
        if by_order and (of_layers or layers_of(short.cells) == {None}):
            return by_order
        layers = dict.fromkeys((cell.rank, cell.layer) for cell in short.cells)
        names = tuple(layer for _, layer in layers if isinstance(layer, str))
        if not of_layers and len(names) < len(layers):
            return ()
        if names:
            return self._converted(layers) or names
        return self._lacking_modules(short.cells) or self._converted(layers)

    def _converted(self, layers: Iterable[tuple[int, Layer]]) -> tuple[str, ...]:
        """Return the names of the modules that layers of ranks are, of those to run low."""
        names: dict[str, None] = {}
        for rank, layer in layers:
            for module in self._statements.modules_of(rank, layer):
                if module.state in CONVERTED or module.fqn == layer:
                    names[module.fqn] = None
        return tuple(names)

    def _by_order(self, short: Shortfall) -> tuple[str, ...]:
        """Return the modules that the order of calls names, none unless it names all that lack.

        Gradients need not be in order, so a layer is named by those of its cells that are.
        """
        in_order = list(filter(self._is_named_by_order, short.cells))
        if layers_of(in_order) != layers_of(short.cells):
            return ()
        return self._lacking_modules(in_order)

    def _lacking_modules(self, cells: Iterable[Cell]) -> tuple[str, ...]:
        """Return the modules that cells lack, where witnesses name them, each once."""
        named: dict[str, None] = {}
        for cell in cells:
            named.update(dict.fromkeys(self._lacking.lacks[cell].names))
        return tuple(named)

    def _is_named_by_order(self, cell: Cell) -> bool:
        is_by_order = Witness.NAMES in self._lacking.lacks[cell].by
        return is_by_order and not isinstance(cell.layer, str)

    def few_modules(self, cells: Iterable[Cell]) -> str:
        """Name the layers that some cells lack, if these are few and not named by the cells."""
        unnamed = (cell for cell in cells if not isinstance(cell.layer, str))
        named = self._lacking_modules(unnamed)
        # More are all those of a size, of which some lack.
        if len(named) > limits.SHOWN:
            return ""
        return ", ".join(in_sentences(named))

    def all_modules(self, short: Shortfall) -> tuple[str, ...]:
        """Return the names of the modules that lack, whatever names them."""
        return self.modules(short) or self._by_order(short)

    def place_in_order(self, short: Shortfall) -> str:
        """Name what `in_order` does, as a message has it: blocks with what their numbers mean."""
        named = self.in_order(short)
        if named and not self._by_order(short):
            return f"{named} (counted from 0, in the order of the calls)"
        return named

    def in_order(self, short: Shortfall) -> str:
        """Name the layers, or else the blocks, of all that legs lack, by the order of the calls."""
        if short.coordinates != ("leg",):
            return ""
        names = self._by_order(short)
        if names:
            return abridged(in_sentences(patterns(names)), limits.SHOWN)
        lacks = {cell: self._lacking.launches(cell) for cell in short.cells}
        blocks = lacking_blocks(self._ledger, lacks, self._statements.blocks)
        numbers = abridged(list(map(str, blocks)), limits.SHOWN_NUMBERS)
        name = by_number(blocks, "block", "blocks")
        return optional(f"{name} {numbers}", when=blocks)


def _are_of_every_step(lacking: Set[Place], every: Set[Place]) -> bool:
    """Whether few micro-batches are short, and these in every step."""
    numbers = {place.micro_batch for place in lacking}
    alike = {place for place in every if place.micro_batch in numbers}
    has_steps = all(place.step >= 0 for place in every)
    return has_steps and lacking == alike and len(numbers) <= limits.SHOWN_NUMBERS

"""How sentences name what is short: layers by name, by order or by size, micro-batches, blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from itertools import filterfalse

from fp8verify import thresholds as limits
from fp8verify.analysis.rank import RankEvidence
from fp8verify.text import (
    abridged,
    enumerated,
    in_sentences,
    patterns,
)
from fp8verify.verdict.blocks import lacking_blocks
from fp8verify.verdict.clauses import by_number
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
            modules = self.modules(short)
            names = patterns(modules)
            are_sizes = all(map(_begins_with_digit, values))
            if are_sizes and not names:
                sizes = enumerated(values, limits.SHOWN_NUMBERS)
                return f"{sizes} layers"
            layers = in_sentences(names or values)
            return abridged(layers, limits.SHOWN_NUMBERS)
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
        are_unsized = layers_of(short.cells) == {None}
        if by_order and (of_layers or are_unsized):
            return by_order
        layers: dict[tuple[int, Layer], None] = {}
        for cell in short.cells:
            layers[cell.rank, cell.layer] = None
        names = tuple(layer for _, layer in layers if isinstance(layer, str))
        are_few = len(names) < len(layers)
        if are_few and not of_layers:
            return ()
        if names:
            return self._converted(layers) or names
        lacking = self._lacking_modules(short.cells)
        return lacking or self._converted(layers)

    def _converted(self, layers: Iterable[tuple[int, Layer]]) -> tuple[str, ...]:
        """Return the names of the modules that layers of ranks are, of those to run low."""
        names: dict[str, None] = {}
        for rank, layer in layers:
            for module in self._statements.modules_of(rank, layer):
                is_converted = module.state in CONVERTED
                if is_converted or module.fqn == layer:
                    names[module.fqn] = None
        return tuple(names)

    def _by_order(self, short: Shortfall) -> tuple[str, ...]:
        """Return the modules that the order of calls names, none unless it names all that lack.

        Gradients need not be in order, so a layer is named by those of its cells that are.
        """
        in_order = list(filter(self._is_named_by_order, short.cells))
        named = layers_of(in_order)
        if named != layers_of(short.cells):
            return ()
        return self._lacking_modules(in_order)

    def _lacking_modules(self, cells: Iterable[Cell]) -> tuple[str, ...]:
        """Return the modules that cells lack, where witnesses name them, each once."""
        named: dict[str, None] = {}
        for cell in cells:
            lack = self._lacking.lacks[cell]
            named.update(dict.fromkeys(lack.names))
        return tuple(named)

    def _is_named_by_order(self, cell: Cell) -> bool:
        lack = self._lacking.lacks[cell]
        is_by_order = Witness.NAMES in lack.by
        return is_by_order and not _has_name(cell)

    def few_modules(self, cells: Iterable[Cell]) -> str:
        """Name the layers that some cells lack, if these are few and not named by the cells."""
        unnamed = filterfalse(_has_name, cells)
        named = self._lacking_modules(unnamed)
        # More are all those of a size, of which some lack.
        if len(named) > limits.SHOWN:
            return ""
        names = in_sentences(named)
        return ", ".join(names)

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
            layers = in_sentences(patterns(names))
            return abridged(layers, limits.SHOWN)
        lacks = {cell: self._lacking.launches(cell) for cell in short.cells}
        pinned = self._statements.blocks
        blocks = lacking_blocks(self._ledger, lacks, pinned)
        if not blocks:
            return ""
        numbers = list(map(str, blocks))
        shown = abridged(numbers, limits.SHOWN_NUMBERS)
        return f"{by_number(blocks, 'block', 'blocks')} {shown}"


def _begins_with_digit(value: str) -> bool:
    return value[:1].isdigit()


def _has_name(cell: Cell) -> bool:
    """Whether the layer of a cell is known by its name."""
    return isinstance(cell.layer, str)


def _are_of_every_step(lacking: Set[Place], every: Set[Place]) -> bool:
    """Whether few micro-batches are short, and these in every step."""
    numbers = {place.micro_batch for place in lacking}
    alike = {place for place in every if place.micro_batch in numbers}
    has_steps = all(place.step >= 0 for place in every)
    are_few = len(numbers) <= limits.SHOWN_NUMBERS
    return has_steps and are_few and lacking == alike

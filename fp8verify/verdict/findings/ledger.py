"""Findings on what the ledger lacks, by the coordinate that explains the most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from fp8verify import thresholds as limits
from fp8verify.analysis.calls import Execution, Tie, of_rows
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.verdict import Finding
from fp8verify.terms import BACKWARD_LEGS, LEGS, Leg, low_precision_name
from fp8verify.text import (
    abridged,
    counted,
    enumerated,
    in_sentences,
    of_flops,
    patterns,
)
from fp8verify.verdict.advice import Fact, facts_of, is_unaligned
from fp8verify.verdict.blocks import lacking_blocks
from fp8verify.verdict.coordinates import by_value
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.expected import CONVERTED, Promises
from fp8verify.verdict.explanation import Explanation, Shortfall
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.ledger import Cell, Layer, Ledger
from fp8verify.verdict.reasons import logged_cause
from fp8verify.verdict.shortfalls import Lack, Shortfalls
from fp8verify.verdict.statements import Statements
from fp8verify.verdict.wording import (
    join_values,
    name_legs,
    name_value,
    name_values,
    what_ran,
)

# What says that values of a coordinate fall short; of a leg and a layer, other codes may.
_CODES: Final = {
    "rank": "rank-without-fp8",
    "step": "step-without-fp8",
    "micro-batch": "pass-without-fp8",
    "layer": "layer-not-fp8",
    "leg": "leg-not-fp8",
}
# Of these codes a sentence says that a part of a value falls short.
_HAVE_PARTS: Final = frozenset({"rank", "step", "micro-batch"})

# What is part of what: "fprop in layers.2.up in step 5".
_FROM_SMALL: Final = ("leg", "layer", "micro-batch", "step", "rank")
# The legs of a layer that trains: its gradients may not be told apart.
_OF_A_PASS: Final = frozenset({*LEGS, Leg.BACKWARD})


class LedgerFindings:
    """What the ledger of a run says of its parts.

    Attributes:
        ledger: what ran.
        statements: what is stated of it.
        lacking: what it lacks.
        shortfalls: what explains the cells that are short.
        doubted: cells that are short, but may be of other layers.
        accused: the places of the ranks that fall short.
        alone: those of ranks that lack FP8 as ranks, whatever their steps and legs.
    """

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        promises: Promises,
        executions: Sequence[Sequence[Execution]],
        seen: str = "",
    ) -> None:
        """Explain what cells lack, of ranks that lack more than little and of whole steps.

        Args:
            ranks: all.
            promises: what the log and the model promised.
            executions: of each rank, those that can be compared with those of the others.
            seen: where the GEMMs ran, if that is not the window.
        """
        self._ranks = ranks
        self._promises = promises
        self._seen = seen
        self.statements = Statements(ranks, promises)
        self.ledger = Ledger(executions)
        self.lacking = Shortfalls(self.ledger, self.statements)
        counting = self.lacking.counting()
        self._few = [cell for cell in self.lacking.lacks if cell not in counting]
        self.shortfalls: list[Shortfall] = []
        self.doubted: list[Cell] = []
        for short in Explanation(self.lacking, counting).shortfalls():
            if self._is_doubt(short):
                self.doubted += short.cells
            else:
                self.shortfalls.append(short)
        self._findings = []
        accused: set[int] = set()
        alone: set[int] = set()
        for short in self.shortfalls:
            places = _places(short)
            self._findings.append((self._said(short), places))
            accused |= places
            if short.coordinates in (("rank",), ("rank", "layer")):
                alone |= places
        self.accused = frozenset(accused)
        self.alone = frozenset(alone)

    def _is_doubt(self, short: Shortfall) -> bool:
        """Whether parts may be of other layers: chunks of another tower, or stages of a pipeline.

        What a list, the log or a call states is none.
        """
        if all(self._lack(cell).is_certain for cell in short.cells):
            return False
        is_of_ranks = short.coordinates[0] == "rank"
        if is_of_ranks and all(self._ranks[place].ran_low for place in _places(short)):
            return self._may_be_stages()
        has_unsized = any(cell.layer is None for cell in short.cells)
        return "micro-batch" in short.coordinates and has_unsized

    def _may_be_stages(self) -> bool:
        """Whether ranks did not run all layers equally often, and nothing says why."""
        counts: dict[tuple[Layer, Leg], Counter[int]] = defaultdict(Counter)
        for cell, ran in self.ledger.cells.items():
            counts[cell.layer, cell.leg][cell.rank] += round(ran.launches)
        ranks = len({cell.rank for cell in self.ledger.cells})
        for of_rank in counts.values():
            if len(of_rank) != ranks or len(set(of_rank.values())) > 1:
                return self.statements.alike
        return False

    def findings(self, place: int) -> Iterator[Finding]:
        """Yield what is short of a rank, and what ran in high precision beside that."""
        for found, places in self._findings:
            if place in places:
                yield found
        rank = self._ranks[place]
        if not rank.ran_low:
            return
        for found in (
            *self._by_recipe(place),
            *self._too_few(place),
            *self._of_no_module(place),
        ):
            yield replace(found, ranks=rank.numbers, per_rank=True)

    def _by_recipe(self, place: int) -> Iterator[Finding]:
        """Yield the legs that the recipe keeps in high precision, and that ran there."""
        for leg in LEGS:
            cells = self.ledger.of_rank(place, leg)
            share = self.ledger.total(cells).share
            is_kept = self._promises.leaves_high(leg)
            if is_kept and share is not None and share < limits.HALF:
                yield finding("leg-not-fp8", "by-recipe", ran=self.ran(cells))

    def _too_few(self, place: int) -> Iterator[Finding]:
        """Yield what surely lacks, and is too little of the rank's work to count."""
        where: dict[str, None] = {}
        names: dict[str, None] = {}
        cells = []
        launches = 0.0
        for cell in self._few:
            if cell.rank != place or not self._is_of_a_layer(cell):
                continue
            cells.append(cell)
            leg, layer, step = (
                name_value(self._ranks, cell, name) for name in ("leg", "layer", "step")
            )
            where[f"{leg} of {layer} in {step}"] = None
            lack = self._lack(cell)
            names.update(dict.fromkeys(lack.names))
            launches += self.lacking.lacking(cell)
        if round(launches):
            yield finding(
                "layer-not-fp8",
                "few",
                count=counted(round(launches), "GEMM"),
                format=self._promises.name,
                precision=self.ledger.main_high(cells),
                where=abridged(list(where), limits.SHOWN),
                layers=names,
            )

    def _is_of_a_layer(self, cell: Cell) -> bool:
        """Whether what lacks is a layer's: without a size, launches of a leg may be attention's."""
        strongest = min(self._lack(cell).by)
        if cell.layer is None and strongest is Witness.CALL:
            entries = self.ledger.entries(cell)
            return any(e.tie is Tie.NUMBER and not e.is_low for e in entries)
        return strongest < Witness.OTHERS

    def _of_no_module(self, place: int) -> Iterator[Finding]:
        """Yield what ran in high precision without a size, where the list keeps no module there."""
        if place in self.accused:
            return
        cells = [
            cell for cell in self.ledger.of_rank(place) if self._is_of_no_module(cell)
        ]
        high = round(self.ledger.total(cells).high)
        if high:
            yield finding(
                "layer-not-fp8",
                "of-no-module",
                count=counted(high, "GEMM"),
                precision=self.ledger.main_high(cells),
            )

    def _is_of_no_module(self, cell: Cell) -> bool:
        statements = self.statements
        modules = statements.modules_of(cell.rank, None)
        if cell.layer is not None or not modules or cell in self.lacking.lacks:
            return False
        if statements.is_high(cell.place):
            return False
        return not statements.may_be_high(modules, cell.leg)

    def by_names(self, place: int) -> list[Finding]:
        """Return what the eager step shows that names the layers of compiled code."""
        rank = self._ranks[place]
        naming = rank.trace.naming
        if naming is None or rank.trace.named is not naming:
            return []
        seen = f" (seen in step {naming.step}, which ran without torch.compile)"
        named = LedgerFindings([rank], self._promises, [[of_rows(naming.rows)]], seen)
        return [found for found, _ in named._findings]

    def ran(self, cells: Iterable[Cell], of: str = "") -> str:
        """Say how many GEMMs of some cells ran in high precision."""
        return what_ran(self._ranks, self.ledger, cells, of)

    # ---- what is short

    def _said(self, short: Shortfall) -> Finding:
        names = short.coordinates
        if len(names) > 1 and "layer" not in names:  # the finding names its ranks
            names = tuple(name for name in names if name != "rank")
        facts = self._facts(short, names)
        main = _main_coordinate(names)
        rank = self._ranks[short.cells[0].rank]
        holds = facts_of(rank) | self._circumstances(short)
        is_part = len(names) > 1 and (main != "micro-batch" or "layer" in names)
        if main in _HAVE_PARTS and is_part:
            return finding(_CODES[main], "part", **facts, holds=holds)
        less = "less" if short.ran.low else ""
        if main in _HAVE_PARTS:
            return finding(_CODES[main], less, **facts)
        if self._is_counted(short):
            return self._said_of_count(short)
        if main == "layer":
            return finding(_CODES[main], less, **facts, holds=holds)
        if {cell.leg for cell in short.cells} == {Leg.RECOMPUTE}:
            return finding("recompute-not-fp8", "kernels", **facts)
        in_order = self._place_in_order(short)
        if not in_order:
            return finding(_CODES[main], **facts, holds=holds)
        if Fact.WHOLE.value in holds:
            facts["but"] = self._pins_of_blocks()
            facts["in_order"] = in_order
            return finding("layer-not-fp8", "in-order", **facts, holds=holds)
        what = f"{self._lacking(short)} {name_legs(cell.leg for cell in short.cells)}"
        facts["ran"] = f"{what} GEMMs of {in_order} ran in {facts['precision']}"
        return finding(_CODES[main], **facts, holds=holds)

    def _circumstances(self, short: Shortfall) -> frozenset[str]:
        """Return what holds of what lacks, for the advice."""
        found = set()
        legs = {cell.leg for cell in short.cells}
        expected = {cell.leg for cell in self.lacking.expected}
        if legs >= expected.intersection(_OF_A_PASS) and len(legs) > 1:
            found.add(Fact.WHOLE.value)
        elif legs == {Leg.FPROP}:
            found.add(Fact.FORWARD.value)
        elif legs <= set(BACKWARD_LEGS):
            found.add(Fact.GRADIENT.value)
        if Leg.RECOMPUTE in legs:
            found.add(Fact.RECOMPUTED.value)
        if "rank" in short.coordinates:
            found.add(Fact.ONE_RANK.value)
        if {cell.layer for cell in short.cells} == {EXPERTS}:
            found.add(Fact.EXPERTS.value)
        rank = self._ranks[short.cells[0].rank]
        if is_unaligned(rank, legs, self._lacking(short) / len(_places(short))):
            found.add(Fact.UNALIGNED.value)
        return frozenset(found)

    def _place_in_order(self, short: Shortfall) -> str:
        """Name the layers, or else the blocks, of all that legs lack, by the order of the calls."""
        if short.coordinates != ("leg",):
            return ""
        names = self._named_by_order(short)
        if names:
            return abridged(in_sentences(patterns(names)), limits.SHOWN)
        lacks = {cell: self.lacking.lacking(cell) for cell in short.cells}
        blocks = lacking_blocks(self.ledger, lacks, self.statements.blocks)
        if not blocks:
            return ""
        numbers = abridged(list(map(str, blocks)), limits.SHOWN_NUMBERS)
        name = "block" if len(blocks) == 1 else "blocks"
        return f"{name} {numbers} (counted from 0, in the order of the calls)"

    def _pins_of_blocks(self) -> str:
        """Say which others the log keeps in high precision, where it says that of any."""
        cause = logged_cause(self._promises)
        return f"; {cause}" if cause else ""

    def _is_counted(self, short: Shortfall) -> bool:
        """Whether only a count of the log shows it, so nobody knows which layers it is."""
        return all(self._lack(cell).by == {Witness.COUNT} for cell in short.cells)

    def _lacking(self, short: Shortfall) -> int:
        """Return how many GEMMs lack; of what only other calls of a layer show, all in high."""
        lacks = 0.0
        for cell in short.cells:
            if self._lack(cell).by == {Witness.OTHERS}:
                lacks += self.ledger.cells[cell].high
            else:
                lacks += self.lacking.lacking(cell)
        return round(lacks)

    def _said_of_count(self, short: Shortfall) -> Finding:
        lacks = round(sum(map(self.lacking.lacking, short.cells)))
        claim = self.statements.counts[0]
        of = f"{claim.converted} of {claim.total}"
        return finding(
            "layer-not-fp8",
            "counted",
            ranks=self._numbers(short),
            count=counted(lacks, "GEMM"),
            format=self._promises.name,
            which=f"log {claim.place} says that {of} layers were",
        )

    def _numbers(self, short: Shortfall) -> list[int]:
        """Return the numbers of the ranks that a shortfall is about."""
        numbers: list[int] = []
        for place in sorted(_places(short)):
            numbers += self._ranks[place].numbers
        return numbers

    def _facts(self, short: Shortfall, names: Sequence[str]) -> dict[str, Any]:
        """Return what the sentences of all codes name."""
        values = {name: self._named(short, name) for name in short.coordinates}
        fqns = self._names_of(short)
        named = values.get("layer") or abridged(patterns(fqns), limits.SHOWN_NUMBERS)
        work = sum(map(self._work_of, short.cells)) / len(_places(short))
        kernels = self._ranks[short.cells[0].rank].linear.kernels
        others = sum(rank.ran_low for rank in self._ranks)
        count = counted(fqns or list(short.values), "converted layer")
        return {
            **values,
            "ranks": self._numbers(short),
            "layers": fqns,
            "parts": " in ".join(values[name] for name in _FROM_SMALL if name in names),
            "lacks": counted(self._lacking(short), "GEMM"),
            "others": counted(others, "other rank"),
            "where": self._micro_batches(short),
            "ran": self._ran_alike(short, named, of_layers="layer" in names),
            "count": count,
            "names": named,
            "whose": count if len(fqns) > 1 else named,
            "list": f": {named}" if len(fqns) > 1 else "",
            "format": self._promises.name,
            "formats": low_precision_name(kernels),
            "share": f"{self._seen}{of_flops(work)}",
            "lacking": f"{work:.1%} of {self._of_work(short)}{self._seen}",
            "most": short.ran.share or 0.0,
            "usual": short.usual,
            "precision": self.ledger.main_high(short.cells),
        }

    def _ran_alike(self, short: Shortfall, named: str, *, of_layers: bool) -> str:
        """Say what ran at the values of a shortfall, and of which layers it is."""
        names = short.coordinates
        cells: list[Cell] = []
        for value, members in by_value(self.ledger.cells, names).items():
            if value in short.values:
                cells += members
        of = f" of {named}" if of_layers else ""
        for name in ("micro-batch", "step"):
            if name in names:
                of += f" in {self._named(short, name)}"
        after = f": {named}" if named and not of_layers else ""
        return f"{self.ran(cells, of)}{self._seen}{after}"

    def _micro_batches(self, short: Shortfall) -> str:
        """Say which micro-batches are short: by number where those of every step are."""
        lacking = {cell.place for cell in short.cells}
        every = {cell.place for cell in self.ledger.cells}
        numbers = {place.micro_batch for place in lacking}
        alike = {place for place in every if place.micro_batch in numbers}
        counts = f"{len(lacking)} of {len(every)}"
        has_steps = all(place.step >= 0 for place in every)
        if lacking != alike or len(numbers) > limits.SHOWN_NUMBERS or not has_steps:
            return f"{counts} micro-batches"
        named = self._named(short, "micro-batch")
        steps = {place[:2] for place in every}
        return f"{named} of each step ({counts})" if len(steps) > 1 else named

    def _named(self, short: Shortfall, name: str) -> str:
        """Name the values of a coordinate, as a sentence does."""
        values = name_values(self._ranks, short.cells, name)
        if name == "layer":
            names = patterns(self._names_of(short))
            are_sizes = all(value[:1].isdigit() for value in values)
            if not names and are_sizes:
                return f"{enumerated(values, limits.SHOWN_NUMBERS)} layers"
            return abridged(in_sentences(names or values), limits.SHOWN_NUMBERS)
        return join_values(values, name)

    def _names_of(self, short: Shortfall) -> tuple[str, ...]:
        """Return the names of the converted modules that layers of a shortfall are."""
        layers = dict.fromkeys((cell.rank, cell.layer) for cell in short.cells)
        names = [layer for _, layer in layers if isinstance(layer, str)]
        by_order = self._named_by_order(short)
        of_layers = "layer" in short.coordinates
        if by_order and (of_layers or {layer for _, layer in layers} == {None}):
            return by_order
        if not of_layers and len(names) < len(layers):
            return ()
        named: dict[str, None] = {}
        for cell in short.cells:
            named.update(dict.fromkeys(self._lack(cell).names))
        if named and not names:
            return tuple(named)
        converted: dict[str, None] = {}
        for rank, layer in layers:
            for module in self.statements.modules_of(rank, layer):
                if module.state in CONVERTED or module.fqn in names:
                    converted[module.fqn] = None
        return tuple(converted or dict.fromkeys(names))

    def _named_by_order(self, short: Shortfall) -> tuple[str, ...]:
        """Return the modules that the order of calls names, none unless it names all that lack.

        Gradients need not be in order, so a layer is named by those of its cells that are.
        """
        named: dict[str, None] = {}
        layers = set()
        for cell in short.cells:
            lack = self._lack(cell)
            if Witness.NAMES in lack.by and not isinstance(cell.layer, str):
                named.update(dict.fromkeys(lack.names))
                layers.add(cell.layer)
        return tuple(named) if layers == {cell.layer for cell in short.cells} else ()

    def _work_of(self, cell: Cell) -> float:
        ran = self.ledger.cells[cell]
        return self.lacking.lacking(cell) * ran.work / ran.launches

    def _of_work(self, short: Shortfall) -> str:
        """Name what a share of work is a share of."""
        in_flops = all(self.ledger.in_flops[place] for place in _places(short))
        return "all GEMM FLOPs" if in_flops else "all GEMMs"

    def _lack(self, cell: Cell) -> Lack:
        return self.lacking.lacks[cell]


def _main_coordinate(names: Sequence[str]) -> str:
    """Return the coordinate that the finding on values of several is about."""
    if "micro-batch" in names and names[0] not in ("rank", "leg"):
        return "micro-batch"
    return names[0]


def _places(short: Shortfall) -> frozenset[int]:
    """Return the places of the ranks that a shortfall is about."""
    return frozenset(cell.rank for cell in short.cells)

"""Findings on what the ledger lacks, by the coordinate that explains the most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec.structs import replace

from fp8verify import thresholds as limits
from fp8verify.analysis.calls import Execution, Tie, of_rows
from fp8verify.analysis.kinds import EXPERTS
from fp8verify.analysis.rank import RankEvidence
from fp8verify.model.verdict import Finding
from fp8verify.terms import LEGS, Leg
from fp8verify.text import abridged, counted
from fp8verify.verdict.apart import Apart, calls_apart
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.explanation import Explanation, Shortfall
from fp8verify.verdict.findings.names import Names
from fp8verify.verdict.findings.shortfall import Compared, ShortfallFacts
from fp8verify.verdict.findings_table import finding, told
from fp8verify.verdict.ledger import Cell, Entry, Layer, Ledger
from fp8verify.verdict.selection import layers_of, of_one_rank, ranks_of
from fp8verify.verdict.shortfalls import Shortfalls
from fp8verify.verdict.statements import Statements
from fp8verify.verdict.wording import name_of_apart, name_value, what_ran

# Along these, ranks lack FP8 as ranks.
_OF_RANKS: Final = (("rank",), ("rank", "layer"))


class _Accusation(NamedTuple):
    """A finding, and the indices of the ranks that fall short by it."""

    finding: Finding
    indices: frozenset[int]


class LedgerFindings:
    """What the ledger of a run says of its parts.

    Attributes:
        ledger: what ran.
        statements: what is stated of it.
        lacking: what it lacks.
        shortfalls: what explains the cells that are short.
        doubted: cells that are short, but may be of other layers.
        accused: the indices of the ranks that fall short.
        alone: those of ranks that lack FP8 as ranks, whatever their steps and legs.
    """

    def __init__(
        self,
        ranks: Sequence[RankEvidence],
        requested: Requested,
        executions: Sequence[Sequence[Execution]],
        seen: str = "",
    ) -> None:
        """Explain what cells lack, of ranks that lack more than little and of whole steps.

        Args:
            ranks: all.
            requested: what the log and the model request.
            executions: of each rank, those that can be compared with those of the others.
            seen: where the GEMMs ran, if that is not the window.
        """
        self._ranks = ranks
        self._requested = requested
        self.statements = Statements(ranks, requested)
        self.ledger = Ledger(executions)
        self.lacking = Shortfalls(self.ledger, self.statements)
        self._names = Names(ranks, self.lacking, self.statements)
        counting = self.lacking.counting()
        self._few = [cell for cell in self.lacking.lacks if cell not in counting]
        self.shortfalls: list[Shortfall] = []
        self.doubted: list[Cell] = []
        explanation = Explanation(self.lacking, counting)
        for short in explanation.shortfalls():
            if self._is_doubt(short):
                self.doubted += short.cells
            else:
                self.shortfalls.append(short)
        run = Compared(
            ranks=ranks,
            requested=requested,
            statements=self.statements,
            lacking=self.lacking,
            shortfalls=self.shortfalls,
            names=self._names,
            seen=seen,
        )
        self._accusations: list[_Accusation] = []
        self.accused: set[int] = set()
        self.alone: set[int] = set()
        for short in self.shortfalls:
            facts = ShortfallFacts(run, short)
            indices = ranks_of(short.cells)
            accusation = _Accusation(facts.finding(), indices)
            self._accusations.append(accusation)
            self.accused |= indices
            if short.coordinates in _OF_RANKS:
                self.alone |= indices

    # ---- what may be of other layers

    def _is_doubt(self, short: Shortfall) -> bool:
        """Whether parts may be of other layers: chunks of another tower, or stages of a pipeline.

        What a list, the log or a call states is none.
        """
        lacks = map(self.lacking.lacks.__getitem__, short.cells)
        if all(lack.is_certain for lack in lacks):
            return False
        is_of_ranks = short.coordinates[0] == "rank"
        indices = ranks_of(short.cells)
        if is_of_ranks and self._ran_low(indices):
            return self._may_be_stages()
        has_unsized = None in layers_of(short.cells)
        return has_unsized and "micro-batch" in short.coordinates

    def _ran_low(self, indices: Iterable[int]) -> bool:
        ranks = map(self._ranks.__getitem__, indices)
        return all(rank.ran_low for rank in ranks)

    def _may_be_stages(self) -> bool:
        """Whether ranks did not run all layers equally often, and nothing says why."""
        counts: dict[tuple[Layer, Leg], Counter[int]] = defaultdict(Counter)
        for cell, ran in self.ledger.cells.items():
            of_ranks = counts[cell.layer, cell.leg]
            of_ranks[cell.rank] += round(ran.launches)
        ranks = ranks_of(self.ledger.cells)
        are_alike = True
        for of_ranks in counts.values():
            numbers = set(of_ranks.values())
            ran_on_all = of_ranks.keys() == ranks
            ran_alike = ran_on_all and len(numbers) == 1
            are_alike = are_alike and ran_alike
        return self.statements.alike and not are_alike

    # ---- what is said of a rank

    def findings(self, index: int) -> Iterator[Finding]:
        """Yield what is short of a rank, and what ran in high precision beside that."""
        for accusation in self._accusations:
            if index in accusation.indices:
                yield accusation.finding
        rank = self._ranks[index]
        if rank.ran_low:
            for found in self._beside(index):
                yield replace(found, ranks=rank.numbers, per_rank=True)

    def _beside(self, index: int) -> Iterator[Finding]:
        yield from self._by_recipe(index)
        yield from self._too_few(index)
        yield from self._of_no_module(index)
        yield from self._apart(index)

    def _by_recipe(self, index: int) -> Iterator[Finding]:
        """Yield the legs that the recipe keeps in high precision, and that ran there."""
        for leg in filter(self._requested.leaves_high, LEGS):
            cells = self.ledger.of_rank(index, leg)
            ran = self.ledger.total(cells)
            is_high = ran.high > ran.low
            yield from told(
                "leg-not-fp8",
                "by-recipe",
                when=is_high,
                ran=self.ran(cells),
            )

    def few(self, index: int) -> list[Cell]:
        """Return what of a rank surely lacks, and is too little of its work to count."""
        few = of_one_rank(self._few, index)
        return list(filter(self._is_of_a_layer, few))

    def _too_few(self, index: int) -> Iterator[Finding]:
        """Say what surely lacks, and is too little to count."""
        cells = self.few(index)
        where: dict[str, None] = {}
        names: dict[str, None] = {}
        lacking = 0.0
        for cell in cells:
            layer = name_value(self._ranks, cell, "layer")
            step = name_value(self._ranks, cell, "step")
            lack = self.lacking.lacks[cell]
            where[f"{cell.leg.value} of {layer} in {step}"] = None
            names.update(dict.fromkeys(lack.names))
            lacking += lack.launches
        launches = round(lacking)
        yield from told(
            "layer-not-fp8",
            "few",
            when=launches,
            count=counted(launches, "GEMM"),
            format=self._requested.name,
            precision=self.ledger.main_high(cells),
            where=abridged(list(where), limits.SHOWN),
            layers=names,
        )

    def _is_of_a_layer(self, cell: Cell) -> bool:
        """Whether what lacks is a layer's: without a size, launches of a leg may be attention's."""
        lack = self.lacking.lacks[cell]
        strongest = min(lack.by)
        if cell.layer is None and strongest is Witness.CALL:
            entries = self.ledger.entries(cell)
            return any(map(_is_numbered_and_high, entries))
        return strongest < Witness.OTHERS

    def _of_no_module(self, index: int) -> Iterator[Finding]:
        """Yield what ran in high precision without a size, where the list keeps no module there."""
        of_rank = self.ledger.of_rank(index)
        cells = list(filter(self._is_of_no_module, of_rank))
        ran = self.ledger.total(cells)
        high = round(ran.high)
        is_accused = index in self.accused
        yield from told(
            "layer-not-fp8",
            "of-no-module",
            when=high and not is_accused,
            count=counted(high, "GEMM"),
            precision=self.ledger.main_high(cells),
        )

    @cached_property
    def _calls_apart(self) -> dict[int, list[Apart]]:
        return calls_apart(self.ledger, self.statements)

    def _apart(self, index: int) -> Iterator[Finding]:
        """Yield the layers that ran in high precision in single inner blocks, each once."""
        calls = self._calls_apart.get(index, ())
        if not calls or index in self.accused:
            return
        whose: dict[str, None] = {}
        names: dict[str, None] = {}
        for call in calls:
            whose[name_of_apart(call)] = None
            names.update(dict.fromkeys(call.modules))
        others = max(call.others for call in calls)
        yield finding(
            "layer-not-fp8",
            "apart",
            whose=abridged(list(whose), limits.SHOWN),
            others=counted(others, "other block"),
            format=self._requested.name,
            precision=self.ledger.main_high(self.ledger.of_rank(index)),
            layers=names,
        )

    def _is_of_no_module(self, cell: Cell) -> bool:
        """Whether a list is there, and neither it nor the log keeps the GEMMs of a cell high."""
        lacks = cell in self.lacking.lacks
        if cell.layer is not None or lacks:
            return False
        modules = self.statements.modules_of(cell.rank, None)
        is_listed_high = self.statements.may_be_high(modules, cell.leg)
        is_logged_high = self.statements.is_high(cell.place)
        is_kept = is_listed_high or is_logged_high
        return bool(modules) and not is_kept

    def by_names(self, index: int) -> list[Finding]:
        """Return what the eager step shows that names the layers of compiled code."""
        rank = self._ranks[index]
        trace = rank.trace
        naming = trace.naming
        if naming is None or trace.named is not naming:
            return []
        seen = f" (seen in step {naming.step}, which ran without torch.compile)"
        executions = [[of_rows(naming.rows)]]
        requested = self._requested
        named = LedgerFindings([rank], requested, executions, seen)
        return [accusation.finding for accusation in named._accusations]

    # ---- what others say with it

    def ran(self, cells: Iterable[Cell], of: str = "") -> str:
        """Say how many GEMMs of some cells ran in high precision."""
        return what_ran(self._ranks, self.ledger, cells, of)

    def names_of(self, cells: Iterable[Cell]) -> str:
        """Name the layers that some cells lack, if these are few and not named by the cells."""
        return self._names.few_modules(cells)

    def tells_experts(self, index: int) -> bool:
        """Whether all that experts of a rank ran in high precision is said to lack."""
        of_rank = self.ledger.of_rank(index)
        of_experts = filter(_is_of_experts, of_rank)
        high = self.ledger.total(of_experts).high
        lacking: list[Cell] = []
        for short in filter(_lack_experts, self.shortfalls):
            lacking += of_one_rank(short.cells, index)
        told = self.ledger.total(lacking)
        return 0 < high == told.high


def _lack_experts(short: Shortfall) -> bool:
    return layers_of(short.cells) == {EXPERTS}


def _is_of_experts(cell: Cell) -> bool:
    return cell.layer == EXPERTS


def _is_numbered_and_high(entry: Entry) -> bool:
    return entry.tie is Tie.NUMBER and not entry.is_low

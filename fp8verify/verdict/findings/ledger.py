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
    capital,
    counted,
    enumerated,
    label_of_ranks,
    of_flops,
    patterns,
)
from fp8verify.verdict.advice import Fact, facts_of, is_unaligned, those_that_hold
from fp8verify.verdict.beside import (
    are_listed,
    ran_low_elsewhere,
    ranks_that_ran_low,
    with_same_calls,
)
from fp8verify.verdict.clauses import (
    all_that_hold,
    first_said,
    optional,
)
from fp8verify.verdict.coordinates import by_value
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.explanation import Explanation, Shortfall
from fp8verify.verdict.findings.names import Names
from fp8verify.verdict.findings_table import finding, told
from fp8verify.verdict.ledger import Cell, Layer, Ledger
from fp8verify.verdict.reasons import logged_cause
from fp8verify.verdict.selection import (
    layers_of,
    legs_in,
    of_one_rank,
    ranks_of,
)
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


# Along these, ranks lack FP8 as ranks.
_OF_RANKS: Final = (("rank",), ("rank", "layer"))


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
        self._seen = seen
        self.statements = Statements(ranks, requested)
        self.ledger = Ledger(executions)
        self.lacking = Shortfalls(self.ledger, self.statements)
        self._names = Names(ranks, self.lacking, self.statements)
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
        self.accused: set[int] = set()
        self.alone: set[int] = set()
        for short in self.shortfalls:
            ranks_short = ranks_of(short.cells)
            self._findings.append((self._said(short), ranks_short))
            self.accused |= ranks_short
            if short.coordinates in _OF_RANKS:
                self.alone |= ranks_short

    def _is_doubt(self, short: Shortfall) -> bool:
        """Whether parts may be of other layers: chunks of another tower, or stages of a pipeline.

        What a list, the log or a call states is none.
        """
        lacks = map(self._lack, short.cells)
        is_certain = all(lack.is_certain for lack in lacks)
        ranks = [self._ranks[place] for place in ranks_of(short.cells)]
        ran_low = all(rank.ran_low for rank in ranks)
        if short.coordinates[0] == "rank" and ran_low:
            may_be_others = self._may_be_stages()
        else:
            has_unsized = None in layers_of(short.cells)
            may_be_others = has_unsized and "micro-batch" in short.coordinates
        return may_be_others and not is_certain

    def _may_be_stages(self) -> bool:
        """Whether ranks did not run all layers equally often, and nothing says why."""
        counts: dict[tuple[Layer, Leg], Counter[int]] = defaultdict(Counter)
        for cell, ran in self.ledger.cells.items():
            counts[cell.layer, cell.leg][cell.rank] += round(ran.launches)
        ranks = ranks_of(self.ledger.cells)
        differ = False
        for of_rank in counts.values():
            ran_on_all = of_rank.keys() == ranks
            is_alike = ran_on_all and len(set(of_rank.values())) == 1
            differ = differ or not is_alike
        return self.statements.alike and differ

    def findings(self, place: int) -> Iterator[Finding]:
        """Yield what is short of a rank, and what ran in high precision beside that."""
        yield from all_that_hold(
            (place in places, found) for found, places in self._findings
        )
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
            ran_high = share is not None and share < limits.HALF
            yield from told(
                "leg-not-fp8",
                "by-recipe",
                when=ran_high and self._requested.leaves_high(leg),
                ran=self.ran(cells),
            )

    def _too_few(self, place: int) -> Iterator[Finding]:
        """Yield what surely lacks, and is too little of the rank's work to count."""
        few = of_one_rank(self._few, place)
        cells = list(filter(self._is_of_a_layer, few))
        where: dict[str, None] = {}
        names: dict[str, None] = {}
        launches = 0.0
        for cell in cells:
            layer = name_value(self._ranks, cell, "layer")
            step = name_value(self._ranks, cell, "step")
            where[f"{cell.leg.value} of {layer} in {step}"] = None
            lack = self._lack(cell)
            names.update(dict.fromkeys(lack.names))
            launches += self.lacking.lacking(cell)
        yield from told(
            "layer-not-fp8",
            "few",
            when=round(launches),
            count=counted(round(launches), "GEMM"),
            format=self._requested.name,
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
        cells = list(filter(self._is_of_no_module, self.ledger.of_rank(place)))
        high = round(self.ledger.total(cells).high)
        yield from told(
            "layer-not-fp8",
            "of-no-module",
            when=high and place not in self.accused,
            count=counted(high, "GEMM"),
            precision=self.ledger.main_high(cells),
        )

    def _is_of_no_module(self, cell: Cell) -> bool:
        statements = self.statements
        modules = statements.modules_of(cell.rank, None)
        lacks = cell in self.lacking.lacks
        is_of_none = cell.layer is None and bool(modules) and not lacks
        kept = statements.may_be_high(modules, cell.leg)
        return is_of_none and not kept and not statements.is_high(cell.place)

    def by_names(self, place: int) -> list[Finding]:
        """Return what the eager step shows that names the layers of compiled code."""
        rank = self._ranks[place]
        naming = rank.trace.naming
        if naming is None or rank.trace.named is not naming:
            return []
        seen = f" (seen in step {naming.step}, which ran without torch.compile)"
        named = LedgerFindings([rank], self._requested, [[of_rows(naming.rows)]], seen)
        return [found for found, _ in named._findings]

    def ran(self, cells: Iterable[Cell], of: str = "") -> str:
        """Say how many GEMMs of some cells ran in high precision."""
        return what_ran(self._ranks, self.ledger, cells, of)

    def names_of(self, cells: Iterable[Cell]) -> str:
        """Name the layers that some cells lack, if these are few and not named by the cells."""
        return self._names.few_modules(cells)

    # ---- what is short

    def _said(self, short: Shortfall) -> Finding:
        names = _told_coordinates(short)
        is_of_one_rank = names[0] == "rank" and len(ranks_of(short.cells)) == 1
        main = _main_coordinate(names)
        if main not in _HAVE_PARTS and self._is_counted(short):
            return self._said_of_count(short)
        rank = self._ranks[short.cells[0].rank]
        holds = facts_of(rank) | self._circumstances(short)
        facts = self._facts(short, names)
        if main == "leg":
            return self._said_of_legs(short, facts, holds)
        is_part = len(names) > 1 and (main != "micro-batch" or "layer" in names)
        cases = (
            (is_part and main in _HAVE_PARTS, "part"),
            (short.ran.low, "less"),
        )
        case = first_said(cases)
        found = finding(_CODES[main], case, **facts, holds=holds)
        return replace(found, per_rank=is_of_one_rank and case == "part")

    def _said_of_legs(
        self, short: Shortfall, facts: dict[str, Any], holds: frozenset[str]
    ) -> Finding:
        """Say which legs are short; of which layers or blocks, where the order of calls tells."""
        if legs_in(short.cells) == {Leg.RECOMPUTE}:
            return finding("recompute-not-fp8", "kernels", **facts)
        in_order = self._names.place_in_order(short)
        facts["in_order"] = in_order
        facts["those"] = self._names.in_order(short) or facts["names"]
        facts["but"] = self._pins_of_blocks()
        if in_order and Fact.WHOLE.value in holds:
            return finding("layer-not-fp8", "in-order", **facts, holds=holds)
        legs = name_legs(legs_in(short.cells))
        what = counted(self._lacking(short), f"{legs} GEMM")
        ran = f"{what} of {in_order} ran in {facts['precision']}"
        facts["ran"] = optional(ran, when=in_order) or facts["ran"]
        return finding("leg-not-fp8", **facts, holds=holds)

    def _circumstances(self, short: Shortfall) -> frozenset[str]:
        """Return what holds of what lacks, for the advice."""
        legs = legs_in(short.cells)
        of_a_pass = legs_in(self.lacking.expected) & _OF_A_PASS
        is_whole = legs >= of_a_pass and len(legs) > 1
        are_gradients = legs.issubset(BACKWARD_LEGS)
        rank = self._ranks[short.cells[0].rank]
        lacks = self._lacking(short) / len(ranks_of(short.cells))
        listed = are_listed(self._ranks, self._names.all_modules(short), short.cells)
        is_of_ranks = "rank" in short.coordinates
        return those_that_hold(
            {
                Fact.WHOLE: is_whole,
                Fact.FORWARD: legs == {Leg.FPROP},
                Fact.GRADIENT: are_gradients and not is_whole,
                Fact.RECOMPUTED: Leg.RECOMPUTE in legs,
                Fact.ONE_RANK: is_of_ranks and bool(self._ran_elsewhere(short)),
                Fact.EXPERTS: layers_of(short.cells) == {EXPERTS},
                Fact.SAME_CALLS: bool(self._with_same_calls(short)),
                Fact.OTHER_CALLS: ran_low_elsewhere(self.ledger, short.cells),
                Fact.LISTED: listed is True,
                Fact.UNLISTED: is_of_ranks and listed is False,
                Fact.PINNED: self.statements.blocks is not None,
                Fact.UNALIGNED: is_unaligned(rank, legs, lacks),
            }
        )

    def _with_same_calls(self, short: Shortfall) -> list[Cell]:
        """Return what ran at other values of a step or a rank, and as much of each layer."""
        for name in ("step", "rank"):
            if name in short.coordinates:
                return with_same_calls(self.ledger, short.cells, name)
        return []

    def _ran_elsewhere(self, short: Shortfall) -> list[int]:
        """Return the places of ranks of which nothing lacks, and that ran the same legs low."""
        lacking: set[int] = set()
        for other in self.shortfalls:
            lacking |= ranks_of(other.cells)
        whole = ranks_of(self.ledger.cells) - lacking
        return ranks_that_ran_low(self.ledger, legs_in(short.cells), whole)

    def _beside(self, short: Shortfall) -> dict[str, str]:
        """Name what lacks for the advice, and what it may be compared with."""
        alike = self._with_same_calls(short)
        names = name_values(self._ranks, alike, "step")
        micro_batches = name_values(self._ranks, short.cells, "micro-batch")
        here = self._label(ranks_of(short.cells))
        elsewhere = self._label(self._ran_elsewhere(short)) or "the other ranks"
        return {
            "here": here,
            "Here": capital(here),
            "elsewhere": elsewhere,
            "Elsewhere": capital(elsewhere),
            "alike": join_values(names, "step"),
            "micro": join_values(micro_batches, "micro-batch"),
            "legs": name_legs(legs_in(short.cells)),
        }

    def _label(self, places: Iterable[int]) -> str:
        """Name ranks, "ranks 0, 2"; nothing for none."""
        ranks = [self._ranks[place] for place in sorted(places)]
        numbers = [number for rank in ranks for number in rank.numbers]
        if len(numbers) == len(ranks) > 0:
            return label_of_ranks(numbers)
        return enumerated([rank.label for rank in ranks])

    def _pins_of_blocks(self) -> str:
        """Say which others the log keeps in high precision, where it says that of any."""
        cause = logged_cause(self._requested)
        return optional(f"; {cause}", when=cause)

    def _is_counted(self, short: Shortfall) -> bool:
        """Whether only a count of the log shows it, so nobody knows which layers it is."""
        return all(self._lack(cell).by == {Witness.COUNT} for cell in short.cells)

    def _lacking(self, short: Shortfall) -> int:
        """Return how many GEMMs lack; of what only other calls of a layer show, all in high."""
        return round(sum(map(self._lacking_of, short.cells)))

    def _lacking_of(self, cell: Cell) -> float:
        if self._lack(cell).by == {Witness.OTHERS}:
            return self.ledger.cells[cell].high
        return self.lacking.lacking(cell)

    def _time_of(self, short: Shortfall) -> str:
        """Say how long what lacks took: of a cell the part of its time in high precision."""
        time_ns = 0.0
        for cell in short.cells:
            _, high_ns = self.ledger.times([cell])
            high = self.ledger.cells[cell].high
            part = min(1.0, self._lacking_of(cell) / high) if high else 0.0
            time_ns += part * high_ns
        return self._ranks[0].measure.amount(round(time_ns))

    def _lacking_of_all(self, short: Shortfall) -> str:
        """Say how many GEMMs lack, "108 of 432" where these are all in high precision there."""
        lacks = self._lacking(short)
        total = f" of {round(short.ran.launches)}"
        return f"{lacks}{optional(total, when=lacks == round(short.ran.high))}"

    def _said_of_count(self, short: Shortfall) -> Finding:
        claim = self.statements.counts[0]
        of = f"{claim.converted} of {claim.total}"
        return finding(
            "layer-not-fp8",
            "counted",
            ranks=self._numbers(short),
            count=counted(self._lacking(short), "GEMM"),
            format=self._requested.name,
            which=f"log {claim.place} says that {of} layers were",
        )

    def _numbers(self, short: Shortfall) -> list[int]:
        """Return the numbers of the ranks that a shortfall is about."""
        numbers: list[int] = []
        for place in sorted(ranks_of(short.cells)):
            numbers += self._ranks[place].numbers
        return numbers

    def _facts(self, short: Shortfall, names: Sequence[str]) -> dict[str, Any]:
        """Return what the sentences of all codes name."""
        values = {name: self._names.value(short, name) for name in short.coordinates}
        fqns = self._names.modules(short)
        named = values.get("layer") or abridged(patterns(fqns), limits.SHOWN_NUMBERS)
        work = sum(map(self._work_of, short.cells)) / len(ranks_of(short.cells))
        kernels = self._ranks[short.cells[0].rank].linear.kernels
        # What is said of one rank begins with its name.
        is_of_rank = len(ranks_of(short.cells)) == 1
        left_out = {"rank"} if is_of_rank else set()
        parts = [x for x in _FROM_SMALL if x in names and x not in left_out]
        others = sum(rank.ran_low for rank in self._ranks)
        count = counted(fqns or list(short.values), "converted layer")
        are_several = len(fqns) > 1
        step = values.get("step", "")
        return {
            **values,
            **self._beside(short),
            "Step": capital(step),
            "those": named,
            "ranks": self._numbers(short),
            "layers": fqns,
            "parts": " in ".join(values[name] for name in parts),
            "lacks": counted(self._lacking(short), "GEMM"),
            "others": counted(others, "other rank"),
            "where": self._names.micro_batches(short),
            "ran": self._ran_alike(short, named, of_layers="layer" in names),
            "count": count,
            "names": named,
            "whose": optional(count, when=are_several) or named,
            "list": optional(f": {named}", when=are_several),
            "format": self._requested.name,
            "formats": low_precision_name(kernels),
            "share": f"{self._seen}{of_flops(work)}",
            "lacking": f"{work:.1%} of {self._of_work(short)}{self._seen}",
            "most": short.ran.share or 0.0,
            "usual": short.usual,
            "lacks_of": self._lacking_of_all(short),
            "took": self._time_of(short),
            "precision": self.ledger.main_high(short.cells),
        }

    def _ran_alike(self, short: Shortfall, named: str, *, of_layers: bool) -> str:
        """Say what ran at the values of a shortfall, and of which layers it is."""
        names = short.coordinates
        cells: list[Cell] = []
        for value, members in by_value(self.ledger.cells, names).items():
            if value in short.values:
                cells += members
        of = optional(f" of {named}", when=of_layers)
        for name in filter(names.__contains__, ("micro-batch", "step")):
            of += f" in {self._names.value(short, name)}"
        after = optional(f": {named}", when=named and not of_layers)
        ran = self._ran_of_part(short, cells, of) or self.ran(cells, of)
        return f"{ran}{self._seen}{after}"

    def _ran_of_part(self, short: Shortfall, cells: Sequence[Cell], of: str) -> str:
        """Say what lacks of legs without FP8, where more of them was to run in high precision."""
        ran = self.ledger.total(cells)
        lacks = self._lacking(short)
        are_stated = all(self._lack(cell).is_stated for cell in short.cells)
        is_part = lacks < round(ran.high)
        may_be_either = Leg.BACKWARD in legs_in(self.ledger.cells)
        is_known = are_stated and is_part and not may_be_either
        if ran.low or ran.unknown or not is_known:
            return ""
        took = self._time_of(short)
        legs = name_legs(legs_in(short.cells))
        main = self.ledger.main_high(short.cells)
        return f"{lacks} {legs} GEMMs{of} ran in {main} ({took})"

    def tells_experts(self, place: int) -> bool:
        """Whether all that experts of a rank ran in high precision is said to lack."""
        high = 0.0
        for cell in self.ledger.of_rank(place):
            if cell.layer == EXPERTS:
                high += self.ledger.cells[cell].high
        told = 0.0
        for short in self.shortfalls:
            if layers_of(short.cells) == {EXPERTS}:
                cells = of_one_rank(short.cells, place)
                told += self.ledger.total(cells).high
        return 0 < high == told

    def _work_of(self, cell: Cell) -> float:
        ran = self.ledger.cells[cell]
        return self.lacking.lacking(cell) * ran.work / ran.launches

    def _of_work(self, short: Shortfall) -> str:
        """Name what a share of work is a share of."""
        in_flops = all(self.ledger.in_flops[place] for place in ranks_of(short.cells))
        return "all GEMM FLOPs" if in_flops else "all GEMMs"

    def _lack(self, cell: Cell) -> Lack:
        return self.lacking.lacks[cell]


def _told_coordinates(short: Shortfall) -> Sequence[str]:
    """Return the coordinates that a sentence names: the finding itself names its ranks."""
    names = short.coordinates
    if "layer" in names:
        return names
    return [name for name in names if name != "rank"] or names


def _main_coordinate(names: Sequence[str]) -> str:
    """Return the coordinate that the finding on values of several is about."""
    if "micro-batch" in names and names[0] not in ("rank", "leg"):
        return "micro-batch"
    return names[0]

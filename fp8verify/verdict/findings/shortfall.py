"""What is said of one shortfall: its facts, each worked out once, and the finding made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from fp8verify import thresholds as limits
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
from fp8verify.verdict.clauses import first_that_holds, optional
from fp8verify.verdict.coordinates import HAVE_PARTS, by_value
from fp8verify.verdict.expectation import Witness
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.explanation import Shortfall
from fp8verify.verdict.findings.names import Names
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.ledger import Cell
from fp8verify.verdict.reasons import logged_cause
from fp8verify.verdict.selection import layers_of, legs_in, ranks_of
from fp8verify.verdict.shortfalls import Lack, Shortfalls
from fp8verify.verdict.statements import Statements
from fp8verify.verdict.wording import (
    join_values,
    name_legs,
    name_values,
    of_gemm_time,
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
# What is part of what: "fprop in layers.2.up in step 5".
_FROM_SMALL: Final = ("leg", "layer", "micro-batch", "step", "rank")
# Passes that a sentence names.
_PASSES: Final = ("micro-batch", "step")
# The legs of a layer that trains: its gradients may not be told apart.
_OF_A_PASS: Final = frozenset({*LEGS, Leg.BACKWARD})


class Compared(NamedTuple):
    """What was requested of a run, what ran, and what it lacks.

    Attributes:
        ranks: all.
        requested: what the log and the model request.
        statements: what is stated of what ran.
        lacking: what the ledger lacks.
        shortfalls: what explains the cells that are short.
        names: how these are named.
        seen: where the GEMMs ran, if that is not the window.
    """

    ranks: Sequence[RankEvidence]
    requested: Requested
    statements: Statements
    lacking: Shortfalls
    shortfalls: Sequence[Shortfall]
    names: Names
    seen: str


class ShortfallFacts:
    """The facts of one shortfall."""

    def __init__(self, run: Compared, short: Shortfall) -> None:
        """Keep what the sentences are about."""
        self._run = run
        self._short = short
        self._ledger = run.lacking.ledger
        self._cells = short.cells
        self._legs = legs_in(short.cells)
        self._indices = ranks_of(short.cells)
        self._rank = run.ranks[short.cells[0].rank]
        self._coordinates = _told_coordinates(short.coordinates)
        self._main = _main_coordinate(self._coordinates)

    # ---- the finding

    def finding(self) -> Finding:
        """Return the finding that says it."""
        form = first_that_holds(self._forms(), self._of_value)
        return form()

    def _forms(self) -> Iterator[tuple[object, Callable[[], Finding]]]:
        """Yield how it may be said, and when; else it is said of values of a coordinate."""
        may_be_counted = self._main not in HAVE_PARTS
        yield may_be_counted and self._is_counted(), self._of_count
        is_of_legs = self._main == "leg"
        is_recompute = self._legs == {Leg.RECOMPUTE}
        yield is_of_legs and is_recompute, self._of_recompute
        is_of_layers = Fact.WHOLE.value in self._holds
        yield is_of_legs and is_of_layers and self._in_order, self._of_layers_in_order
        yield is_of_legs, self._of_legs

    def _of_value(self) -> Finding:
        """Say that values of a coordinate are short, or a part of them is."""
        is_part = self._lacks_part()
        ran_low = self._short.ran.low
        case = "part" if is_part else optional("less", when=ran_low)
        facts = self._facts()
        found = finding(_CODES[self._main], case, **facts, holds=self._holds)
        is_of_ranks = self._coordinates[0] == "rank"
        is_of_one_rank = is_of_ranks and len(self._indices) == 1
        return replace(found, per_rank=is_of_one_rank and is_part)

    def _lacks_part(self) -> bool:
        """Whether a part of the values lacks."""
        names_layers = "layer" in self._coordinates
        is_of_layers = names_layers or self._main != "micro-batch"
        are_several = len(self._coordinates) > 1
        return are_several and is_of_layers

    def _of_recompute(self) -> Finding:
        """Say that only passes that are computed again are short."""
        return finding("recompute-not-fp8", "kernels", **self._facts())

    @cached_property
    def _in_order(self) -> str:
        """Where legs are short, as far as the order of the calls tells."""
        return self._run.names.place_in_order(self._short)

    def _of_layers_in_order(self) -> Finding:
        """Say of which layers or blocks all legs are short."""
        facts = self._facts()
        named = self._run.names.in_order(self._short)
        facts["in_order"] = self._in_order
        facts["those"] = named or facts["names"]
        facts["but"] = self._pins_of_blocks()
        return finding("layer-not-fp8", "in-order", **facts, holds=self._holds)

    def _of_legs(self) -> Finding:
        """Say which legs are short; of which layers or blocks, where the order of calls tells."""
        facts = self._facts()
        what = counted(self.launches, f"{name_legs(self._legs)} GEMM")
        ran = f"{what} of {self._in_order} ran in {self._precision}"
        ran_in_order = optional(ran, when=self._in_order)
        facts["ran"] = ran_in_order or facts["ran"]
        return finding("leg-not-fp8", **facts, holds=self._holds)

    def _of_count(self) -> Finding:
        """Say how many GEMMs lack by a count of the log."""
        claim = self._run.statements.counts[0]
        of = optional(f" of {claim.total}", when=claim.total)
        which = f"log {claim.place} says that {claim.converted}{of} layers were"
        return finding(
            "layer-not-fp8",
            "counted",
            ranks=self._numbers(),
            count=counted(self.launches, "GEMM"),
            format=self._run.requested.name,
            which=which,
        )

    def _is_counted(self) -> bool:
        """Whether only a count of the log shows it, so nobody knows which layers it is."""
        lacks = map(self._lack, self._cells)
        return all(lack.by == {Witness.COUNT} for lack in lacks)

    # ---- how much lacks

    @cached_property
    def launches(self) -> int:
        """How many GEMMs lack; of what only other calls of a layer show, all in high precision."""
        lacking = map(self._lacking_of, self._cells)
        return round(sum(lacking))

    def _lacking_of(self, cell: Cell) -> float:
        if self._lack(cell).by == {Witness.OTHERS}:
            return self._ledger.cells[cell].high
        return self._lack(cell).launches

    def _lack(self, cell: Cell) -> Lack:
        return self._run.lacking.lacks[cell]

    @cached_property
    def _time_ns(self) -> int:
        """How long what lacks took at most.

        GEMMs of one size took alike, so a part of them took that part of the time.
        """
        time_ns = 0.0
        for cell in self._cells:
            _, high_ns = self._ledger.times([cell])
            part = self._part_of(cell)
            if self._is_of_sizes(cell):
                part = 1.0
            time_ns += part * high_ns
        return round(time_ns)

    def _part_of(self, cell: Cell) -> float:
        """Return which part of what ran in high precision in a cell lacks."""
        high = self._ledger.cells[cell].high
        if not high:
            return 0.0
        part = self._lacking_of(cell) / high
        return min(1.0, part)

    def _is_of_sizes(self, cell: Cell) -> bool:
        """Whether a part lacks of GEMMs that may have several sizes."""
        return cell.layer is None and 0 < self._part_of(cell) < 1

    @cached_property
    def _took(self) -> str:
        """How much of the GEMM time what lacks took."""
        run = self._run
        took = of_gemm_time(run.ranks, self._ledger, self._cells, self._time_ns)
        may_be_less = any(map(self._is_of_sizes, self._cells))
        at_most = optional("at most ", when=may_be_less)
        return f"{at_most}{took}"

    @cached_property
    def _work(self) -> float:
        """The work that lacks, as a fraction of a rank's."""
        work = 0.0
        for cell in self._cells:
            work += self._run.lacking.work(cell)
        return work / len(self._indices)

    @cached_property
    def _precision(self) -> str:
        """In what most of it ran."""
        return self._ledger.main_high(self._cells)

    # ---- what holds of it, for the advice

    @cached_property
    def _holds(self) -> frozenset[str]:
        return facts_of(self._rank) | self._circumstances()

    def _circumstances(self) -> frozenset[str]:
        """Return what holds of what lacks."""
        of_a_pass = legs_in(self._run.lacking.expected) & _OF_A_PASS
        is_whole = self._legs >= of_a_pass and len(self._legs) > 1
        are_gradients = self._legs.issubset(BACKWARD_LEGS)
        modules = self._run.names.all_modules(self._short)
        listed = are_listed(self._run.ranks, modules, self._cells)
        is_of_ranks = "rank" in self._short.coordinates
        of_a_rank = self.launches / len(self._indices)
        return those_that_hold(
            {
                Fact.WHOLE: is_whole,
                Fact.FORWARD: self._legs == {Leg.FPROP},
                Fact.GRADIENT: are_gradients and not is_whole,
                Fact.RECOMPUTED: Leg.RECOMPUTE in self._legs,
                Fact.ONE_RANK: is_of_ranks and bool(self._whole_ranks),
                Fact.EXPERTS: layers_of(self._cells) == {EXPERTS},
                Fact.SAME_CALLS: bool(self._same_calls),
                Fact.LATER: self._is_later(),
                Fact.OTHER_CALLS: ran_low_elsewhere(self._ledger, self._cells),
                Fact.LISTED: listed is True,
                Fact.UNLISTED: is_of_ranks and listed is False,
                Fact.PINNED: self._run.statements.blocks is not None,
                Fact.UNALIGNED: is_unaligned(self._rank, self._legs, of_a_rank),
            }
        )

    @cached_property
    def _same_calls(self) -> list[Cell]:
        """What ran at other values of a step or a rank, and as much of each layer."""
        for name in ("step", "rank"):
            if name in self._short.coordinates:
                return with_same_calls(self._ledger, self._cells, name)
        return []

    def _is_later(self) -> bool:
        """Whether the same ran in low precision in a step before it: then it is no warm-up."""
        first = min(cell.step for cell in self._cells)
        return any(cell.step < first for cell in self._same_calls)

    @cached_property
    def _whole_ranks(self) -> list[int]:
        """The indices of ranks of which nothing lacks, and that ran the same legs low."""
        lacking: set[int] = set()
        for other in self._run.shortfalls:
            lacking |= ranks_of(other.cells)
        whole = ranks_of(self._ledger.cells) - lacking
        return ranks_that_ran_low(self._ledger, self._legs, whole)

    # ---- what the sentences name

    def _facts(self) -> dict[str, Any]:
        """Return what the sentences of all codes name."""
        run = self._run
        short = self._short
        values = {}
        for name in short.coordinates:
            values[name] = run.names.value(short, name)
        modules = run.names.modules(short)
        things = modules or list(short.values)
        count = counted(things, "converted layer")
        shown = abridged(patterns(modules), limits.SHOWN_NUMBERS)
        named = values.get("layer") or shown
        are_several = len(modules) > 1
        others = sum(rank.ran_low for rank in run.ranks)
        parts = map(values.__getitem__, self._parts())
        return {
            **values,
            **self._beside(),
            "Step": capital(values.get("step", "")),
            "those": named,
            "ranks": self._numbers(),
            "layers": modules,
            "parts": " in ".join(parts),
            "lacks": counted(self.launches, "GEMM"),
            "others": counted(others, "other rank"),
            "where": run.names.micro_batches(self._short),
            "ran": self._ran_alike(named),
            "count": count,
            "names": named,
            "whose": optional(count, when=are_several) or named,
            "list": optional(f": {named}", when=are_several),
            "format": run.requested.name,
            "formats": low_precision_name(self._rank.linear.kernels),
            "share": f"{run.seen}{of_flops(self._work)}",
            "most": self._short.ran.share,
            "usual": self._short.usual,
            "lacks_of": self._lacks_of_all(),
            "took": f"{self._took}{run.seen}",
            "precision": self._precision,
        }

    def _parts(self) -> list[str]:
        """Return the coordinates of what lacks, the smallest first.

        What is said of one rank begins with its name.
        """
        told = set(self._coordinates)
        if len(self._indices) == 1:
            told.discard("rank")
        return sorted(told, key=_FROM_SMALL.index)

    def _beside(self) -> dict[str, str]:
        """Name what lacks for the advice, and what it may be compared with."""
        ranks = self._run.ranks
        steps = name_values(ranks, self._same_calls, "step")
        micro_batches = name_values(ranks, self._cells, "micro-batch")
        here = self._label(self._indices)
        elsewhere = self._label(self._whole_ranks) or "the other ranks"
        return {
            "here": here,
            "Here": capital(here),
            "elsewhere": elsewhere,
            "Elsewhere": capital(elsewhere),
            "alike": join_values(steps, "step"),
            "micro": join_values(micro_batches, "micro-batch"),
            "legs": name_legs(self._legs),
        }

    def _label(self, indices: Iterable[int]) -> str:
        """Name ranks, "ranks 0, 2"; nothing for none."""
        numbers: list[int] = []
        labels = []
        for index in sorted(indices):
            rank = self._run.ranks[index]
            numbers += rank.numbers
            labels.append(rank.label)
        if len(numbers) == len(labels) > 0:
            return label_of_ranks(numbers)
        return enumerated(labels)

    def _numbers(self) -> list[int]:
        """Return the numbers of the ranks that it is about."""
        numbers: list[int] = []
        for index in sorted(self._indices):
            numbers += self._run.ranks[index].numbers
        return numbers

    def _pins_of_blocks(self) -> str:
        """Say which others the log keeps in high precision, where it says that of any."""
        cause = logged_cause(self._run.requested)
        return optional(f"; {cause}", when=cause)

    def _lacks_of_all(self) -> str:
        """Say how many GEMMs lack, "108 of 432" where these are all in high precision there."""
        ran = self._short.ran
        if self.launches == round(ran.high):
            return f"{self.launches} of {round(ran.launches)}"
        return str(self.launches)

    # ---- what ran where it lacks

    def _ran_alike(self, named: str) -> str:
        """Say what ran at its values, and of which layers it is."""
        names_layers = "layer" in self._coordinates
        of = optional(f" of {named}", when=names_layers)
        after = optional(f": {named}", when=named and not names_layers)
        names = self._run.names
        for name in filter(self._short.coordinates.__contains__, _PASSES):
            where = names.value(self._short, name)
            of = f"{of} in {where}"
        cells = self._cells_alike()
        if self._is_known_part(cells):
            ran = self._ran_of_part(of)
        else:
            ran = what_ran(self._run.ranks, self._ledger, cells, of)
        return f"{ran}{self._run.seen}{after}"

    def _cells_alike(self) -> list[Cell]:
        """Return all cells at its values."""
        cells: list[Cell] = []
        short = self._short
        found = by_value(self._ledger.cells, short.coordinates)
        for value in filter(short.values.__contains__, found):
            cells += found[value]
        return cells

    def _is_known_part(self, cells: Sequence[Cell]) -> bool:
        """Whether of legs without FP8 a certain part lacks, and more was to run so."""
        ran = self._ledger.total(cells)
        is_part = self.launches < round(ran.high)
        lacks = map(self._lack, self._cells)
        are_certain = all(lack.is_certain for lack in lacks)
        may_be_either = Leg.BACKWARD in legs_in(self._ledger.cells)
        is_all_high = not ran.low and not ran.unknown
        return is_all_high and is_part and are_certain and not may_be_either

    def _ran_of_part(self, of: str) -> str:
        what = f"{self.launches} {name_legs(self._legs)} GEMMs{of}"
        return f"{what} ran in {self._precision} ({self._took})"


def _told_coordinates(names: Sequence[str]) -> Sequence[str]:
    """Return the coordinates that a sentence names: the finding itself names its ranks."""
    if "layer" in names:
        return names
    return [name for name in names if name != "rank"] or names


def _main_coordinate(names: Sequence[str]) -> str:
    """Return the coordinate that the finding on values of several is about."""
    if "micro-batch" in names and names[0] not in ("rank", "leg"):
        return "micro-batch"
    return names[0]

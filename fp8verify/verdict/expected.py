"""What was to run in low precision: what log, configuration and module list state of a run.

Of a cell of the grid the first that applies holds: a phase of the log, a leg that the recipe
keeps in high precision, a pin, the module list. Modules of one size share the GEMMs of that size;
where these did not all run equally often, as under LayerDrop, what is expected is a range, and what
ran counts within it. The expected share of GEMM FLOPs is known only if these cover (nearly) all
work.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, product, starmap
from typing import NamedTuple

from fp8verify.analysis.kinds import ANY_SIZE, EXPERTS
from fp8verify.analysis.layers import sizes_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.logs.statements import (
    HIGH_PRECISION,
    LayerClaim,
    LogReading,
    Statement,
    phase_at,
)
from fp8verify.report.model.parts import Claim, Mention
from fp8verify.terms import LEGS, Leg, Role
from fp8verify.verdict.cells import Cell, Layer, Tally

# torch prints it when an API is called, whatever comes of the call.
API_USAGE = "PYTORCH_API_USAGE"
# States of modules that are to compute in low precision, and of those that only imitate it.
CONVERTED = frozenset({"fp8", "fp4"})
EMULATED = frozenset({"fp8_emulated", "fp4_emulated"})


class Promises(NamedTuple):
    """The claims of the log, and the modules that were converted on any rank.

    Attributes:
        claims: the log's claims.
        converted: modules that should compute in low precision.
        emulated: modules that only emulate it.
        formats: by leg, the format or "high_precision" that the modules promise, or the log if no
            module does; empty if it is open.
        layers: the log's statements on single layers, including pins to high precision.
        phases: the log's statements on ranges of steps, if its own lines count them as the traces;
            those that hold before the window.
        mention: the first line of the log that names FP8 and claims nothing.
        listed: how many ranks left a module list.
    """

    claims: tuple[Claim, ...]
    converted: tuple[ModuleRecord, ...]
    emulated: tuple[ModuleRecord, ...]
    formats: dict[Leg, frozenset[str]]
    layers: tuple[LayerClaim, ...] = ()
    phases: tuple[Statement, ...] = ()
    mention: Mention | None = None
    listed: int = 0

    def pin(self, module: str) -> LayerClaim | None:
        """Return the log's line that pins a module to high precision, None if there is none."""
        about = [promise for promise in self.layers if promise.covers(module)]
        return about[-1] if about and about[-1].is_pin else None

    def is_high(self, rank: RankEvidence, place: int) -> bool:
        """Whether the log states that a step of a rank does not yet run in low precision."""
        step = rank.trace.steps[place].number
        return phase_at(self.phases, step, rank.numbers) == HIGH_PRECISION

    def is_due(self, rank: RankEvidence) -> bool:
        """Whether low precision is promised of a rank, and of one of its steps."""
        steps = range(len(rank.trace.steps))
        return self.any and not (
            steps and all(self.is_high(rank, place) for place in steps)
        )

    @property
    def said(self) -> list[Claim]:
        """The claims that FP8 is on: lines of a framework, then calls of an API."""
        said = [claim for claim in self.claims if claim.says == "fp8"]
        return sorted(
            said, key=lambda claim: not claim.line or claim.text.startswith(API_USAGE)
        )

    @property
    def claim(self) -> Claim | None:
        """The first claim that FP8 is on."""
        return next(iter(self.said), None)

    @property
    def fallback(self) -> Claim | None:
        """The first log line that says FP8 is off or fell back."""
        return next((claim for claim in self.claims if claim.says == "not_fp8"), None)

    @property
    def any(self) -> bool:
        """Whether the log or the model says FP8 or FP4."""
        return self.claim is not None or bool(self.converted) or bool(self.emulated)

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes named by the log, lower case."""
        return tuple(claim.recipe.lower() for claim in self.said if claim.recipe)

    @property
    def name(self) -> str:
        """How a sentence names what was promised: "NVFP4", or "FP8" if no format is known."""
        low = set().union(*self.formats.values()) - {HIGH_PRECISION}
        return " and ".join(map(format_name, sorted(low))) or "FP8"

    def leaves_high(self, leg: Leg) -> bool:
        """Whether the recipe itself keeps a leg in high precision, as rowwise_with_gw_hp wgrad."""
        is_named = leg is Leg.WGRAD and any(
            "gw_hp" in recipe for recipe in self.recipes
        )
        return is_named or self.formats.get(leg) == frozenset({HIGH_PRECISION})


def format_name(name: str) -> str:
    """Return a format as a sentence names it."""
    names = {"fp8_block": "block-scaled FP8", HIGH_PRECISION: "high precision"}
    return names.get(name, name.upper())


def collect_promises(said: LogReading, ranks: Sequence[RankEvidence]) -> Promises:
    """Join what the logs promise with the modules that any rank's module list found converted."""
    modules = [module for rank in ranks for module in rank.modules]
    converted = tuple(module for module in modules if module.state in CONVERTED)
    emulated = tuple(module for module in modules if module.state in EMULATED)
    steps = [step.number for rank in ranks for step in rank.trace.steps]
    counted = steps if _counts_alike(ranks, steps) else []
    first = min(steps, default=None)
    claims = said.claims_at(first, counted)
    formats = _of_modules(converted or emulated) or formats_of_claims(claims)
    phases = tuple(one for one in said.held_at(first) if one.phase and counted)
    layers = said.layers_for(claims)
    return Promises(
        tuple(claims), converted, emulated, formats, layers, phases, said.mention
    )


def _counts_alike(ranks: Sequence[RankEvidence], steps: Sequence[int]) -> bool:
    """Whether the log's own lines count steps as the traces do: its phases hold for them."""
    losses = ranks[0].recorded.losses
    if losses.counted or not losses.points:
        return False
    logged = sorted(losses.points)
    between = max((later - earlier for earlier, later in pairwise(logged)), default=1)
    return any(logged[0] - between < step < logged[-1] + between for step in steps)


def _of_modules(modules: Sequence[ModuleRecord]) -> dict[Leg, frozenset[str]]:
    """Return what modules promise of each leg; nothing if some of them leave it open."""
    closed = [
        leg for leg in LEGS if modules and all(m.format_of(leg.value) for m in modules)
    ]
    return {
        leg: frozenset(m.format_of(leg.value) or "" for m in modules) for leg in closed
    }


def formats_of_claims(claims: Sequence[Claim]) -> dict[Leg, frozenset[str]]:
    """Return the formats that log lines name, for single legs or else for all; empty for none."""
    said = [
        (claim.legs, claim.format)
        for claim in claims
        if claim.says == "fp8" and claim.format
    ]
    return {
        leg: frozenset(legs.get(leg.value, name) for legs, name in said)
        for leg in LEGS
        if said
    }


# ---- the share of a cell

_LEGS_OF = {Leg.BACKWARD: (Leg.DGRAD, Leg.WGRAD), Leg.RECOMPUTE: (Leg.FPROP,)}
# The GEMMs decide about classes that nobody knows, and about an autocast that is on at times.
_OPEN_STATES = frozenset({"unknown", "fp8_module_off"})

# Between stages of a pipeline: torch's names of the calls, and NCCL's of the kernel.
_TRANSFER = re.compile(r"send|recv", re.IGNORECASE)


class Stated:
    """What is stated of each cell of a run.

    Attributes:
        alike: whether all ranks may run the same layers: none is a stage of a pipeline.
        spared: by rank, how many blocks the log keeps in high precision that no module list names:
            as many launches of a cell may be of these.
        spared_in_all: the same of the ranks together.
    """

    def __init__(self, ranks: Sequence[RankEvidence], promises: Promises) -> None:
        """Sort the modules of each rank by name and by size."""
        self._ranks = ranks
        self._promises = promises
        by_rank: list[Sequence[ModuleRecord]] = [rank.modules for rank in ranks]
        collectives = (total for rank in ranks for total in rank.trace.collectives)
        transfers = [total for total in collectives if _TRANSFER.search(total.name)]
        self.alike = not transfers
        if self.alike:
            by_rank = _with_conversions_of_any(by_rank)
        self._by_layer = list(map(_by_layer, by_rank))
        pins = (pin for pin in promises.layers if pin.is_pin and pin.select == "blocks")
        blocks = sorted({int(name) for pin in pins for name in pin.names})
        gaps = [place for place, (a, b) in enumerate(pairwise(blocks), 1) if b - a > 1]
        in_a_row = max(end - begin for begin, end in pairwise([0, *gaps, len(blocks)]))
        spared = len(blocks) if self.alike else in_a_row  # a stage has blocks in a row
        self.spared = [0 if rank.modules else spared for rank in ranks]
        stages = max((total.group_size for total in transfers), default=0)
        replicas = len(ranks) // stages if stages > 1 else len(ranks)
        self.spared_in_all = len(blocks) * max(1, replicas)
        # Weights of experts do not show what multiplies them.
        low = (
            row for rank in ranks for row in rank.trace.trained if row.precision.is_low
        )
        self._has_low_experts = any(
            x.kind.classification.role is Role.GROUPED_GEMM for x in low
        )

    def __call__(self, cell: Cell, ran: Tally) -> float | None:
        """Return the share of a cell that is to run in low precision, None if nothing states it."""
        rank = self._ranks[cell.rank]
        promises = self._promises
        if cell.step >= 0 and promises.is_high(rank, cell.step):
            return 0.0
        if any(map(promises.leaves_high, _LEGS_OF.get(cell.leg, (cell.leg,)))):
            return 0.0
        modules = self._listed(cell)
        if not modules:
            return None
        low = sum(self.is_low(module, cell.leg) for module in modules)
        if cell.layer == EXPERTS:
            is_open = 0 < low < len(modules) or (not low and self._has_low_experts)
            return None if is_open else low / len(modules)
        return _share(ran, low, len(modules))

    def modules_of(self, rank: int, layer: Layer) -> Sequence[ModuleRecord]:
        """Return the modules that a layer of a cell may be."""
        return self._by_layer[rank].get(layer, ())

    def launches(self, cell: Cell, ran: Tally) -> float:
        """Return how many launches without a size are to run in low precision, by the module list.

        Each module ran once at least, if there are as many launches, and all of them equally often,
        if their number divides these.
        """
        legs = LEGS if cell.leg is Leg.UNKNOWN else _LEGS_OF.get(cell.leg, (cell.leg,))
        listed = list(product(self._listed(cell._replace(layer=ANY_SIZE)), legs))
        passes, rest = divmod(ran.calls, len(listed) or 1)
        return sum(starmap(self.is_low, listed)) * (min(1, passes) if rest else passes)

    def _listed(self, cell: Cell) -> Sequence[ModuleRecord]:
        """Return the modules of a layer, none if what one of them is to do is not known."""
        modules = self.modules_of(cell.rank, cell.layer)
        # What a module that the log pins is to do is known, whatever its state was.
        open_ones = (m for m in modules if m.state in _OPEN_STATES)
        if any(self._promises.pin(m.fqn) is None for m in open_ones):
            return []
        return modules

    def of_models(self, cell: Cell) -> bool:
        """Whether a cell is of modules of several models, some in low precision and some not."""
        by_model: dict[str, set[bool]] = defaultdict(set)
        for module in self.modules_of(cell.rank, cell.layer):
            model, _, below = module.fqn.partition(".")
            if not below or model.isdecimal():
                return False  # a layer of the outermost module, as of an nn.Sequential
            by_model[model].add(self.is_low(module, cell.leg))
        return set(map(frozenset, by_model.values())) == {
            frozenset({False}),
            frozenset({True}),
        }

    def is_low(self, module: ModuleRecord, leg: Leg) -> bool:
        """Whether a module was to compute a GEMM in low precision, and the log does not pin it."""
        promises = self._promises
        if module.state not in CONVERTED or promises.pin(module.fqn) is not None:
            return False
        legs = _LEGS_OF.get(leg, (leg,))
        formats = {module.format_of(each.value) for each in legs}
        return HIGH_PRECISION not in formats and not any(
            map(promises.leaves_high, legs)
        )


def _with_conversions_of_any(
    by_rank: Sequence[Sequence[ModuleRecord]],
) -> list[Sequence[ModuleRecord]]:
    """Return the modules of ranks that have the same names as converted where any rank did."""
    names = {
        frozenset(module.fqn for module in modules) for modules in by_rank if modules
    }
    if len(names) != 1:
        return list(by_rank)
    known = {m.fqn: m for modules in by_rank for m in modules if m.state in CONVERTED}
    return [
        [known.get(module.fqn, module) for module in modules] for modules in by_rank
    ]


def _by_layer(modules: Sequence[ModuleRecord]) -> dict[Layer, list[ModuleRecord]]:
    """Return the modules that each layer of a cell may be: those of its name, size or kind.

    What cannot be told may be any of them.
    """
    by_layer: dict[Layer, list[ModuleRecord]] = defaultdict(list)
    for module in modules:
        by_layer[module.fqn] = [module]
        if module.kind == "experts":
            by_layer[EXPERTS].append(module)
        for size in sizes_of(module):
            by_layer[size].append(module)
            by_layer[ANY_SIZE].append(module)
    return by_layer


def _share(ran: Tally, low: int, count: int) -> float:
    """Return the share of some modules of all of a size; within a range what ran counts."""
    if not ran.calls % count or low in (0, count):
        return low / count
    repeats = -(-ran.calls // count)
    least = max(0, ran.calls - repeats * (count - low))
    return max(least, min(ran.low_calls, repeats * low)) / ran.calls

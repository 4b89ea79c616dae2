"""What a run was asked for: by the claims of its log, its configuration and its module list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.logs.statements import (
    HIGH_PRECISION,
    LayerClaim,
    LogReading,
    Statement,
    phase_at,
)
from fp8verify.model.claims import Claim, Mention
from fp8verify.terms import LEGS, Leg

# torch prints it when an API is called, whatever comes of the call.
API_USAGE = "PYTORCH_API_USAGE"
# States of modules that are to compute in low precision, and of those that only imitate it.
CONVERTED = frozenset({"fp8", "fp4"})
EMULATED = frozenset({"fp8_emulated", "fp4_emulated"})


class Requested(NamedTuple):
    """The claims of the log, and the modules that were converted on any rank.

    Attributes:
        claims: the log's claims.
        converted: modules that should compute in low precision.
        emulated: modules that only emulate it.
        formats: by leg, the format or "high_precision" that the modules request, or the log if no
            module does; empty if it is open.
        layers: the log's statements on single layers, including pins to high precision.
        phases: the log's statements on ranges of steps, if its own lines count them as the traces;
            those that hold before the window.
        mention: the first line of the log that names FP8 and claims nothing.
        listed: how many ranks left a module list.
        has_log: whether a log was read.
    """

    claims: tuple[Claim, ...]
    converted: tuple[ModuleRecord, ...]
    emulated: tuple[ModuleRecord, ...]
    formats: dict[Leg, frozenset[str]]
    layers: tuple[LayerClaim, ...] = ()
    phases: tuple[Statement, ...] = ()
    mention: Mention | None = None
    listed: int = 0
    has_log: bool = False

    def pin(self, module: str) -> LayerClaim | None:
        """Return the log's line that pins a module to high precision, None if there is none."""
        last = None
        for statement in self.layers:
            if statement.covers(module):
                last = statement
        is_pin = last is not None and last.is_pin
        return last if is_pin else None

    def high_steps(self, rank: RankEvidence) -> set[int]:
        """Return the steps of a rank, by their indices, that the log states in high precision."""
        found = set()
        for place, step in enumerate(rank.trace.steps):
            number = step.number
            phase = phase_at(self.phases, number, rank.numbers)
            if phase == HIGH_PRECISION:
                found.add(place)
        return found

    def is_due(self, rank: RankEvidence) -> bool:
        """Whether low precision is requested of a rank, and of one of its steps."""
        steps = len(rank.trace.steps)
        high = len(self.high_steps(rank))
        is_never = 0 < steps == high
        return self.any and not is_never

    def _that_say(self, what: str) -> list[Claim]:
        return [claim for claim in self.claims if claim.says == what]

    @property
    def said(self) -> list[Claim]:
        """The claims that FP8 is on: lines of a framework, then calls of an API."""
        return sorted(self._that_say("fp8"), key=_is_of_api)

    @property
    def claim(self) -> Claim | None:
        """The first claim that FP8 is on."""
        return next(iter(self.said), None)

    @property
    def fallback(self) -> Claim | None:
        """The first log line that says FP8 is off or fell back."""
        return next(iter(self._that_say("not_fp8")), None)

    @property
    def filter(self) -> Claim | None:
        """The log line that says which layers a conversion passes over."""
        for claim in self._that_say("scope"):
            if "filter" in claim.text:
                return claim
        return None

    @property
    def any(self) -> bool:
        """Whether the log or the model says FP8 or FP4."""
        of_modules = bool(self.converted) or bool(self.emulated)
        return self.claim is not None or of_modules

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes named by the log, lower case."""
        recipes = []
        for claim in self.said:
            if claim.recipe:
                recipes.append(claim.recipe.lower())
        return tuple(recipes)

    @property
    def name(self) -> str:
        """How a sentence names what was requested: "NVFP4", or "FP8" if no format is known."""
        formats: set[str] = set()
        formats.update(*self.formats.values())
        low = formats - {HIGH_PRECISION}
        names = map(format_name, sorted(low))
        return " and ".join(names) or "FP8"

    def leaves_high(self, leg: Leg) -> bool:
        """Whether the recipe itself keeps a leg in high precision, as rowwise_with_gw_hp wgrad."""
        is_named = any("gw_hp" in recipe for recipe in self.recipes)
        if leg is Leg.WGRAD and is_named:
            return True
        requested = self.formats.get(leg)
        return requested == frozenset({HIGH_PRECISION})


def _is_of_api(claim: Claim) -> bool:
    """Whether a claim is that an API was called, or of no line."""
    return not claim.line or claim.text.startswith(API_USAGE)


def format_name(name: str) -> str:
    """Return a format as a sentence names it."""
    names = {"fp8_block": "block-scaled FP8", HIGH_PRECISION: "high precision"}
    return names.get(name, name.upper())


def collect_requested(said: LogReading, ranks: Sequence[RankEvidence]) -> Requested:
    """Join what the logs claim with the modules that any rank's module list found converted."""
    converted: list[ModuleRecord] = []
    emulated: list[ModuleRecord] = []
    steps: list[int] = []
    for rank in ranks:
        converted += [one for one in rank.modules if one.state in CONVERTED]
        emulated += [one for one in rank.modules if one.state in EMULATED]
        for step in rank.trace.steps:
            steps.append(step.number)
    counted = steps if _counts_alike(ranks, steps) else []
    first = min(steps, default=None)
    claims = said.claims_at(first, counted)
    held = said.held_at(first) if counted else []
    phases = [one for one in held if one.phase]
    of_modules = _of_modules(converted or emulated)
    return Requested(
        claims=tuple(claims),
        converted=tuple(converted),
        emulated=tuple(emulated),
        formats=of_modules or formats_of_claims(claims),
        layers=said.layers_for(claims),
        phases=tuple(phases),
        mention=said.mention,
    )


def _counts_alike(ranks: Sequence[RankEvidence], steps: Sequence[int]) -> bool:
    """Whether the log's own lines count steps as the traces do: its phases hold for them."""
    losses = ranks[0].recorded.losses
    if losses.counted or not losses.points:
        return False
    logged = sorted(losses.points)
    apart = [later - earlier for earlier, later in pairwise(logged)]
    between = max(apart, default=1)
    first = logged[0] - between
    last = logged[-1] + between
    return any(first < step < last for step in steps)


def _of_modules(modules: Sequence[ModuleRecord]) -> dict[Leg, frozenset[str]]:
    """Return what modules request of each leg; nothing if some of them leave it open."""
    formats = {}
    for leg in LEGS:
        requested = {module.format_of(leg.value) or "" for module in modules}
        if requested and "" not in requested:
            formats[leg] = frozenset(requested)
    return formats


def formats_of_claims(claims: Sequence[Claim]) -> dict[Leg, frozenset[str]]:
    """Return the formats that log lines name, for single legs or else for all; empty for none."""
    said = [claim for claim in claims if claim.says == "fp8" and claim.format]
    formats = {}
    for leg in LEGS if said else ():
        named = set()
        for claim in said:
            of_claim = claim.format or ""
            named.add(claim.legs.get(leg.value, of_claim))
        formats[leg] = frozenset(named)
    return formats

"""What the log and the model promised, as one thing to hold the kernels against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.report.model import LEGS, Claim

if TYPE_CHECKING:
    from fp8verify.logs.layer_promises import LayerPromise, PhasePromise

# torch prints it when an API is called, whatever comes of the call.
API_USAGE = "PYTORCH_API_USAGE"
HIGH_PRECISION = "high_precision"
# States of modules that are to compute in low precision, and of those that only imitate it.
CONVERTED = frozenset({"fp8", "fp4"})
EMULATED = frozenset({"fp8_emulated", "fp4_emulated"})
# What enable_fsdp_float8_all_gather=True wraps weights in: torchao/float8/fsdp_utils.py.
_TRAVELS_IN_FP8 = (
    "WeightWithDynamicFloat8CastTensor",
    "WeightWithDelayedFloat8CastTensor",
    "WeightWithStaticFloat8CastTensor",
)


def _is_call(claim: Claim) -> bool:
    return not claim.line or claim.text.startswith(API_USAGE)


class Promises(NamedTuple):
    """The claims of the log, and the modules that were converted on any rank.

    Attributes:
        claims: of the log.
        converted: modules that are to compute in low precision.
        emulated: modules that only imitate it.
        formats: of each leg what the modules promise, or the log where no module does; formats
            and "high_precision", nothing where it is left open.
        layers: what the log says of single layers, pins to high precision included.
        phases: what the log says of ranges of steps.
    """

    claims: tuple[Claim, ...]
    converted: tuple[ModuleRecord, ...]
    emulated: tuple[ModuleRecord, ...]
    formats: dict[str, frozenset[str]]
    layers: tuple[LayerPromise, ...] = ()
    phases: tuple[PhasePromise, ...] = ()

    def pin(self, module: str) -> LayerPromise | None:
        """Return the log's line that pins a module to high precision, None if there is none."""
        about = [promise for promise in self.layers if promise.covers(module)]
        return about[-1] if about and about[-1].is_pin else None

    def phase_of(self, step: int) -> str | None:
        """Return the format that the log promises for a step, None if it says nothing of it."""
        found = next((phase.format for phase in self.phases if phase.covers(step)), None)
        later = any((phase.first_step or 0) > step for phase in self.phases)
        return HIGH_PRECISION if found is None and later else found

    @property
    def claim(self) -> Claim | None:
        """What says that FP8 is on: the first line that a framework wrote, or else a call."""
        said = [claim for claim in self.claims if claim.says == "fp8"]
        return min(said, key=_is_call, default=None)

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
        return tuple(claim.recipe.lower() for claim in self.claims if claim.recipe)

    @property
    def all_gather(self) -> Claim | None:
        """The claim that FSDP gathers FP8 weights."""
        return next((claim for claim in self.claims if claim.all_gather), None)

    @property
    def weights_travel_in_fp8(self) -> bool:
        """Whether the converted weights are of a class that FSDP2 gathers in FP8."""
        return any(module.weight_class in _TRAVELS_IN_FP8 for module in self.converted)

    @property
    def name(self) -> str:
        """How a sentence names what was promised: "NVFP4", or "FP8" where no format is known."""
        low = {found for formats in self.formats.values() for found in formats} - {HIGH_PRECISION}
        return " and ".join(format_name(found) for found in sorted(low)) or "FP8"

    def leaves_high(self, leg: str) -> bool:
        """Whether the recipe itself keeps a leg in high precision, as rowwise_with_gw_hp wgrad."""
        if leg == "wgrad" and any("gw_hp" in recipe for recipe in self.recipes):
            return True
        return self.formats.get(leg) == frozenset({HIGH_PRECISION})


def format_name(found: str) -> str:
    """Return a format as a sentence names it."""
    return {"fp8_block": "block-scaled FP8"}.get(found, found.upper())


def collect_promises(
    claims: Sequence[Claim],
    ranks: Sequence[RankEvidence],
    layers: Sequence[LayerPromise] = (),
    phases: Sequence[PhasePromise] = (),
) -> Promises:
    """Join what the logs promise with the modules that any rank's census found converted."""
    modules = [module for rank in ranks for module in rank.modules]
    converted = tuple(module for module in modules if module.state in CONVERTED)
    emulated = tuple(module for module in modules if module.state in EMULATED)
    return Promises(
        tuple(claims),
        converted,
        emulated,
        _of_modules(converted or emulated) or _of_claims(claims),
        tuple(layers),
        tuple(phases),
    )


def _of_modules(modules: Sequence[ModuleRecord]) -> dict[str, frozenset[str]]:
    """Return what modules promise of each leg; nothing of one that some of them leave open."""
    found = {leg.value: {module.format_of(leg.value) for module in modules} for leg in LEGS}
    return {
        leg: frozenset(name for name in names if name is not None)
        for leg, names in found.items()
        if names and None not in names
    }


def _of_claims(claims: Sequence[Claim]) -> dict[str, frozenset[str]]:
    """Return what the lines say that name a format: of single legs, else of all."""
    said = [claim for claim in claims if claim.says == "fp8" and claim.format is not None]
    return {
        leg.value: frozenset(claim.legs.get(leg.value, claim.format or "") for claim in said)
        for leg in LEGS
        if said
    }

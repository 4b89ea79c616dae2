"""What the log and the model promised, and what the kernels prove of it.

The expected share of GEMM FLOPs: the module list gives the converted layers and their sizes,
the recipe the GEMMs that stay in high precision, the log the layers and steps that are
pinned to it. The GEMMs that ran give the work of each layer. The expectation is known only
if these cover (nearly) all work.

Sources without operators: an operator shows the owner and the pass of a GEMM. Without it, a GEMM in
high precision may belong to a layer, to attention, or to the optimizer (Muon), and FP8 GEMMs may
belong to forward passes only. Kernel names still prove:

- a backward pass ran, if a kernel is named for one, for an optimizer's step, or has E5M2 operands:
  recipes keep gradients in it, activations and weights in E4M3 (arXiv:2209.05433, section 3);
- dgrad and wgrad ran in FP8 as often as fprop, if there are two FP8 GEMMs with gradients for each
  FP8 GEMM with two E4M3 operands. Recomputed forward passes are among the latter, so they can
  hide the proof but not fake it;
- no GEMM in high precision belongs to a converted layer, if the layers that were left out, and the
  passes that the recipe keeps in high precision, explain all of them;
- no pass is hidden in a hundredth of GEMM time: hiding half a pass takes a sixth of equal work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.analysis.purpose import has_gradient
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.report.model.parts import Claim, Mention
from fp8verify.terms import LEGS, Leg, Precision
from fp8verify.thresholds import HALF, NEGLIGIBLE

if TYPE_CHECKING:
    from fp8verify.logs.promises import LayerPromise, PhasePromise
    from fp8verify.logs.statements import LogReading


# torch prints it when an API is called, whatever comes of the call.
API_USAGE = "PYTORCH_API_USAGE"
HIGH_PRECISION = "high_precision"
# States of modules that are to compute in low precision, and of those that only imitate it.
CONVERTED = frozenset({"fp8", "fp4"})
EMULATED = frozenset({"fp8_emulated", "fp4_emulated"})
# What enable_fsdp_float8_all_gather=True wraps weights in: torchao/float8/fsdp_utils.py.
TRAVELS_IN_FP8 = {
    "WeightWithDynamicFloat8CastTensor",
    "WeightWithDelayedFloat8CastTensor",
    "WeightWithStaticFloat8CastTensor",
}


class Promises(NamedTuple):
    """The claims of the log, and the modules that were converted on any rank.

    Attributes:
        claims: the log's claims.
        converted: modules that should compute in low precision.
        emulated: modules that only emulate it.
        formats: by pass, the format or "high_precision" that the modules promise, or the log if no
            module does; empty if it is open.
        layers: the log's statements on single layers, including pins to high precision.
        phases: the log's statements on ranges of steps, if its own lines count them as the traces.
        mention: the first line of the log that names FP8 and claims nothing.
        listed: how many ranks left a module list.
    """

    claims: tuple[Claim, ...]
    converted: tuple[ModuleRecord, ...]
    emulated: tuple[ModuleRecord, ...]
    formats: dict[str, frozenset[str]]
    layers: tuple[LayerPromise, ...] = ()
    phases: tuple[PhasePromise, ...] = ()
    mention: Mention | None = None
    listed: int = 0

    def pin(self, module: str) -> LayerPromise | None:
        """Return the log's line that pins a module to high precision, None if there is none."""
        about = [promise for promise in self.layers if promise.covers(module)]
        return about[-1] if about and about[-1].is_pin else None

    def phase_of(self, step: int) -> str | None:
        """Return the format that the log promises for a step, None if there is no promise."""
        found = next((phase.format for phase in self.phases if phase.covers(step)), None)
        later = any((phase.first_step or 0) > step for phase in self.phases)
        return HIGH_PRECISION if found is None and later else found

    @property
    def claim(self) -> Claim | None:
        """The claim that FP8 is on: the first line of a framework, or else an API call."""
        said = [claim for claim in self.claims if claim.says == "fp8"]
        lines = [claim for claim in said if claim.line and not claim.text.startswith(API_USAGE)]
        return next(iter([*lines, *said]), None)

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
        said = (claim for claim in self.claims if claim.says == "fp8")
        return tuple(claim.recipe.lower() for claim in said if claim.recipe)

    @property
    def all_gather(self) -> Claim | None:
        """The claim that FSDP gathers FP8 weights."""
        said = (claim for claim in self.claims if claim.says == "fp8")
        return next((claim for claim in said if claim.all_gather), None)

    @property
    def logged(self) -> dict[str, frozenset[str]]:
        """The formats that log lines name, for single passes or else for all; empty for none."""
        return _of_claims(self.claims)

    @property
    def name(self) -> str:
        """How a sentence names what was promised: "NVFP4", or "FP8" if no format is known."""
        low = {found for formats in self.formats.values() for found in formats} - {HIGH_PRECISION}
        return " and ".join(format_name(found) for found in sorted(low)) or "FP8"

    def leaves_high(self, leg: str) -> bool:
        """Whether the recipe itself keeps a pass in high precision, as rowwise_with_gw_hp wgrad."""
        if leg == "wgrad" and any("gw_hp" in recipe for recipe in self.recipes):
            return True
        return self.formats.get(leg) == frozenset({HIGH_PRECISION})


def format_name(found: str) -> str:
    """Return a format as a sentence names it."""
    names = {"fp8_block": "block-scaled FP8", HIGH_PRECISION: "high precision"}
    return names.get(found, found.upper())


def collect_promises(said: LogReading, ranks: Sequence[RankEvidence]) -> Promises:
    """Join what the logs promise with the modules that any rank's module list found converted."""
    modules = [module for rank in ranks for module in rank.modules]
    converted = tuple(module for module in modules if module.state in CONVERTED)
    emulated = tuple(module for module in modules if module.state in EMULATED)
    steps = [step.number for rank in ranks for step in rank.trace.steps]
    claims = said.claims_at(min(steps, default=None))
    return Promises(
        tuple(claims),
        converted,
        emulated,
        _of_modules(converted or emulated) or _of_claims(claims),
        said.layers_for(claims),
        tuple(said.phases) if _counts_alike(ranks, steps) else (),
        said.mention,
    )


def _counts_alike(ranks: Sequence[RankEvidence], steps: Sequence[int]) -> bool:
    """Whether the log's own lines count steps as the traces do: its phases hold for them."""
    losses = ranks[0].recorded.losses
    if losses.counted or not losses.points:
        return False
    logged = sorted(losses.points)
    between = max((later - one for one, later in pairwise(logged)), default=1)
    return any(logged[0] - between < step < logged[-1] + between for step in steps)


def _of_modules(modules: Sequence[ModuleRecord]) -> dict[str, frozenset[str]]:
    """Return what modules promise of each pass; nothing if some of them leave it open."""
    found = {leg.value: {module.format_of(leg.value) for module in modules} for leg in LEGS}
    return {
        leg: frozenset(name for name in names if name is not None)
        for leg, names in found.items()
        if names and None not in names
    }


def _of_claims(claims: Sequence[Claim]) -> dict[str, frozenset[str]]:
    """Return the formats that log lines name, for single passes or else for all."""
    said = [claim for claim in claims if claim.says == "fp8" and claim.format is not None]
    return {
        leg.value: frozenset(claim.legs.get(leg.value, claim.format or "") for claim in said)
        for leg in LEGS
        if said
    }


def is_set_low(module: ModuleRecord, leg: Leg, promises: Promises) -> bool:
    """Whether a module is set to compute a GEMM in low precision."""
    legs = {Leg.BACKWARD: (Leg.DGRAD, Leg.WGRAD), Leg.RECOMPUTE: (Leg.FPROP,)}.get(leg, (leg,))
    return module.state in CONVERTED and all(
        module.format_of(one.value) != HIGH_PRECISION and not promises.leaves_high(one.value)
        for one in legs
    )


def lacks_operators(rank: RankEvidence) -> bool:
    """Whether it is not known what launched most of the GEMMs, or for which pass."""
    rows = rank.trace.trained
    total = sum(row.time_ns for row in rows)
    unknown = (row for row in rows if row.kind.op is None or row.leg is Leg.UNKNOWN)
    return sum(row.time_ns for row in unknown) > HALF * total


def passes_are_proved(rank: RankEvidence, promises: Promises) -> bool:
    """Whether all passes of the FP8 layers ran in FP8, except those that the recipe leaves out."""
    rows = rank.trace.trained
    low = [row for row in rows if row.precision.is_low and row.kind.multiplies]
    gradients = sum(row.calls for row in low if has_gradient(row.kind))
    forward = sum(row.calls for row in low) - gradients
    of_all = 0 < 2 * forward <= gradients  # dgrad and wgrad for each
    high_ns = sum(row.time_ns for row in rows if not row.precision.is_low)
    little = high_ns <= NEGLIGIBLE * rank.linear.total_ns
    # dgrad, wgrad and fprop have a GEMM or more for each node; FP8 rollouts have no nodes.
    high = sum(row.calls for row in rows if row.kind.multiplies and not row.precision.is_low)
    few = high < rank.trace.seen_nodes
    return of_all or little or few or high_is_explained(rank, promises)


def high_is_explained(rank: RankEvidence, promises: Promises) -> bool:
    """Whether excluded layers and high-precision passes explain all other GEMMs."""
    products = [row for row in rank.trace.trained if row.kind.multiplies]
    low = sum(row.calls for row in products if row.precision.is_low)
    high = sum(row.calls for row in products) - low
    kept = sum(promises.leaves_high(leg.value) for leg in LEGS)
    left, converted = _layers(rank.modules)
    fp8_legs = len(LEGS) - kept
    return high * fp8_legs * converted <= low * (kept * converted + len(LEGS) * left)


def unplaced_ns(rank: RankEvidence, promises: Promises) -> int:
    """Return the time of GEMMs in high precision that may not belong to a layer."""
    if not rank.ran_low or not lacks_operators(rank) or high_is_explained(rank, promises):
        return 0
    high = (row for row in rank.trace.trained if not row.precision.is_low and row.kind.op is None)
    return sum(row.time_ns for row in high if row.precision is not Precision.UNKNOWN)


def _layers(modules: Sequence[ModuleRecord]) -> tuple[int, int]:
    """Return how many layers were left out of the conversion, and how many were converted.

    (0, 1) if that cannot be counted: without a module list, with experts, which run any number of
    GEMMs, and with layers whose passes differ, such as frozen ones.
    """
    plain = all(m.kind == "linear" and m.training and not m.frozen for m in modules)
    counts: Counter[str] = Counter()
    for module in modules:
        counts[module.state] += max(1, len(module.sizes))
    left = counts.pop(HIGH_PRECISION, 0)
    if not plain or not counts or not counts.keys() <= CONVERTED:
        return 0, 1
    return left, counts.total()

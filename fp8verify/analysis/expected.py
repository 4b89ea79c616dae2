"""Which share of GEMM FLOPs was to run in low precision, against the share that did.

The census says which layers were converted and how large they are, the recipe which of their GEMMs
stay in high precision, the log which layers and steps are pinned there. The GEMMs that ran say how
much work each layer is. The expectation is known only where these cover (nearly) all work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.layers_by_size import LayerClass, Layers
from fp8verify.analysis.populations import HALF
from fp8verify.analysis.promises import CONVERTED, HIGH_PRECISION, Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.layer_names import patterns
from fp8verify.terms import LEGS, Leg, Role

# The work that no module of the census explains may be at most this share.
_UNEXPLAINED = 0.01
# A share that falls short of the expected one by this much is PARTIAL.
TOLERANCE = 0.02


class Expected(NamedTuple):
    """Shares of the FLOPs of the GEMMs that train, from 0 to 1.

    Attributes:
        share: what was to run in low precision.
        measured: what did.
        left_out: the layers that were to stay in high precision, by their shortened names.
        stated: whether the log names each of them, or the steps; a filter may have left them out
            without a word.
    """

    share: float
    measured: float
    left_out: tuple[str, ...]
    stated: bool = False

    @property
    def is_met(self) -> bool:
        """Whether as much ran in low precision as was to, but for rounding of shapes."""
        return self.measured >= self.share - TOLERANCE

    @property
    def decides(self) -> bool:
        """Whether a run is judged by it: less than half is believed only where the log says so."""
        return self.share >= HALF or self.stated


def expected_share(rank: RankEvidence, layers: Layers, promises: Promises) -> Expected | None:
    """Return what was to run in low precision; None where census and GEMMs do not tell.

    Args:
        rank: with a census.
        layers: its modules by size.
        promises: what the log and the model promised.
    """
    rows = [row for row in rank.survey.linear if not row.kind.classification.split_k]
    total = sum(row.flops or 0 for row in rows)
    modules = [m for m in rank.modules if m.kind in ("linear", "experts")]
    if not (total and modules and rank.linear.knows_flops) or not promises.any:
        return None
    if any(module.state == "unknown" for module in modules):
        return None
    experts = _experts(rows, layers.experts, promises)
    known = [layer for layer in layers.classes if layer.modules]
    explained = sum(layer.flops for layer in known) + sum(
        row.flops or 0 for row in rows if row.kind.classification.role is Role.GROUPED_GEMM
    )
    if experts is None or explained < (1 - _UNEXPLAINED) * total:
        return None
    expected = experts + sum(_of_class(layer, promises) for layer in known)
    left = [m for m in modules if not any(_is_low(m, leg, promises) for leg in LEGS)]
    low = sum(row.flops or 0 for row in rows if row.precision.is_low)
    phases = _share_of_steps(rank, promises)
    return Expected(
        round(phases * expected / total, 6),
        round(low / total, 6),
        tuple(patterns(module.fqn for module in left)),
        phases < 1 or (bool(left) and all(promises.pin(module.fqn) for module in left)),
    )


def _experts(
    rows: Iterable[GemmRow], experts: tuple[ModuleRecord, ...], promises: Promises
) -> float | None:
    """Return the FLOPs of grouped GEMMs that were to be low; None where only some experts were."""
    grouped = [row for row in rows if row.kind.classification.role is Role.GROUPED_GEMM]
    if not grouped:
        return 0.0
    expected = 0.0
    for row in grouped:
        low = {_is_low(module, row.leg, promises) for module in experts}
        if len(low) != 1:
            return None
        expected += (row.flops or 0) * low.pop()
    return expected


def _of_class(layer: LayerClass, promises: Promises) -> float:
    calls = sum(layer.observed.values())
    expected = 0.0
    for leg, count in layer.observed.items():
        low = sum(_is_low(module, leg, promises) for module in layer.modules)
        share = low / len(layer.modules)
        if layer.passes is not None and count < layer.passes * len(layer.modules):
            # Some have no such GEMM, as the first layer has no dgrad: which, is not known.
            most = layer.passes * low
            least = count - layer.passes * (len(layer.modules) - low)
            share = max(least, min(layer.in_fp8.get(leg, 0), most)) / count
        expected += layer.flops * count / calls * share
    return expected


def _is_low(module: ModuleRecord, leg: Leg, promises: Promises) -> bool:
    """Whether a module was to compute a GEMM in low precision."""
    if module.state not in CONVERTED or promises.pin(module.fqn) is not None:
        return False
    legs = {Leg.BACKWARD: (Leg.DGRAD, Leg.WGRAD), Leg.RECOMPUTE: (Leg.FPROP,)}.get(leg, (leg,))
    return all(
        module.format_of(one.value) != HIGH_PRECISION and not promises.leaves_high(one.value)
        for one in legs
    )


def _share_of_steps(rank: RankEvidence, promises: Promises) -> float:
    """Return the share of the window's steps that the log does not leave in high precision."""
    numbers = [step.number for step, _ in rank.steps]
    high = [n for n in numbers if promises.phase_of(n) == HIGH_PRECISION]
    return 1 - len(high) / len(numbers) if numbers else 1.0

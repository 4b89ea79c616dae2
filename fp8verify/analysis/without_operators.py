"""What kernel names alone prove, where a source recorded no operators.

An operator says whose GEMM a kernel is and in which pass it ran. Without one, a GEMM in high
precision may be a layer's, a product of attention, or the optimizer's (Muon), and FP8 GEMMs may be
those of a forward pass alone. What is proved all the same:

- a backward pass ran, if a kernel is named for one, for an optimizer's step, or has E5M2 operands:
  recipes keep gradients in it, activations and weights in E4M3 (arXiv:2209.05433, section 3);
- dgrad and wgrad ran in FP8 as often as fprop, if for each FP8 GEMM of E4M3 operands alone there
  are two with gradients. Recomputed forward passes are among the first, so that they hide the
  proof and never make one;
- no GEMM in high precision is of a layer that was converted, if there are no more than the layers
  explain that were left out, and the legs that the recipe leaves in high precision;
- no leg is hidden in a hundredth of GEMM time: of equal work it takes a sixth to hide half a leg.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.promises import CONVERTED, HIGH_PRECISION, Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.totals import gemm_totals
from fp8verify.analysis.training_passes import has_gradient
from fp8verify.capture.schema import ModuleRecord
from fp8verify.report.model import LEGS, Precision

# Where operators of less are missing, those that are known tell of the rest.
_MOST = 0.5
_TOO_LITTLE = 0.01
# dgrad and wgrad.
_BACKWARD_LEGS = 2


def lacks_operators(rank: RankEvidence) -> bool:
    """Whether it is not known what launched most of the GEMMs."""
    rows = rank.survey.linear
    total = sum(row.time_ns for row in rows)
    return sum(row.time_ns for row in rows if row.kind.op is None) > _MOST * total


def legs_are_proved(rank: RankEvidence, promises: Promises) -> bool:
    """Whether all legs of the layers that ran in FP8 did, but for those the recipe leaves out."""
    rows = rank.survey.linear
    return _gradients_of_all(rows) or _is_too_little(rows) or high_is_explained(rank, promises)


def high_is_explained(rank: RankEvidence, promises: Promises) -> bool:
    """Whether the layers left out, and legs left in high precision, explain all other GEMMs."""
    low, high = _launches(rank.survey.linear)
    kept = sum(promises.leaves_high(leg.value) for leg in LEGS)
    left, converted = _layers(rank.modules)
    fp8_legs = len(LEGS) - kept
    return high * fp8_legs * converted <= low * (kept * converted + len(LEGS) * left)


def unplaced_ns(rank: RankEvidence, promises: Promises) -> int:
    """Return the time of GEMMs in high precision that may be no layer's."""
    if not rank.ran_low or not lacks_operators(rank) or high_is_explained(rank, promises):
        return 0
    return sum(row.time_ns for row in rank.survey.linear if _is_unplaced(row))


def _is_unplaced(row: GemmRow) -> bool:
    known = row.precision is not Precision.UNKNOWN and not row.precision.is_low
    return known and row.kind.op is None


def _gradients_of_all(rows: Iterable[GemmRow]) -> bool:
    low = [row for row in rows if row.precision.is_low and not row.kind.classification.split_k]
    gradients = sum(row.calls for row in low if has_gradient(row.kind))
    forward = sum(row.calls for row in low) - gradients
    return 0 < forward * _BACKWARD_LEGS <= gradients


def _is_too_little(rows: Iterable[GemmRow]) -> bool:
    total = gemm_totals(rows)
    low = sum(time_ns for precision, time_ns in total.time_ns.items() if precision.is_low)
    return total.total_ns - low <= _TOO_LITTLE * total.total_ns


def _launches(rows: Iterable[GemmRow]) -> tuple[int, int]:
    """Return how many GEMMs ran in low precision and how many did not, or may not have."""
    low = high = 0
    for row in rows:
        if row.kind.classification.split_k:
            continue
        if row.precision.is_low:
            low += row.calls
        else:
            high += row.calls
    return low, high


def _layers(modules: Sequence[ModuleRecord]) -> tuple[int, int]:
    """Return how many layers were left out of the conversion, and how many were converted.

    (0, 1) where that cannot be counted: without a census, with experts, which multiply as often as
    they like, and with layers whose legs differ, as frozen ones' do.
    """
    plain = all(_is_plain(module) for module in modules)
    converted = sum(_count(module) for module in modules if module.state in CONVERTED)
    if not plain or not converted:
        return 0, 1
    return sum(_count(m) for m in modules if m.state == HIGH_PRECISION), converted


def _is_plain(module: ModuleRecord) -> bool:
    counted = module.state in (*CONVERTED, HIGH_PRECISION)
    return module.kind == "linear" and counted and module.training and not module.frozen


def _count(module: ModuleRecord) -> int:
    return max(1, len(module.sizes))

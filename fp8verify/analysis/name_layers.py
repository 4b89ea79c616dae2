"""From the kernels of one trace to what ran for each named layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fp8verify.analysis.flops import GemmShape
from fp8verify.analysis.gemms import GemmLabel, Kind, Kinds
from fp8verify.analysis.layers_by_name import LayerGemms, NamedLayers
from fp8verify.analysis.purpose import purpose_of
from fp8verify.analysis.totals import NEGLIGIBLE
from fp8verify.report.model import Leg, Precision
from fp8verify.trace import Trace

_OF_NO_LAYER = (Leg.ATTENTION, Leg.OPTIMIZER)


def name_layers(trace: Trace, kinds: Kinds, labels: Iterable[GemmLabel]) -> NamedLayers | None:
    """Add up GEMMs by layer, leg and precision; None where no kernel ran.

    Args:
        trace: read with `layers`.
        kinds: of its kernels.
        labels: of its GEMMs.
    """
    if not len(trace.kernels):
        return None
    of_layers = [label for label in labels if label.leg not in _OF_NO_LAYER]
    gemms = _layer_gemms(trace, kinds, of_layers)
    return NamedLayers(
        gemms=gemms,
        casts=_casts(trace, kinds),
        unjoined=sum(trace.kernels.layer[label.place] < 0 for label in of_layers),
        flops=_all_flops(trace, kinds, of_layers),
        note=None if gemms else "no GEMM could be joined to a layer",
    )


def _layer_gemms(trace: Trace, kinds: Kinds, labels: Iterable[GemmLabel]) -> tuple[LayerGemms, ...]:
    """Add up launches, ns and FLOPs of the GEMMs that could be joined to a layer."""
    columns = trace.kernels
    totals: dict[tuple[int, Leg, Precision], list[int]] = defaultdict(lambda: [0, 0, 0])
    for place, number, leg, shape, *_ in labels:
        kind, layer = kinds.kinds[number], columns.layer[place]
        if layer >= 0:
            total = totals[layer, leg, kind.classification.precision]
            total[0] += 1
            total[1] += columns.duration_ns[place]
            total[2] += _flops(kind, shape)
    return tuple(
        LayerGemms(trace.layers[layer], leg, precision, *total)
        for (layer, leg, precision), total in sorted(totals.items(), key=lambda item: item[0][0])
    )


def _all_flops(trace: Trace, kinds: Kinds, labels: Iterable[GemmLabel]) -> int | None:
    """Return the FLOPs of all GEMMs, None unless those of (nearly) all GEMM time are known."""
    flops = unknown_ns = gemm_ns = 0
    for place, number, _, shape, *_ in labels:
        kind, time_ns = kinds.kinds[number], trace.kernels.duration_ns[place]
        flops += _flops(kind, shape)
        gemm_ns += time_ns
        if shape is None and not kind.classification.split_k:
            unknown_ns += time_ns
    return flops if unknown_ns <= gemm_ns * NEGLIGIBLE else None


def _flops(kind: Kind, shape: GemmShape | None) -> int:
    return 0 if shape is None or kind.classification.split_k else shape.flops


def _casts(trace: Trace, kinds: Kinds) -> dict[str, int]:
    """Return the ns that each layer's casts, scales and copies for FP8 took."""
    costs = [
        not kind.classification.role.is_gemm and purpose_of(kind) is not None
        for kind in kinds.kinds
    ]
    found: dict[str, int] = defaultdict(int)
    columns = trace.kernels
    for number, layer, time_ns in zip(
        kinds.numbers, columns.layer, columns.duration_ns, strict=True
    ):
        if layer >= 0 and costs[number]:
            found[trace.layers[layer]] += time_ns
    return dict(found)

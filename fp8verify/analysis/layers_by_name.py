"""Layers by name: what each linear module ran, where the run recorded names (`run --layers`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from fp8verify.analysis.flops import GemmShape
from fp8verify.analysis.kinds import GemmLabel, Kind, Kinds
from fp8verify.analysis.purpose import purpose_of
from fp8verify.analysis.totals import NEGLIGIBLE
from fp8verify.report.model import Leg, Precision
from fp8verify.trace import Trace

_OF_NO_LAYER = (Leg.ATTENTION, Leg.OPTIMIZER)


class LayerGemms(NamedTuple):
    """GEMMs of one layer, alike in leg and precision; `flops` is of those with known shapes."""

    layer: str
    leg: Leg
    precision: Precision
    calls: int
    time_ns: int
    flops: int


class NamedLayers(NamedTuple):
    """What ran for each layer, in the order in which the layers ran first.

    Attributes:
        source: "window", or "step" for the eager step after the windows of compiled code, whose
            times are not the run's.
        step: the number of that step, None if there is none.
        gemms: those of the layers.
        casts: ns in kernels that FP8 needs beside its GEMMs, by layer.
        unjoined: GEMMs that ran for no layer, or for one that is not certain.
        flops: of all GEMMs, None unless those of (nearly) all of them are known.
        note: what is missing, or None.
    """

    source: str = "window"
    step: int | None = None
    gemms: tuple[LayerGemms, ...] = ()
    casts: dict[str, int] = {}  # noqa: RUF012  (never changed)
    unjoined: int = 0
    flops: int | None = 0
    note: str | None = None

    def by_layer(self) -> dict[str, list[LayerGemms]]:
        """Return the GEMMs of each layer."""
        found: dict[str, list[LayerGemms]] = defaultdict(list)
        for gemms in self.gemms:
            found[gemms.layer].append(gemms)
        return dict(found)

    def share(self, layers: Iterable[str]) -> float | None:
        """Return the FLOPs of some layers over those of all GEMMs; None where not known."""
        wanted = set(layers)
        part = sum(gemms.flops for gemms in self.gemms if gemms.layer in wanted)
        return part / self.flops if self.flops else None


def join_named(parts: Iterable[NamedLayers | None]) -> NamedLayers | None:
    """Add up the windows of a rank; None if none of them has names."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    totals: dict[tuple[str, Leg, Precision], list[int]] = defaultdict(lambda: [0, 0, 0])
    casts: dict[str, int] = defaultdict(int)
    for part in found:
        for gemms in part.gemms:
            total = totals[gemms[:3]]
            for place, value in enumerate(gemms[3:]):
                total[place] += value
        for layer, time_ns in part.casts.items():
            casts[layer] += time_ns
    return NamedLayers(
        gemms=tuple(LayerGemms(*key, *total) for key, total in totals.items()),
        casts=dict(casts),
        unjoined=sum(part.unjoined for part in found),
        flops=_sum([part.flops for part in found]),
        note=next((part.note for part in found if part.note), None),
    )


def _sum(parts: list[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


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

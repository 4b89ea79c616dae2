"""Layers by name: what each linear module ran, where the run recorded names (`run --layers`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from fp8verify.report.model import Leg, Precision


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

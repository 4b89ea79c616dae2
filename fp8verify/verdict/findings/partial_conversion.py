"""Findings on layers that were promised in FP8, where only some ran in it: by their number.

Layers of one size cannot be told apart without names; how many of their GEMMs ran in FP8 can.
What ran in high precision only forward may be an evaluation, which recipes leave there.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.layer_names import patterns
from fp8verify.report.model import Claim, Finding, Leg, Precision, Role
from fp8verify.text import abridged, counted
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.verdict import NEGLIGIBLE

_SHOWN = 4
_BACKWARD = (Leg.DGRAD, Leg.WGRAD, Leg.BACKWARD)


def converted_partly_executed(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Layers that were converted by the census, of whose size some ran in high precision."""
    rank, found = facts.rank, facts.layers
    if not rank.ran_low or rank.named is not None or promises.leaves_high("fprop"):
        return
    passes = found.passes(_steps(rank))
    classes = [layer for layer in found.classes if layer.converted]
    short = [c for c in classes if passes and not c.never_in_fp8 and c.missing(passes)]
    missing = sum(layer.missing(passes) for layer in short)
    wanted = passes * sum(len(layer.converted) for layer in classes)
    if missing > NEGLIGIBLE * wanted:
        names = patterns(module.fqn for layer in short for module in layer.converted)
        yield _finding(missing, wanted, promises, f"some of {abridged(names, _SHOWN)}")


def pinned_layers_low(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Layers that the log pins to high precision, and that ran in low precision."""
    rank = facts.rank
    pins = {module.fqn: promises.pin(module.fqn) for module in rank.modules}
    named = rank.named.by_layer() if rank.named is not None else {}
    pins |= {layer: promises.pin(layer) for layer in named}
    pinned = {name: pin for name, pin in pins.items() if pin is not None}
    low = [n for n in pinned if any(gemms.precision.is_low for gemms in named.get(n, ()))]
    for layer in facts.layers.classes if not named else ():
        here = [module.fqn for module in layer.modules if module.fqn in pinned]
        free = (layer.passes or 0) * sum(m.fqn not in pinned for m in layer.converted)
        alone = len(here) == len(layer.modules) and any(layer.in_fp8.values())
        if here and (alone or (layer.passes and layer.in_fp8.get(Leg.FPROP, 0) > free)):
            low += here
    if low:
        yield finding(
            "pinned-layer-low",
            count=counted(low, "layer"),
            names=abridged(patterns(low), _SHOWN),
            line=pinned[low[0]].line,
            text=pinned[low[0]].text[:120],
            format=promises.name,
            layers=low,
        )


def counted_partly_executed(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Layers that were converted by the log, where its count of all layers is that of the GEMMs."""
    rank = facts.rank
    if not rank.ran_low or rank.modules or promises.leaves_high("fprop"):
        return
    for claim in promises.claims:
        missing, wanted = _missing(claim, rank)
        if missing > NEGLIGIBLE * wanted:
            said = f"{claim.place} says that {claim.converted} of {claim.total} layers were"
            yield _finding(missing, wanted, promises, f"{said} converted")
            return


def _missing(claim: Claim, rank: RankEvidence) -> tuple[int, int]:
    """Return how many forward GEMMs of how many that a line promises did not run in FP8."""
    rows = [row for row in rank.survey.linear if row.kind.classification.role is Role.GEMM]
    calls = sum(row.calls for row in rows if row.leg is Leg.FPROP)
    each = (claim.total or 0) * _steps(rank)
    known = all(
        row.precision is not Precision.UNKNOWN and row.leg is not Leg.UNKNOWN for row in rows
    )
    if claim.says != "fp8" or not claim.converted or not each or calls % each or not known:
        return 0, 0
    wanted = calls // (claim.total or 1) * claim.converted
    low = sum(row.calls for row in rows if row.leg is Leg.FPROP and row.precision.is_low)
    left = calls - wanted
    return (max(0, wanted - low), wanted) if _is_high_backward(rows, left) else (0, wanted)


def _is_high_backward(rows: list[GemmRow], left: int) -> bool:
    """Whether more GEMMs of the backward pass ran in high precision than layers left there have."""
    high = [row for row in rows if row.leg in _BACKWARD and not row.precision.is_low]
    return sum(row.calls for row in high) > 2 * left


def _steps(rank: RankEvidence) -> int:
    return sum(gemm.kernels.total() > 0 for _, gemm in rank.steps)


def _finding(missing: int, wanted: int, promises: Promises, which: str) -> Finding:
    """Layers that were converted, by the census or the log, where only some ran in FP8."""
    return finding(
        "layer-not-fp8",
        "counted",
        missing=missing,
        wanted=wanted,
        format=promises.name,
        which=which,
    )

"""Findings on layers by name: converted ones, or legs of theirs, that ran in high precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.layers import LayerGemms, NamedLayers
from fp8verify.analysis.promises import CONVERTED, HIGH_PRECISION, Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.layer_names import in_sentences, shorten
from fp8verify.report.model import LEGS, VAGUE_LEGS, Finding, Leg, Precision
from fp8verify.text import counted, listed, of_flops
from fp8verify.verdict.findings.legs import short_legs
from fp8verify.verdict.findings_table import finding

_SHOWN = 8


def named_layers_not_fp8(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Converted layers that ran, and none of whose GEMMs ran in FP8."""
    rank = facts.rank
    missed = [layer for layer, gemms, _ in _missed(rank, promises) if not _any_low(gemms)]
    if missed and rank.named is not None:
        yield finding(
            "layer-not-fp8",
            "named",
            count=counted(missed, "converted layer"),
            format=promises.name,
            share=f"{_where(rank.named)}{of_flops(rank.named.share(missed))}",
            names=_names(missed, rank),
            layers=missed,
        )


def named_legs_not_fp8(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """GEMM passes that ran in high precision in some converted layers and in FP8 in others."""
    rank = facts.rank
    missed = [(layer, legs) for layer, gemms, legs in _missed(rank, promises) if _any_low(gemms)]
    short = {found.leg for found in short_legs(rank, promises)} if missed else set()
    for leg in LEGS:
        layers = [layer for layer, legs in missed if leg in legs]
        if layers and leg not in short and rank.named is not None:  # else `legs_not_fp8` tells
            yield finding(
                "leg-not-fp8",
                "layers",
                leg=leg.value,
                layers_named=counted(layers, "converted layer"),
                where=_where(rank.named),
                names=_names(layers, rank),
                layers=layers,
            )


def _missed(
    rank: RankEvidence, promises: Promises
) -> Iterator[tuple[str, list[LayerGemms], tuple[Leg, ...]]]:
    """Yield the converted layers with promised passes that ran in high precision, and these."""
    if not rank.ran_low or rank.meta is None or rank.named is None:
        return
    known = rank.named.by_layer()
    for module in rank.meta.modules:
        gemms = known.get(module.fqn, [])
        legs = tuple(leg for leg in _promised(module, promises) if _all_high(leg, gemms))
        if legs:
            yield module.fqn, gemms, legs


def _promised(module: ModuleRecord, promises: Promises) -> Iterator[Leg]:
    if module.state in CONVERTED:
        for leg in LEGS:
            high = module.format_of(leg.value) == HIGH_PRECISION
            if not high and not promises.leaves_high(leg.value):
                yield leg


def _all_high(leg: Leg, gemms: Sequence[LayerGemms]) -> bool:
    """Whether a leg ran, and surely all of it in high precision."""
    ran = [found.precision for found in gemms if found.leg is leg]
    vague = [found.precision for found in gemms if found.leg in VAGUE_LEGS]
    sure = not any(found.is_low or found is Precision.UNKNOWN for found in ran + vague)
    return bool(ran) and sure


def _any_low(gemms: Sequence[LayerGemms]) -> bool:
    return any(found.precision.is_low for found in gemms)


def _where(named: NamedLayers) -> str:
    return (
        ""
        if named.step is None
        else f" (seen in step {named.step}, which ran without torch.compile)"
    )


def _names(layers: Iterable[str], rank: RankEvidence) -> str:
    """Name layers exactly; a pattern stands for all layers that it fits."""
    found = shorten(layers, (module.fqn for module in rank.modules))
    return listed(in_sentences(found), _SHOWN)

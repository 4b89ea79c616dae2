"""Findings on layers: left out, converted and not executed, or converted without need."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from msgspec.structs import replace

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.layers import LayerClass
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.layer_names import in_sentences, patterns
from fp8verify.report.model import Finding, Leg, Role
from fp8verify.text import abridged, counted, of_flops
from fp8verify.verdict.causes import cause_without_fp8, head_of
from fp8verify.verdict.findings_table import finding

_SHOWN = 4
_GROUPED = Role.GROUPED_GEMM


def layers_left_out(ranks: Sequence[RankFacts], promises: Promises) -> Iterator[Finding]:
    """Layers that the configuration left in high precision: by name, or else by size."""
    yield from _left_out(ranks) if promises.converted else _sizes_left_out(ranks)


def converted_not_executed(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Layers that were converted, and of whose size every GEMM ran in high precision.

    Those whose GEMMs have names are `named_layers_not_fp8`.
    """
    rank, found = facts.rank, facts.layers
    if not rank.ran_low:
        return  # then nothing was executed in FP8, which is said once
    known = rank.named.by_layer() if rank.named is not None else {}
    missed = [
        layer
        for layer in found.classes
        if _missed(layer) and not all(module.fqn in known for module in layer.converted)
    ]
    if missed and not promises.leaves_high("fprop"):
        modules = [m for layer in missed for m in layer.converted if m.fqn not in known]
        yield finding(
            "layer-not-fp8",
            count=counted(modules, "converted layer"),
            format=promises.name,
            share=of_flops(found.share(missed)),
            names=f"{_names(modules)}{_eval(modules)}",
            layers=[module.fqn for module in modules],
        )


def _missed(layer: LayerClass) -> bool:
    ran = layer.observed.get(Leg.FPROP, 0)
    return bool(layer.converted) and ran >= len(layer.modules) and layer.never_in_fp8


def _left_out(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Linear layers left in high precision where others were converted: usually by design."""
    linears = [_linears(facts.rank) for facts in ranks]
    converted = {name for of in linears for name, m in of.items() if m.state != "high_precision"}
    left = [{n: m for n, m in of.items() if m.state == "high_precision"} for of in linears]
    everywhere = {n: m for of in left for n, m in of.items() if n not in converted}
    if everywhere:
        yield _left_finding(everywhere, _share_of(everywhere, ranks), here=False)
    for facts, of in zip(ranks, left, strict=True):
        only_here = {n: m for n, m in of.items() if n in converted}
        if only_here:
            found = _left_finding(only_here, _share_of(only_here, [facts]), here=True)
            yield replace(found, ranks=facts.rank.numbers, per_rank=True)


def _linears(rank: RankEvidence) -> dict[str, ModuleRecord]:
    return {module.fqn: module for module in rank.modules if module.kind == "linear"}


def _left_finding(left: dict[str, ModuleRecord], share: float | None, *, here: bool) -> Finding:
    return finding(
        "layer-not-fp8",
        "left-out-here" if here else "left-out",
        count=counted(left, "linear module"),
        share=of_flops(share),
        names=f"{_names(left.values())}{_reasons(left.values())}",
        layers=left,
    )


def _share_of(left: Container[str], ranks: Sequence[RankFacts]) -> float | None:
    """FLOPs of the modules left over those of all GEMMs; modules of a size share evenly."""
    flops = 0.0
    for layer in (layer for facts in ranks for layer in facts.layers.classes):
        if layer.modules:
            count = sum(module.fqn in left for module in layer.modules)
            flops += layer.flops * count / len(layer.modules)
    totals = [facts.layers.flops for facts in ranks]
    known = sum(filter(None, totals))
    return flops / known if known and None not in totals else None


def _sizes_left_out(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Without a census: layer sizes that ran only in high precision, where others ran in FP8."""
    for facts in ranks:
        rank, known = facts.rank, facts.layers
        left = [layer for layer in known.classes if layer.never_in_fp8 and not layer.modules]
        if rank.ran_low and left:
            experts = _expert_counts(rank)
            sizes = ", ".join(_sized(layer, experts) for layer in left[:_SHOWN])
            found = finding(
                "layer-not-fp8", "sizes", sizes=sizes, share=of_flops(known.share(left))
            )
            yield replace(found, ranks=rank.numbers, per_rank=True)
            return


def _sized(layer: LayerClass, experts: Container[int]) -> str:
    """Return a layer's size, with what it is where it has an output for each expert."""
    router = f" (a router of {layer.size.n} experts)" if layer.size.n in experts else ""
    return f"{layer.size.n}x{layer.size.k}{router}"


def _expert_counts(rank: RankEvidence) -> set[int]:
    """Return how many experts the grouped GEMMs of a rank have, by the weights' first dimension."""
    ops = (row.kind.op for row in rank.survey.gemms if row.kind.classification.role is _GROUPED)
    return {dims[0] for op in ops if op is not None for dims in op.dims if len(dims) == 3}


def head_in_fp8(ranks: Sequence[RankFacts], _: Promises) -> Iterator[Finding]:
    """A language model's head, which recipes mostly leave in high precision."""
    for facts in ranks:
        head = head_of(facts.layers)
        if facts.rank.ran_low and head is not None and any(head.in_fp8.values()):
            name = head.modules[0].fqn if len(head.modules) == 1 else "the layer"
            yield finding(
                "lm-head-fp8",
                name=name,
                outputs=head.size.n,
                ranks=facts.rank.numbers,
                layers=[module.fqn for module in head.modules],
            )
            return


def outside_autocast(ranks: Sequence[RankFacts], promises: Promises) -> Iterator[Finding]:
    """Transformer Engine's layers where none of them ran inside its FP8 autocast."""
    modules = (module for facts in ranks for module in facts.rank.modules)
    off = {module.fqn: module for module in modules if module.state == "fp8_module_off"}
    if off and not promises.converted:
        yield finding(
            "layer-not-fp8",
            "outside-autocast",
            count=len(off),
            names=_names(off.values()),
            layers=off,
        )
    elif not promises.any and not any(facts.rank.ran_low for facts in ranks):
        causes = (cause_without_fp8(facts.rank, promises) for facts in ranks)
        what = next((text for case, text in causes if case == "outside-autocast"), None)
        if what is not None:
            yield finding("layer-not-fp8", "functions-outside-autocast", what=what)


def _names(modules: Iterable[ModuleRecord]) -> str:
    return abridged(in_sentences(patterns(module.fqn for module in modules)), _SHOWN)


def _reasons(modules: Iterable[ModuleRecord]) -> str:
    """Why modules could not be converted, where the census knows."""
    reasons = [module.reason for module in modules if module.reason]
    return f" ({len(reasons)} because {reasons[0]})" if reasons else ""


def _eval(modules: Sequence[ModuleRecord]) -> str:
    return "" if all(module.training for module in modules) else " (in eval mode)"

"""Why not all GEMM time is in low precision: which layers, or which leg, most of the rest is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.layers_by_size import LayerClass
from fp8verify.capture.schema import ModuleRecord
from fp8verify.layer_names import patterns
from fp8verify.report.model import LEGS, Precision
from fp8verify.text import abridged, counted
from fp8verify.verdict.findings.layers import head_of

# What explains this much of the time in high precision is the reason.
_MOST = 0.5
_FEW = 3
_SIZES = 3


def rest_of(facts: RankFacts) -> str | None:
    """Say what most of the GEMMs in high precision are for; None where nothing tells."""
    high = [row for row in facts.rank.survey.linear if _is_high(row)]
    if not facts.rank.ran_low or not high:
        return None
    return _left_out(facts) or _sizes(facts, high) or _leg(high)


def _is_high(row: GemmRow) -> bool:
    return not row.precision.is_low and row.precision is not Precision.UNKNOWN


def _left_out(facts: RankFacts) -> str | None:
    """By the census: layers that were not converted."""
    linears = [module for module in facts.rank.modules if module.kind == "linear"]
    left = [module for module in linears if module.state == "high_precision"]
    if not left or len(left) == len(linears):
        return None
    if not _explains(facts, left):
        return None
    precision = facts.rank.main_high.value.upper()
    if len(left) <= _FEW:
        return f"{_called([module.fqn for module in left])} ran in {precision}"
    of = f"{len(left)} of {counted(linears, 'linear layer')}"
    names = abridged(patterns(module.fqn for module in left), _SIZES)
    return f"{of} were left out of the conversion: {names}"


def _called(names: Sequence[str]) -> str:
    """Return the names of layers, introduced where they read as figures, as `0.0` does."""
    text = ", ".join(names)
    if not text[:1].isdigit():
        return text
    return f"{'layer' if len(names) == 1 else 'layers'} {text}"


def _explains(facts: RankFacts, left: Sequence[ModuleRecord]) -> bool:
    """Whether these layers are most of the FLOPs in high precision, where FLOPs tell."""
    names = {module.fqn for module in left}
    flops = high = 0.0
    for layer in facts.layers.classes:
        part = sum(module.fqn in names for module in layer.modules)
        low = sum(layer.in_fp8.values())
        high += layer.flops * (1 - low / max(1, sum(layer.observed.values())))
        if layer.modules:
            flops += layer.flops * part / len(layer.modules)
    return not high or flops >= _MOST * high


def _sizes(facts: RankFacts, high: Iterable[GemmRow]) -> str | None:
    """Without a census: the sizes of layers that never ran in low precision."""
    never = [layer for layer in facts.layers.classes if layer.never_in_fp8]
    total = sum(row.flops or 0 for row in high)
    if not total or sum(layer.flops for layer in never) < _MOST * total:
        return None
    precision = facts.rank.main_high.value.upper()
    head = head_of(facts.layers)
    if head is not None and head in never and head.flops >= _MOST * total:
        return f"the head, {_size(head)}, ran in {precision}"
    return f"layers of {abridged(list(map(_size, never)), _SIZES)} ran in {precision}"


def _size(layer: LayerClass) -> str:
    return f"{layer.size.n}x{layer.size.k}"


def _leg(high: Sequence[GemmRow]) -> str | None:
    total = sum(row.time_ns for row in high)
    for leg in LEGS:
        rows = [row for row in high if row.leg is leg]
        if sum(row.time_ns for row in rows) > _MOST * total:
            return f"most of the rest is {leg.value} in {rows[0].precision.value.upper()}"
    return None

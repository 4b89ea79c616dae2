"""Findings on layers in another precision than others, or than the log states.

Layers with names (`run --layers`) are judged one by one. Without names, layers of one size cannot
be distinguished; how many of their GEMMs ran in FP8 can.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, filterfalse
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from fp8verify.analysis.calls import Call, Ran
from fp8verify.analysis.layers import LayerClass, NamedLayers
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import recomputed_high
from fp8verify.capture.schema import ModuleRecord
from fp8verify.logs.statements import HIGH_PRECISION, LayerClaim
from fp8verify.model.verdict import Finding
from fp8verify.terms import Leg
from fp8verify.text import (
    abridged,
    counted,
    in_sentences,
    listed,
    of_flops,
    patterns,
    shown_size,
)
from fp8verify.thresholds import HALF, LAYER_FLOPS, SHOWN, VOCABULARY
from fp8verify.verdict.blocks import between, block_in
from fp8verify.verdict.clauses import by_number, optional
from fp8verify.verdict.expected import CONVERTED, Requested
from fp8verify.verdict.findings_table import finding, told
from fp8verify.verdict.pins import HEAD
from fp8verify.verdict.reasons import cause_without_fp8
from fp8verify.verdict.selection import in_state, low_of, names_of


def _named(names: Iterable[str]) -> str:
    return abridged(in_sentences(patterns(names)), SHOWN)


# ---- in low precision against the log


def pinned_layers_low(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Layers that the log pins to high precision, and that ran in low precision."""
    pins: dict[str, LayerClaim] = {}
    for name in _layers_in_low(rank, requested):
        pin = requested.pin(name)
        if pin is not None:
            pins[name] = pin
    if pins:
        first, *_ = pins.values()
        those = by_number(pins, "it", "them")
        yield finding(
            "pinned-layer-low",
            names=_named(pins),
            format=requested.name,
            keeps=f"log line {first.line} keeps {those}",
            layers=pins,
        )


def _layers_in_low(rank: RankEvidence, requested: Requested) -> Iterable[str]:
    """Return the layers that ran in low precision: by name, else those of sizes that must have."""
    named = rank.trace.named or NamedLayers()
    by_layer = named.by_layer()
    if by_layer:
        low = [name for name, rows in by_layer.items() if low_of(rows)]
        in_order = dict.fromkeys([*names_of(rank.modules), *by_layer])
        return list(filter(set(low).__contains__, in_order))
    names: list[str] = []
    for layer in rank.layers.classes:
        if _has_pinned_in_low(rank, layer, requested):
            names += names_of(layer.modules)
    return names


def _has_pinned_in_low(
    rank: RankEvidence,
    layer: LayerClass,
    requested: Requested,
) -> bool:
    """Whether pinned layers of a size must have run low: all are, or more ran than others can.

    Of several executions together, those that ran may be the same ones.
    """
    pins = list(map(requested.pin, names_of(layer.modules)))
    are_all_pinned = bool(layer.row.in_fp8) and all(pins)
    converted = map(requested.pin, names_of(layer.converted))
    free = list(converted).count(None)
    # Equal executions are one object.
    executions = {id(one.calls): one.calls for one in rank.trace.executions}
    ran_more = False
    for calls in executions.values():
        forward = _forward_products(calls, layer)
        low = [ran for ran in forward if ran.low == ran.launches]
        each = max(1, len(layer.modules))
        passes, rest = divmod(len(forward), each)
        ran_more |= not rest and len(low) > passes * free
    return are_all_pinned or ran_more


def _forward_products(calls: Iterable[Call], layer: LayerClass) -> list[Ran]:
    """Return what ran forward of the layers of a size."""
    size = (layer.row.n, layer.row.k)
    found = []
    of_size = [call for call in calls if call.size == size]
    for call in of_size:
        found += [ran for leg, ran in call.legs if leg is Leg.FPROP]
    return found


# ---- left out of the conversion


def left_by_design(rank: RankEvidence, requested: Requested) -> str:
    """Say which layers of a rank were left out, for a sentence that has a share of its own."""
    found = chain(
        layers_left_out(rank, requested, has_share=False),
        sizes_left_out(rank, requested, has_share=False),
    )
    return next((one.message for one in found), "")


def layers_left_out(
    rank: RankEvidence, requested: Requested, *, has_share: bool = True
) -> Iterator[Finding]:
    """Layers that the configuration left in high precision, mostly by design."""
    left = in_state(rank.linears, HIGH_PRECISION)
    layers = names_of(left)
    is_part = 0 < len(left) < len(rank.linears)
    is_asked = requested.converted or rank.ran_low
    share = of_flops(rank.layers.share_of(layers))
    names = f"{_named(layers)}{_reason_of(left)}"
    yield from told(
        "layer-not-fp8",
        "left-out",
        when=is_part and is_asked,
        count=counted(left, "linear module"),
        share=optional(share, when=has_share),
        names=names,
        layers=layers,
    )


def _reason_of(modules: Sequence[ModuleRecord]) -> str:
    """Say why modules were left out, as the list does of the first, and of how many it does."""
    reasons = [module.reason for module in modules if module.reason]
    if not reasons:
        return ""
    return f" ({len(reasons)} because {reasons[0]})"


# The same layer of all blocks, by the number of the block.
_Blocks: TypeAlias = Mapping[int, ModuleRecord]


class _OfAllBlocks(NamedTuple):
    """What layers of several blocks have in common: their name but for its number, and a size."""

    layer: str
    outputs: int
    inputs: int


def left_out_of_one_block(
    rank: RankEvidence, requested: Requested
) -> Iterator[Finding]:
    """Layers left out in an inner block, where the same layers of other blocks were converted.

    Recipes leave out the first and the last blocks; an inner one is rather a filter that matched
    too much, as "layers.1" does of block 10.
    """
    apart: list[ModuleRecord] = []
    most = 0
    for blocks in _same_layers(rank.linears):
        inner = _inner(blocks)
        odd = in_state(inner, HIGH_PRECISION)
        if 0 < len(odd) < HALF * len(blocks):
            others = len(blocks) - len(odd)
            most = max(most, others)
            apart += odd
    unexplained = filterfalse(attrgetter("reason"), apart)
    layers = list(filterfalse(requested.pin, names_of(unexplained)))
    yield from told(
        "layer-not-fp8",
        "one-block",
        when=layers and rank.ran_low,
        names=_named(layers),
        others=counted(most, "other block"),
        layers=layers,
    )


def _same_layers(modules: Iterable[ModuleRecord]) -> Iterable[_Blocks]:
    """Return the modules in numbered blocks, those of one name and size together."""
    alike: dict[_OfAllBlocks, dict[int, ModuleRecord]] = defaultdict(dict)
    for module in modules:
        block = block_in(module.fqn)
        if block is not None:
            same = _OfAllBlocks(
                layer=block.layer,
                outputs=module.out_features or 0,
                inputs=module.in_features or 0,
            )
            alike[same][block.number] = module
    return alike.values()


def _inner(blocks: _Blocks) -> list[ModuleRecord]:
    """Return the modules of blocks between the first and the last that were converted."""
    converted = [n for n, module in blocks.items() if module.state in CONVERTED]
    return [blocks[number] for number in between(blocks, converted)]


def sizes_left_out(
    rank: RankEvidence, requested: Requested, *, has_share: bool = True
) -> Iterator[Finding]:
    """Without a census: layer sizes that ran only in high precision, where others ran in FP8."""
    low_rows = low_of(rank.trace.trained)
    low_sizes: set[tuple[int, int]] = set()  # of any library
    for gemms in low_rows:
        low_sizes.update(gemms.layer_sizes)
    sizes: list[str] = []
    share = 0.0
    for layer in rank.layers.classes:
        row = layer.row
        size = (row.n, row.k)
        is_low = row.in_fp8 or size in low_sizes
        if not is_low and not layer.modules:
            sizes.append(shown_size(size))
            share += row.share_of_flops or 0.0
    is_much = low_rows and share >= LAYER_FLOPS
    yield from told(
        "layer-not-fp8",
        "sizes",
        when=is_much and not requested.converted,
        sizes=abridged(sizes, SHOWN),
        share=optional(of_flops(share), when=has_share),
    )


# ---- the head


def head_in_fp8(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """A language model's head, which recipes mostly leave in high precision.

    It is named so, or is as wide as a vocabulary and runs less often than any other layer.
    """
    layers = rank.layers.classes
    named = filter(_is_named_as_head, layers)
    head = next(named, None) or _rarest(layers)
    is_alone = len(layers) == 1
    if head is None or is_alone or not head.row.in_fp8:
        return
    names = names_of(head.modules)
    yield finding(
        "lm-head-fp8",
        name=next(iter(names), "the layer"),
        outputs=head.row.n,
        layers=names,
    )


def _is_named_as_head(layer: LayerClass) -> bool:
    names = names_of(layer.modules)
    is_one = len(names) == 1
    return is_one and _is_wide(layer) and HEAD.search(names[0]) is not None


def _is_wide(layer: LayerClass) -> bool:
    """Whether a layer is as wide as a vocabulary."""
    return layer.row.n >= VOCABULARY


def _rarest(classes: Sequence[LayerClass]) -> LayerClass | None:
    """Return the layer that no list names, if it is wide and runs less often than all others."""
    runs = Counter(map(_forward_runs, classes))
    least = min(runs, default=0)
    is_one = runs[least] == 1
    for layer in filter(_is_wide, classes):
        is_rarest = is_one and _forward_runs(layer) == least
        if is_rarest and not layer.modules:
            return layer
    return None


def _forward_runs(layer: LayerClass) -> int:
    return layer.row.observed.get("fprop", 0)


# ---- an autocast that does not reach, and forward passes that were recomputed otherwise


def outside_autocast(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Transformer Engine's layers where none of them ran inside its FP8 autocast."""
    case, what = cause_without_fp8(rank, requested)
    is_asked = requested.any or rank.ran_low
    yield from told(
        "layer-not-fp8",
        "outside-autocast",
        when=case == "outside-autocast" and not is_asked,
        what=what,
        layers=names_of(in_state(rank.modules, "fp8_module_off")),
    )


def recomputed_outside_fp8(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Layers that hooks of `run --numerics` saw recomputed in high precision."""
    layers = recomputed_high(rank)
    yield from told(
        "recompute-not-fp8",
        when=layers,
        ran=listed(patterns(layers), SHOWN),
        layers=layers,
    )

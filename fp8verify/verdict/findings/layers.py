"""Findings on layers, legs and number formats: others than the run asked for, or than the rest.

Layers with names (`run --layers`) are judged one by one. Without names, layers of one size cannot
be distinguished; how many of their GEMMs ran in FP8 can.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping

from fp8verify.analysis.gemms import gemm_totals
from fp8verify.analysis.gpus import multiplies
from fp8verify.analysis.layers import LayerClass
from fp8verify.analysis.purpose import has_gradient
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import (
    configured_scaling,
    recipes_of,
    recomputed_high,
)
from fp8verify.analysis.timeline import shards_gradients, weight_gathers
from fp8verify.capture.schema import ModuleRecord
from fp8verify.logs.statements import HIGH_PRECISION
from fp8verify.model.kernels import PrecisionRow
from fp8verify.model.verdict import Finding
from fp8verify.terms import LEGS, Leg, Precision
from fp8verify.text import (
    abridged,
    counted,
    in_sentences,
    listed,
    of_flops,
    patterns,
    shown_size,
)
from fp8verify.thresholds import HALF, LAYER_FLOPS, NEGLIGIBLE, SHOWN, VOCABULARY
from fp8verify.verdict.clauses import by_number, first_that_holds, optional
from fp8verify.verdict.expected import (
    CONVERTED,
    Requested,
    format_name,
    formats_of_claims,
)
from fp8verify.verdict.findings_table import told
from fp8verify.verdict.pins import HEAD
from fp8verify.verdict.reasons import cause_without_fp8
from fp8verify.verdict.selection import calls_of, in_state, low_of, names_of

# What enable_fsdp_float8_all_gather=True wraps weights in: torchao/float8/fsdp_utils.py.
_TRAVELS_IN_FP8 = {
    "WeightWithDynamicFloat8CastTensor",
    "WeightWithDelayedFloat8CastTensor",
    "WeightWithStaticFloat8CastTensor",
}
# The number of a block within the name of a layer.
_BLOCK = re.compile(r"\.(\d+)\.")


def _named(names: Iterable[str]) -> str:
    return abridged(in_sentences(patterns(names)), SHOWN)


# ---- in low precision against the log


def pinned_layers_low(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Layers that the log pins to high precision, and that ran in low precision."""
    pins = {}
    for name in _pinned_and_low(rank, requested):
        pin = requested.pin(name)
        if pin is not None:
            pins[name] = pin
    lines = [f"log line {pin.line} keeps" for pin in pins.values()]
    yield from told(
        "pinned-layer-low",
        when=pins,
        names=_named(pins),
        format=requested.name,
        keeps=f"{next(iter(lines), '')} {by_number(pins, 'it', 'them')}",
        layers=pins,
    )


def _pinned_and_low(rank: RankEvidence, requested: Requested) -> Iterator[str]:
    """Yield the layers that ran in low precision: by name, else those of sizes that must have.

    Of layers of one size, some of which are pinned, these did where all are pinned, or where more
    ran than the others can have.
    """
    named = rank.trace.named.by_layer() if rank.trace.named is not None else {}
    for name in dict.fromkeys([*names_of(rank.modules), *named]):
        if any(gemms.precision.is_low for gemms in named.get(name, ())):
            yield name
    for layer in rank.layers.classes if not named else ():
        names = names_of(layer.modules)
        free = [m for m in layer.converted if requested.pin(m.fqn) is None]
        passes = layer.row.passes or 0
        ran = layer.row.in_fp8.get("fprop", 0)
        is_pinned = layer.row.in_fp8 and all(map(requested.pin, names))
        if is_pinned or (passes and ran > passes * len(free)):
            yield from names


# ---- left out of the conversion


def layers_left_out(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Layers that the configuration left in high precision, mostly by design."""
    left = in_state(rank.linears, HIGH_PRECISION)
    reasons = [module.reason for module in left if module.reason]
    because = f" ({len(reasons)} because {next(iter(reasons), '')})"
    layers = names_of(left)
    is_part = 0 < len(left) < len(rank.linears)
    yield from told(
        "layer-not-fp8",
        "left-out",
        when=is_part and (requested.converted or rank.ran_low),
        count=counted(left, "linear module"),
        share=of_flops(rank.layers.share_of(layers)),
        names=f"{_named(layers)}{optional(because, when=reasons)}",
        layers=layers,
    )


def left_out_of_one_block(
    rank: RankEvidence, requested: Requested
) -> Iterator[Finding]:
    """Layers left out in an inner block, where the same layers of other blocks were converted.

    Recipes leave out the first and the last blocks; an inner one is rather a filter that matched
    too much, as "layers.1" does of block 10.
    """
    alike: dict[tuple[str, int, int], dict[int, ModuleRecord]] = defaultdict(dict)
    for module in rank.linears:
        name = _BLOCK.split(module.fqn, maxsplit=1)
        if len(name) == 3:
            key = (
                f"{name[0]}.*.{name[2]}",
                module.out_features or 0,
                module.in_features or 0,
            )
            alike[key][int(name[1])] = module
    apart = []
    most = 0
    for blocks in alike.values():
        inner = _inner(blocks)
        odd = [blocks[n] for n in inner if blocks[n].state == "high_precision"]
        if 0 < len(odd) < HALF * len(blocks):
            most = max(most, len(blocks) - len(odd))
            apart += [m for m in odd if requested.pin(m.fqn) is None and not m.reason]
    layers = names_of(apart)
    yield from told(
        "layer-not-fp8",
        "one-block",
        when=apart and rank.ran_low,
        names=_named(layers),
        others=counted(most, "other block"),
        layers=layers,
    )


def _inner(blocks: Mapping[int, ModuleRecord]) -> list[int]:
    """Return the numbers of blocks between the first and the last that were converted."""
    converted = [n for n, module in blocks.items() if module.state in CONVERTED]
    first = min(converted, default=0)
    last = max(converted, default=0)
    return [n for n in blocks if first < n < last]


def sizes_left_out(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Without a census: layer sizes that ran only in high precision, where others ran in FP8."""
    rows = low_of(rank.trace.trained)
    low = {size for row in rows for size in row.layer_sizes}  # of any library
    sizes: list[str] = []
    share = 0.0
    for layer in rank.layers.classes:
        size = (layer.row.n, layer.row.k)
        is_known = layer.row.in_fp8 or layer.modules or size in low
        if not is_known:
            sizes.append(shown_size(size))
            share += layer.row.share_of_flops or 0.0
    is_much = rows and share >= LAYER_FLOPS
    yield from told(
        "layer-not-fp8",
        "sizes",
        when=is_much and not requested.converted,
        sizes=abridged(sizes, SHOWN),
        share=of_flops(share),
    )


def head_in_fp8(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """A language model's head, which recipes mostly leave in high precision.

    It is named so, or is as wide as a vocabulary and runs less often than any other layer.
    """
    classes = rank.layers.classes
    wide = [layer for layer in classes if layer.row.n >= VOCABULARY]
    named = list(filter(_is_named_as_head, wide))
    runs = Counter(map(_forward_runs, classes))
    least = min(runs, default=0)
    is_rare = runs[least] == 1
    unlisted = (layer for layer in wide if not layer.modules)
    rarest = [layer for layer in unlisted if _forward_runs(layer) == least]
    for head in (named or rarest)[:1]:
        names = names_of(head.modules)
        is_head = head in named or is_rare
        ran_low = rank.ran_low and head.row.in_fp8
        yield from told(
            "lm-head-fp8",
            when=ran_low and is_head and len(classes) > 1,
            name=next(iter(names), "the layer"),
            outputs=head.row.n,
            layers=names,
        )


def _is_named_as_head(layer: LayerClass) -> bool:
    names = names_of(layer.modules)
    return len(names) == 1 and HEAD.search(names[0]) is not None


def _forward_runs(layer: LayerClass) -> int:
    return layer.row.observed.get("fprop", 0)


def outside_autocast(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Transformer Engine's layers where none of them ran inside its FP8 autocast."""
    case, what = cause_without_fp8(rank, requested)
    off = names_of(in_state(rank.modules, "fp8_module_off"))
    is_asked = requested.any or rank.ran_low
    yield from told(
        "layer-not-fp8",
        "outside-autocast",
        when=case == "outside-autocast" and not is_asked,
        what=what,
        layers=off,
    )


# ---- legs and number formats: others than the run asked for, or than the rest

_FOUR_BITS = frozenset({"nvfp4", "mxfp4", "fp4"})
_FP8 = frozenset(precision.value for precision in Precision if precision.is_fp8)
_FP4 = frozenset(precision.value for precision in Precision if precision.is_fp4)


# ---- forward passes that were recomputed otherwise


def recomputed_outside_fp8(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Layers that hooks of `run --numerics` saw recomputed in high precision."""
    layers = recomputed_high(rank)
    yield from told(
        "recompute-not-fp8",
        when=layers,
        ran=listed(patterns(layers), SHOWN),
        layers=layers,
    )


# ---- other formats than requested


def other_than_requested(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Legs requested in FP4 that ran in FP8, and legs in fewer bits than any format requested.

    Libraries fall back from FP4 to FP8 without a word. Legs in high precision are `leg-not-fp8` and
    `layer-not-fp8`: recipes leave layers there on purpose.
    """
    logged = formats_of_claims(requested.claims)
    formats = requested.formats
    ran_fp4 = any(_may_be_fp4(row.precision) for row in rank.trace.gemms)
    is_asked = logged and all(f <= _FOUR_BITS for f in logged.values())
    if rank.ran_low and is_asked and not ran_fp4:
        # Modules, if there are any, show what the library fell back to.
        yield from _higher(rank, logged, tuple(Leg))
        return
    higher = {}
    lower = {}
    for leg, of_leg in formats.items():
        if of_leg <= _FOUR_BITS and _share(rank, leg, _FP8) > NEGLIGIBLE:
            higher[leg] = of_leg
        if _share(rank, leg, _below(of_leg, rank)) > HALF:
            lower[leg] = of_leg
    yield from _higher(rank, higher, higher)
    yield from told(
        "lower-than-promised",
        when=lower,
        request=_request_of(lower),
        ran=_ran(rank, lower),
    )


def _higher(
    rank: RankEvidence,
    formats: Mapping[Leg, frozenset[str]],
    legs: Container[Leg],
) -> Iterator[Finding]:
    """Say that FP4 was requested, if it was, and FP8 ran; a GPU without FP4 units is why."""
    gpu = rank.trace.gpu
    has_units = multiplies(gpu, rank.trace.compute_capability, Precision.FP4)
    return told(
        "higher-than-promised",
        optional("no-units", when=has_units is False),
        when=formats,
        request=_request_of(formats),
        gpu=gpu,
        ran=_ran(rank, legs),
    )


def _may_be_fp4(precision: Precision) -> bool:
    return precision.is_fp4 or precision is Precision.BELOW16


def _below(formats: frozenset[str], rank: RankEvidence) -> frozenset[str]:
    """Return the classes of fewer bits than any of the formats."""
    # Modules of unknown classes may run any leg in FP8.
    all_known = all(module.state != "unknown" for module in rank.modules)
    rows = (
        (formats & _FOUR_BITS, frozenset[str]()),
        (formats == {HIGH_PRECISION} and all_known, _FP8 | _FP4),
    )
    return first_that_holds(rows, _FP4)


def _share(rank: RankEvidence, leg: Leg, precisions: Container[str]) -> float:
    """Return the share of some precision classes in the GEMM time of a leg."""
    return sum(row.share for row in _ran_in(rank, [leg]) if row.precision in precisions)


def _ran_in(rank: RankEvidence, legs: Container[Leg]) -> list[PrecisionRow]:
    return gemm_totals(row for row in rank.trace.gemms if row.leg in legs).rows


def _ran(rank: RankEvidence, legs: Container[Leg]) -> str:
    rows = _ran_in(rank, legs)
    if len(rows) == 1:
        which = optional(" of these", when=Leg.UNKNOWN not in legs)
        return f"all {rows[0].kernels}{which} GEMMs ran in {rows[0].precision.upper()}"
    measure = rank.measure.name
    parts = [
        f"{row.share:.1%} of their {measure} in {row.precision.upper()}" for row in rows
    ]
    return f"these GEMMs spent {', '.join(parts)}"


def _request_of(legs: Mapping[Leg, frozenset[str]]) -> str:
    """Say what was requested for each leg, or once for all."""
    formats = {
        leg: " or ".join(map(format_name, sorted(one))) for leg, one in legs.items()
    }
    if len(legs) == len(LEGS) and len(set(formats.values())) == 1:
        return f"{formats[Leg.FPROP]} was requested"
    said = (f"{leg.value} in {text}" for leg, text in formats.items())
    return f"the run requested {', '.join(said)}"


def recipe_mismatch(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """A scaling in the kernels that is not the one of the modules' recipe, or the log's."""
    known = {"tensorwise", "rowwise"}
    configured = {configured_scaling(module).split(",")[0] for module in rank.linears}
    configured = configured & known
    claimed = {recipe.split("_")[0] for recipe in requested.recipes} & known
    # Without fast accumulation torchao scales by row after the product, which has unit scales.
    forward = [
        row
        for row in rank.trace.gemms
        if row.leg is Leg.FPROP and row.kind.op.dims and row.scaling is not None
    ]
    rows = forward if configured else rank.trace.gemms
    seen: Counter[str] = Counter()
    for row in rows:
        if row.scaling is not None:
            seen[row.scaling.value] += row.amount
    said = configured or claimed
    is_other = len(said) == 1 and seen and said.isdisjoint(seen)
    yield from told(
        "recipe-mismatch",
        optional("configured", when=configured),
        when=is_other,
        claimed=" ".join(said),
        seen=max(seen, key=seen.__getitem__, default=""),
    )


def all_gather_not_fp8(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """An FP8 all-gather that was requested, and that the bytes moved refute."""
    collectives = rank.trace.collectives
    logged = [f"log line {claim.line}" for claim in requested.said if claim.all_gather]
    weight_classes = {module.weight_class for module in requested.converted}
    travels = weight_classes & _TRAVELS_IN_FP8 and shards_gradients(collectives)
    by_class = optional("the class of the weights", when=travels)
    who = next(iter(logged), by_class)
    gathers = weight_gathers(collectives)
    moved = gathers.eight_bit_bytes + gathers.wider_bytes
    # Bytes that may be anything are taken for what was requested.
    is_refuted = moved and gathers.fp8 is False
    yield from told(
        "all-gather-not-fp8",
        optional("logged", when=logged),
        when=who and is_refuted,
        request=who,
        mb=moved / 1e6,
    )


# ---- gradients in E5M2 under MX scales


def mxfp8_e5m2_gradients(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """MXFP8 with gradients in E5M2: by kernels, module list or recipe."""
    mx = [row for row in rank.trace.gemms if row.precision is Precision.MXFP8]
    e5m2 = calls_of(row for row in mx if has_gradient(row.kind))
    # The module list counts where no kernel of the backward pass says what it multiplied.
    backward = [row for row in mx if row.leg is not Leg.FPROP]
    known = (row.kind.classification for row in backward)
    silent = bool(backward) and all(None in (found.a, found.b) for found in known)
    wide = [module for module in rank.modules if module.gradients == "e5m2"]
    cast = names_of(module for module in wide if module.format_of("dgrad") == "mxfp8")
    layers = cast if silent else []
    recipes = {(recipe.name, recipe.backward) for recipe in recipes_of(rank)}
    is_configured = ("MXFP8BlockScaling", "e5m2") in recipes
    multiplied = f"{counted(e5m2, 'MXFP8 GEMM')} multiplied gradients in E5M2"
    yield from told(
        "mxfp8-e5m2-gradients",
        when=e5m2 or layers or is_configured,
        what=optional(multiplied, when=e5m2) or "gradients are cast to MXFP8 in E5M2",
        layers=layers,
    )

"""Findings on number formats, scalings and collectives: others than the run asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeAlias

from fp8verify.analysis.gemms import GemmRow, gemm_totals
from fp8verify.analysis.gpus import multiplies
from fp8verify.analysis.purpose import has_gradient
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import configured_scaling, recipes_of
from fp8verify.analysis.timeline import shards_gradients, weight_gathers
from fp8verify.capture.schema import ModuleRecord, RecipeRecord
from fp8verify.logs.statements import HIGH_PRECISION
from fp8verify.model.kernels import PrecisionRow
from fp8verify.model.verdict import Finding
from fp8verify.terms import LEGS, Leg, Precision, Scaling
from fp8verify.text import counted
from fp8verify.thresholds import HALF, NEGLIGIBLE
from fp8verify.verdict.clauses import optional
from fp8verify.verdict.expected import Requested, format_name, formats_of_claims
from fp8verify.verdict.findings_table import told
from fp8verify.verdict.selection import calls_of, names_of

# The formats that are requested for a leg.
_Formats: TypeAlias = frozenset[str]

_FOUR_BITS: _Formats = frozenset({"nvfp4", "mxfp4", "fp4"})
_FP8: _Formats = frozenset(x.value for x in Precision if x.is_fp8)
_FP4: _Formats = frozenset(x.value for x in Precision if x.is_fp4)
# Scalings that module lists and logs name.
_SCALINGS = frozenset({Scaling.TENSORWISE.value, Scaling.ROWWISE.value})
# What enable_fsdp_float8_all_gather=True wraps weights in: torchao/float8/fsdp_utils.py.
_TRAVELS_IN_FP8 = frozenset(
    {
        "WeightWithDynamicFloat8CastTensor",
        "WeightWithDelayedFloat8CastTensor",
        "WeightWithStaticFloat8CastTensor",
    }
)


# ---- formats of legs


def other_than_requested(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """Legs requested in FP4 that ran in FP8, and legs in fewer bits than any format requested.

    Libraries fall back from FP4 to FP8 without a word. Legs in high precision are `leg-not-fp8` and
    `layer-not-fp8`: recipes leave layers there on purpose.
    """
    logged = formats_of_claims(requested.claims)
    if _fell_back_from_fp4(rank, logged):
        # Modules, if there are any, show what the library fell back to.
        yield from _higher(rank, logged, tuple(Leg))
        return
    higher = {}
    lower = {}
    for leg, formats in requested.formats.items():
        in_fp8 = _share(rank, leg, _FP8)
        if formats <= _FOUR_BITS and in_fp8 > NEGLIGIBLE:
            higher[leg] = formats
        fewer_bits = _below(formats, rank)
        if _share(rank, leg, fewer_bits) > HALF:
            lower[leg] = formats
    yield from _higher(rank, higher, higher)
    yield from told(
        "lower-than-promised",
        when=lower,
        request=_request_of(lower),
        ran=_ran(rank, lower),
    )


def _fell_back_from_fp4(rank: RankEvidence, logged: Mapping[Leg, _Formats]) -> bool:
    """Whether a rank ran low precision and no FP4, where the log claims nothing else."""
    are_four_bits = all(map(_FOUR_BITS.issuperset, logged.values()))
    is_asked = bool(logged) and are_four_bits
    may_have_run = any(map(_may_be_fp4, rank.trace.gemms))
    return rank.ran_low and is_asked and not may_have_run


def _may_be_fp4(row: GemmRow) -> bool:
    return row.precision.is_fp4 or row.precision is Precision.BELOW16


def _higher(
    rank: RankEvidence,
    formats: Mapping[Leg, _Formats],
    legs: Container[Leg],
) -> Iterator[Finding]:
    """Say that FP4 was requested, if it was, and FP8 ran; a GPU without FP4 units is why."""
    gpu = rank.trace.gpu
    capability = rank.trace.compute_capability
    has_units = multiplies(gpu, capability, Precision.FP4)
    return told(
        "higher-than-promised",
        optional("no-units", when=has_units is False),
        when=formats,
        request=_request_of(formats),
        gpu=gpu,
        ran=_ran(rank, legs),
    )


def _below(formats: _Formats, rank: RankEvidence) -> _Formats:
    """Return the classes of fewer bits than any of the formats."""
    if formats & _FOUR_BITS:
        return frozenset()
    # Modules of unknown classes may run any leg in FP8.
    all_known = all(module.state != "unknown" for module in rank.modules)
    if formats == {HIGH_PRECISION} and all_known:
        return _FP8 | _FP4
    return _FP4


def _share(rank: RankEvidence, leg: Leg, precisions: Container[str]) -> float:
    """Return the share of some precision classes in the GEMM time of a leg."""
    share = 0.0
    for row in _ran_in(rank, [leg]):
        if row.precision in precisions:
            share += row.share
    return share


def _ran_in(rank: RankEvidence, legs: Container[Leg]) -> list[PrecisionRow]:
    of_legs = (row for row in rank.trace.gemms if row.leg in legs)
    return gemm_totals(of_legs).rows


def _ran(rank: RankEvidence, legs: Container[Leg]) -> str:
    """Say in which formats the GEMMs of some legs ran."""
    rows = _ran_in(rank, legs)
    if len(rows) == 1:
        (row,) = rows
        which = optional(" of these", when=Leg.UNKNOWN not in legs)
        return f"all {row.kernels}{which} GEMMs ran in {row.precision.upper()}"
    measure = rank.measure.name
    parts = []
    for row in rows:
        precision = row.precision.upper()
        parts.append(f"{row.share:.1%} of their {measure} in {precision}")
    return f"these GEMMs spent {', '.join(parts)}"


def _request_of(legs: Mapping[Leg, _Formats]) -> str:
    """Say what was requested for each leg, or once for all."""
    are_all = len(legs) == len(LEGS)
    kinds = set(legs.values())
    if are_all and len(kinds) == 1:
        names = _name_formats(legs[Leg.FPROP])
        return f"{names} was requested"
    by_leg = []
    for leg, formats in legs.items():
        names = _name_formats(formats)
        by_leg.append(f"{leg.value} in {names}")
    return f"the run requested {', '.join(by_leg)}"


def _name_formats(formats: _Formats) -> str:
    names = map(format_name, sorted(formats))
    return " or ".join(names)


# ---- scalings


def recipe_mismatch(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """A scaling in the kernels that is not the one of the modules' recipe, or the log's."""
    configured: set[str] = set()
    for module in rank.linears:
        scaling, _, _ = configured_scaling(module).partition(",")
        configured.add(scaling)
    logged: set[str] = set()
    for recipe in requested.recipes:
        scaling, _, _ = recipe.partition("_")
        logged.add(scaling)
    configured &= _SCALINGS
    stated = configured or (logged & _SCALINGS)
    rows: Iterable[GemmRow] = rank.trace.gemms
    if configured:
        # Without fast accumulation torchao scales by row after the product, which has unit scales.
        rows = filter(_is_sized_forward, rows)
    seen: Counter[str] = Counter()
    for row in rows:
        if row.scaling is not None:
            seen[row.scaling.value] += row.amount
    most = max(seen, key=seen.__getitem__, default="")
    is_one = len(stated) == 1
    is_other = is_one and seen and stated.isdisjoint(seen)
    yield from told(
        "recipe-mismatch",
        optional("configured", when=configured),
        when=is_other,
        claimed=" ".join(stated),
        seen=most,
    )


def _is_sized_forward(row: GemmRow) -> bool:
    return row.leg is Leg.FPROP and bool(row.kind.op.dims)


# ---- collectives


def all_gather_not_fp8(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """An FP8 all-gather that was requested, and that the bytes moved refute."""
    collectives = rank.trace.collectives
    logged = [f"log line {claim.line}" for claim in requested.said if claim.all_gather]
    weight_classes = {module.weight_class for module in requested.converted}
    are_wrapped = not weight_classes.isdisjoint(_TRAVELS_IN_FP8)
    travels = are_wrapped and shards_gradients(collectives)
    by_class = optional("the class of the weights", when=travels)
    requester = next(iter(logged), by_class)
    gathers = weight_gathers(collectives)
    moved = gathers.eight_bit_bytes + gathers.wider_bytes
    # Bytes that may be anything are taken for what was requested.
    is_refuted = moved and gathers.fp8 is False
    yield from told(
        "all-gather-not-fp8",
        optional("logged", when=logged),
        when=requester and is_refuted,
        request=requester,
        mb=moved / 1e6,
    )


# ---- gradients in E5M2 under MX scales


def mxfp8_e5m2_gradients(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """MXFP8 with gradients in E5M2: by kernels, module list or recipe."""
    mx = list(filter(_is_mxfp8, rank.trace.gemms))
    with_gradient = [row for row in mx if has_gradient(row.kind)]
    e5m2 = calls_of(with_gradient)
    layers = []
    if _hides_gradients(mx):
        casting = filter(_casts_gradients_to_e5m2, rank.modules)
        layers = names_of(casting)
    is_configured = any(map(_is_mx_in_e5m2, recipes_of(rank)))
    what = "gradients are cast to MXFP8 in E5M2"
    if e5m2:
        what = f"{counted(e5m2, 'MXFP8 GEMM')} multiplied gradients in E5M2"
    yield from told(
        "mxfp8-e5m2-gradients",
        when=e5m2 or layers or is_configured,
        what=what,
        layers=layers,
    )


def _is_mx_in_e5m2(recipe: RecipeRecord) -> bool:
    is_mx = recipe.name == "MXFP8BlockScaling"
    return is_mx and recipe.backward == "e5m2"


def _is_mxfp8(row: GemmRow) -> bool:
    return row.precision is Precision.MXFP8


def _hides_gradients(rows: Iterable[GemmRow]) -> bool:
    """Whether backward passes ran, and no kernel of them says what it multiplied."""
    backward = [row for row in rows if row.leg is not Leg.FPROP]
    hide_operands = all(map(_hides_an_operand, backward))
    return bool(backward) and hide_operands


def _hides_an_operand(row: GemmRow) -> bool:
    kernel = row.kind.classification
    return kernel.a is None or kernel.b is None


def _casts_gradients_to_e5m2(module: ModuleRecord) -> bool:
    return module.gradients == "e5m2" and module.format_of("dgrad") == "mxfp8"

"""Findings on GEMM passes and number formats: others than the run promised, or than the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

from fp8verify.analysis.communication import shards_gradients, weight_gathers
from fp8verify.analysis.purpose import has_gradient
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import recipes_of, recomputed_high
from fp8verify.report.model.parts import Finding
from fp8verify.terms import LEGS, Leg, Precision
from fp8verify.text import counted, listed, shorten
from fp8verify.thresholds import HALF, NEGLIGIBLE, SHOWN
from fp8verify.verdict.expected import HIGH_PRECISION, TRAVELS_IN_FP8, Promises, format_name
from fp8verify.verdict.findings_table import finding

_FOUR_BITS = frozenset({"nvfp4", "mxfp4", "fp4"})
_FP8 = frozenset(precision for precision in Precision if precision.is_fp8)
_FP4 = frozenset(precision for precision in Precision if precision.is_fp4)


# ---- forward passes that were recomputed otherwise


def recomputed_outside_fp8(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Layers that hooks of `run --numerics` saw recomputed in high precision."""
    layers = recomputed_high(rank)
    if layers:
        named = listed(shorten(layers, layers), SHOWN)
        yield finding("recompute-not-fp8", ran=named, layers=layers)


# ---- other formats than promised


def other_than_promised(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """Legs promised in FP4 that ran in FP8, and legs in fewer bits than anything promised for them.

    Libraries fall back from FP4 to FP8 without a word. Legs in high precision are `leg-not-fp8` and
    `layer-not-fp8`: recipes leave layers there on purpose.
    """
    higher, lower = {}, {}
    logged = {Leg(name): formats for name, formats in promises.logged.items()}
    ran_fp4 = any(row.precision.is_fp4 for row in rank.trace.gemms)
    if rank.ran_low and not ran_fp4 and logged and all(f <= _FOUR_BITS for f in logged.values()):
        # Modules, if there are any, show what the library fell back to.
        ran = _ran(rank, tuple(Leg))
        yield finding("higher-than-promised", promised=_promise_of(logged), ran=ran)
        return
    for leg in LEGS:
        promised = promises.formats.get(leg.value)
        times = _times(rank, (leg,))
        if not promised or not times.total():
            continue
        if promised <= _FOUR_BITS and _share(times, _FP8) > NEGLIGIBLE:
            higher[leg] = promised
        if _share(times, _below(promised, rank)) > HALF:
            lower[leg] = promised
    if higher:
        yield finding("higher-than-promised", promised=_promise_of(higher), ran=_ran(rank, higher))
    if lower:
        yield finding("lower-than-promised", promised=_promise_of(lower), ran=_ran(rank, lower))


def _below(formats: frozenset[str], rank: RankEvidence) -> frozenset[Precision]:
    """Return the classes of fewer bits than any of the formats."""
    if formats & _FOUR_BITS:
        return frozenset()
    # Modules of unknown classes may run any leg in FP8.
    all_known = all(module.state != "unknown" for module in rank.modules)
    return _FP8 | _FP4 if formats == {HIGH_PRECISION} and all_known else _FP4


def _times(rank: RankEvidence, legs: Container[Leg | None]) -> Counter[Precision]:
    """Return the GEMM time of some legs by precision class."""
    times: Counter[Precision] = Counter()
    for row in rank.trace.gemms:
        if row.leg in legs:
            times[row.precision] += row.time_ns
    return times


def _share(times: Counter[Precision], precisions: Iterable[Precision]) -> float:
    return sum(times[one] for one in precisions) / (times.total() or 1)


def _ran(rank: RankEvidence, legs: Container[Leg | None]) -> str:
    times = _times(rank, legs)
    if len(times) == 1:
        count = sum(row.calls for row in rank.trace.gemms if row.leg in legs)
        which = "" if Leg.UNKNOWN in legs else " of these"
        return f"all {count}{which} GEMMs ran in {next(iter(times)).value.upper()}"
    parts = [
        f"{_share(times, (name,)):.1%} of their {rank.measure.name} in {name.value.upper()}"
        for name, _ in times.most_common()
    ]
    return f"these GEMMs spent {', '.join(parts)}"


def _promise_of(legs: Mapping[Leg, frozenset[str]]) -> str:
    """Say what was promised for each pass, or once for all."""
    formats = {leg: " or ".join(map(format_name, sorted(one))) for leg, one in legs.items()}
    if len(legs) == len(LEGS) and len(set(formats.values())) == 1:
        return f"{formats[Leg.FPROP]} was requested"
    said = (f"{leg.value} in {text}" for leg, text in formats.items())
    return f"the run requested {', '.join(said)}"


def recipe_mismatch(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """A scaling in the kernels that is not the one the log claims."""
    claimed = {recipe.split("_")[0] for recipe in promises.recipes} & {"tensorwise", "rowwise"}
    seen: Counter[str] = Counter()
    for row in rank.trace.gemms:
        if row.scaling is not None:
            seen[row.scaling.value] += row.time_ns
    if len(claimed) == 1 and seen and not claimed & set(seen):
        yield finding("recipe-mismatch", claimed=claimed.pop(), seen=seen.most_common(1)[0][0])


def all_gather_not_fp8(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """An FP8 all-gather that was promised, and that the bytes moved refute."""
    collectives, logged = rank.trace.collectives, promises.all_gather
    weight_classes = {module.weight_class for module in promises.converted}
    if logged is not None:
        who = f"log line {logged.line}"
    elif weight_classes & TRAVELS_IN_FP8 and shards_gradients(collectives):
        who = "the class of the weights"
    else:
        return
    gathers = weight_gathers(collectives)
    moved = gathers.eight_bit_bytes + gathers.wider_bytes
    # Bytes that may be anything are taken for what was promised.
    if moved and gathers.fp8 is False:
        yield finding("all-gather-not-fp8", "logged" if logged else "", promise=who, mb=moved / 1e6)


# ---- gradients in E5M2 under MX scales


def mxfp8_e5m2_gradients(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """MXFP8 with gradients in E5M2: by kernels, module list or recipe."""
    mx = [row for row in rank.trace.gemms if row.precision is Precision.MXFP8]
    e5m2 = sum(row.calls for row in mx if has_gradient(row.kind))
    # The module list counts where no kernel of the backward pass says what it multiplied.
    backward = [row for row in mx if row.leg is not Leg.FPROP]
    known = (row.kind.classification for row in backward)
    silent = bool(backward) and all(None in (found.a, found.b) for found in known)
    layers = [
        module.fqn
        for module in rank.modules
        if silent and module.gradients == "e5m2" and module.format_of("dgrad") == "mxfp8"
    ]
    recipes = {(recipe.name, recipe.backward) for recipe in recipes_of(rank)}
    what = "gradients are cast to MXFP8 in E5M2"
    if e5m2:
        what = f"{counted(e5m2, 'MXFP8 GEMM')} multiplied gradients in E5M2"
    if e5m2 or layers or ("MXFP8BlockScaling", "e5m2") in recipes:
        yield finding("mxfp8-e5m2-gradients", what=what, layers=layers)

"""Findings on number formats: other ones than promised, gradients in E5M2, recomputation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.numerics import recomputed_high
from fp8verify.analysis.promises import HIGH_PRECISION, Promises, format_name
from fp8verify.analysis.rank import RankEvidence
from fp8verify.layer_names import shorten
from fp8verify.report.model import LEGS, Finding, Leg, Precision
from fp8verify.text import counted, listed
from fp8verify.verdict.findings_table import finding

# Of a leg's GEMM time in another format: less is a layer or two that were left out by design.
_MOST = 0.5
_ANY = 0.01
_SHOWN = 4
_FOUR_BITS = frozenset({"nvfp4", "mxfp4", "fp4"})


def lower_than_promised(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Legs that ran in fewer bits than anything promised for them."""
    legs = [
        (leg, formats)
        for leg, formats in _promised(promises)
        if _time_share(facts.rank, leg, _below(formats, facts.rank)) > _MOST
    ]
    if legs:
        yield finding("lower-than-promised", promised=_promise_of(legs), ran=_ran(facts.rank, legs))


def higher_than_promised(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Legs promised in FP4 that ran in FP8: libraries fall back without a word.

    What ran in high precision is told by `leg-not-fp8` and `layer-not-fp8`: recipes leave layers
    there on purpose.
    """
    legs = [
        (leg, formats)
        for leg, formats in _promised(promises)
        if formats <= _FOUR_BITS and _time_share(facts.rank, leg, _FP8) > _ANY
    ]
    if legs:
        yield finding(
            "higher-than-promised", promised=_promise_of(legs), ran=_ran(facts.rank, legs)
        )


def _promised(promises: Promises) -> Iterator[tuple[Leg, frozenset[str]]]:
    for leg in LEGS:
        formats = promises.formats.get(leg.value)
        if formats:
            yield leg, formats


_FP8 = frozenset(precision for precision in Precision if precision.is_fp8)
_FP4 = frozenset(precision for precision in Precision if precision.is_fp4)


def _below(formats: frozenset[str], rank: RankEvidence) -> frozenset[Precision]:
    """Return the classes of fewer bits than any of the formats."""
    if formats & _FOUR_BITS:
        return frozenset()
    # Modules of classes that nobody knows may run any leg in FP8.
    all_known = all(module.state != "unknown" for module in rank.modules)
    return _FP8 | _FP4 if formats == {HIGH_PRECISION} and all_known else _FP4


def _time_share(rank: RankEvidence, leg: Leg, precisions: frozenset[Precision]) -> float:
    """Return the share of a leg's GEMM time in some classes."""
    total = part = 0
    for row in rank.survey.gemms:
        if row.leg is leg:
            total += row.time_ns
            part += row.time_ns if row.precision in precisions else 0
    return part / total if total else 0.0


def _promise_of(legs: Sequence[tuple[Leg, frozenset[str]]]) -> str:
    """Say what was promised, leg by leg where it differs."""
    words: dict[str, list[str]] = defaultdict(list)
    for leg, formats in legs:
        words[" or ".join(sorted(map(_spoken, formats)))].append(leg.value)
    parts = [f"{name} was promised for {listed(of)}" for name, of in words.items()]
    return "; ".join(parts)


def _spoken(found: str) -> str:
    return "high precision" if found == HIGH_PRECISION else format_name(found)


def _ran(rank: RankEvidence, legs: Iterable[tuple[Leg, frozenset[str]]]) -> str:
    wanted = {leg for leg, _ in legs}
    times: dict[Precision, int] = defaultdict(int)
    for row in rank.survey.gemms:
        if row.leg in wanted:
            times[row.precision] += row.time_ns
    total = sum(times.values())
    longest = sorted(times.items(), key=lambda item: -item[1])
    parts = [f"{time_ns / total:.1%} in {name.value.upper()}" for name, time_ns in longest if total]
    return f"its GEMM time was {', '.join(parts)}"


def gradients_in_e5m2(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """MXFP8 GEMMs with gradients in E5M2, which trainings were seen to diverge with."""
    rank = facts.rank
    mx = [row for row in rank.survey.gemms if row.precision is Precision.MXFP8]
    said = _said_by_kernels(mx) or _said_by_recipe(rank, mx)
    if said is not None:
        yield finding("mxfp8-e5m2-gradients", what=said)


def _said_by_kernels(mx: Sequence[GemmRow]) -> str | None:
    count = sum(row.calls for row in mx if "e5m2" in _elements(row))
    gemms = counted(count, "MXFP8 GEMM")
    return f"{gemms} multiplied gradients in E5M2" if count else None


def _said_by_recipe(rank: RankEvidence, mx: Sequence[GemmRow]) -> str | None:
    """Believe the census where no kernel of the backward pass says what it multiplied."""
    modules = [m for m in rank.modules if m.gradients == "e5m2" and m.format_of("dgrad") == "mxfp8"]
    backward = [row for row in mx if row.leg is not Leg.FPROP]
    if not modules or not backward or any(None not in _elements(row) for row in backward):
        return None
    return f"the recipe of {counted(modules, 'MXFP8 module')} gives gradients in E5M2"


def _elements(row: GemmRow) -> tuple[str | None, str | None]:
    return row.kind.classification.a, row.kind.classification.b


def recompute_not_fp8(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Forward passes that ran in low precision, and in high precision when they were recomputed.

    Kernels show it in the window, hooks of `run --numerics` by layer: one finding has both.
    """
    rows, layers = _recomputed_rows(facts.rank), recomputed_high(facts.rank)
    if not (rows or layers):
        return
    said = [_recomputed_by_kernels(rows, facts.rank)] if rows else []
    if layers:
        said.append(
            f"{listed(shorten(layers, layers), _SHOWN)} ran in FP8 and, when activation "
            "checkpointing computed it again, in high precision"
        )
    yield finding(
        "recompute-not-fp8", "kernels" if rows else "", ran="; ".join(said), layers=layers
    )


def _recomputed_rows(rank: RankEvidence) -> list[GemmRow]:
    forward = [row for row in rank.survey.gemms if row.leg is Leg.FPROP and row.shape]
    low = {row.shape for row in forward if row.precision.is_low}
    low -= {row.shape for row in forward if not row.precision.is_low}
    return [
        row
        for row in rank.survey.gemms
        if row.leg is Leg.RECOMPUTE
        and row.shape in low
        and not row.precision.is_low
        and row.precision is not Precision.UNKNOWN
    ]


def _recomputed_by_kernels(rows: Sequence[GemmRow], rank: RankEvidence) -> str:
    time_ns = sum(row.time_ns for row in rows)
    return (
        f"{counted(sum(row.calls for row in rows), 'recomputed forward GEMM')} ran in "
        f"{rows[0].precision.value.upper()} ({time_ns / 1e6:.1f} ms), and in "
        f"{rank.gemm.name} when they ran first"
    )

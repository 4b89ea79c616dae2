"""Findings on legs: fprop, dgrad or wgrad in high precision where the other legs are in FP8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.populations import LegReading, read_legs
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.layer_names import patterns
from fp8verify.report.model import Finding, Leg
from fp8verify.text import abridged
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.policy import USUAL_SHARE

_LAYERS = 8


def short_legs(rank: RankEvidence, promises: Promises) -> list[LegReading]:
    """Return the legs that fall short even if all that is unknown is FP8."""
    found = read_legs(rank.survey, promises.leaves_high)
    return [reading for reading in found if reading.found.accused]


def legs_not_fp8(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """A leg in high precision, all of it or most; by the recipe's design it is information."""
    rank = facts.rank
    if not rank.ran_low:
        return
    for short in short_legs(rank, promises):
        by_recipe, layers = promises.leaves_high(short.leg.value), _layers(rank, short.leg)
        yield finding(
            "leg-not-fp8",
            "by-recipe" if by_recipe else "",
            ran=_said(short),
            layers_named=_listed(layers),
            layers=layers,
        )


def legs_undecided(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """A leg that falls short if what is unknown of it is in high precision, or that is not seen."""
    rank = facts.rank
    ran = rank.ran_low and rank.backward  # `no-backward` tells of windows without
    if not ran or (rank.linear.low_precision_share_of_time or 0) < USUAL_SHARE:
        return
    readings = [
        reading
        for reading in read_legs(rank.survey, promises.leaves_high)
        if not promises.leaves_high(reading.leg.value)
    ]
    if any(reading.found.accused for reading in readings):
        return
    unseen = [reading for reading in readings if reading.missing and _is_needed(rank, reading.leg)]
    doubted = [reading for reading in readings if not reading.found.acquitted]
    if unseen:
        yield finding("leg-unknown", "unseen", leg=unseen[0].leg.value)
    elif doubted:
        yield finding(
            "leg-unknown",
            leg=doubted[0].leg.value,
            precision=rank.main_high.value.upper(),
        )


def _is_needed(rank: RankEvidence, leg: Leg) -> bool:
    """Whether training runs the leg: frozen layers have no wgrad, a first one no dgrad."""
    linears = [module for module in rank.modules if module.kind == "linear"]
    if leg is Leg.WGRAD:
        return not linears or not all(module.frozen for module in linears)
    passes = {(row.step, row.number) for row in rank.survey.linear}
    calls = sum(row.calls for row in rank.survey.linear if row.leg is Leg.FPROP)
    return leg is Leg.DGRAD and calls > len(passes)


def _said(short: LegReading) -> str:
    high = [row for row in short.rows if not row.precision.is_low]
    main = max(high, key=lambda row: row.time_ns).precision.value.upper()
    name, time_ns = short.leg.value, sum(row.time_ns for row in high)
    if len(high) == len(short.rows):
        return f"every {name} GEMM ran in {main} ({time_ns / 1e6:.1f} ms)"
    count, of = sum(row.calls for row in high), sum(row.calls for row in short.rows)
    return (
        f"{count} of {of} {name} GEMMs ran in {main} ({time_ns / 1e6:.1f} ms): "
        f"{short.found.part.share:.1%} of {name} is in FP8, {short.found.others.share:.1%} of the "
        "other passes"
    )


def _layers(rank: RankEvidence, leg: Leg) -> tuple[str, ...]:
    """Name the layers that ran a leg in high precision, where they have names."""
    gemms = rank.named.gemms if rank.named is not None else ()
    high = (found for found in gemms if found.leg is leg and not found.precision.is_low)
    return tuple(dict.fromkeys(found.layer for found in high))


def _listed(layers: Sequence[str]) -> str:
    return f": {abridged(patterns(layers), _LAYERS)}" if layers else ""

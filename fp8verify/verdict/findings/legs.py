"""Findings on legs: fprop, dgrad or wgrad in high precision beside others in FP8."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.layer_names import patterns
from fp8verify.report.model import LEGS, Finding, Leg, Precision, Role
from fp8verify.text import abridged
from fp8verify.verdict.findings.shares import HALF, Part, Weigh, amounts_of
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.policy import USUAL_SHARE

_LAYERS = 8


class ShortLeg(NamedTuple):
    """A leg whose share of low precision is less than half of that of the other legs."""

    leg: Leg
    rows: list[GemmRow]
    part: Part
    others: Part


def short_legs(rank: RankEvidence, promises: Promises) -> list[ShortLeg]:
    """Return the legs that fall short, by FLOPs where all are known, else by time.

    GEMMs of the backward pass that may be dgrad or wgrad count for a leg as far as it lacks them
    beside the forward pass, and all of them for the others. A leg that the recipe leaves in high
    precision is no measure for the others.
    """
    rows = [row for row in rank.survey.linear if row.kind.classification.role is Role.GEMM]
    weigh = amounts_of(rank.linear)
    by_leg: Mapping[Leg, list[GemmRow]] = defaultdict(list)
    for row in rows:
        by_leg[row.leg].append(row)
    found = (_judge(leg, by_leg, weigh, promises) for leg in LEGS)
    return [short for short in found if short is not None]


def _judge(
    leg: Leg, by_leg: Mapping[Leg, list[GemmRow]], weigh: Weigh, promises: Promises
) -> ShortLeg | None:
    rows = by_leg[leg]
    known = Part.of(_known(rows), weigh)
    others = Part.sum(
        Part.of(_known(members), weigh)
        for other, members in by_leg.items()
        if other is not leg and not promises.leaves_high(other.value)
    )
    unknown = sum(map(weigh, rows)) - known.total
    extra = unknown + _may_be(leg, by_leg, weigh)
    best = Part(known.low + extra, known.total + extra)
    if not known.total or best.share >= HALF * others.share:
        return None
    return ShortLeg(leg, rows, known, others)


def _known(rows: Sequence[GemmRow]) -> Iterator[GemmRow]:
    return (row for row in rows if row.precision is not Precision.UNKNOWN)


def _may_be(leg: Leg, by_leg: Mapping[Leg, list[GemmRow]], weigh: Weigh) -> float:
    """Amount of low precision in GEMMs of no certain leg that may be of this one."""
    anywhere = Part.of(by_leg[Leg.UNKNOWN], weigh).low
    if leg is Leg.FPROP:
        return anywhere
    backward = Part.of(by_leg[Leg.BACKWARD], weigh).low
    wanted, there = (sum(row.calls for row in by_leg[of]) for of in (Leg.FPROP, leg))
    if not wanted:
        return anywhere + backward
    vague = sum(row.calls for row in by_leg[Leg.BACKWARD])
    missing = max(0, wanted - there)
    return anywhere + backward * min(1.0, missing / vague if vague else 0.0)


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
    """A backward pass with far more in high precision than the forward pass, in unknown legs.

    Without shapes nothing tells dgrad from wgrad: all of it may be one leg, or be spread over both.
    """
    rank = facts.rank
    legs = backward_in_doubt(rank, promises) if rank.ran_low else None
    if legs is None or (rank.linear.low_precision_share_of_time or 0) < USUAL_SHARE:
        return
    forward, backward = legs
    yield finding(
        "leg-unknown",
        forward=forward.share,
        backward=backward.share,
        precision=rank.main_high.value.upper(),
    )


def backward_in_doubt(rank: RankEvidence, promises: Promises) -> tuple[Part, Part] | None:
    """Return forward and backward pass where a leg may fall short that nothing tells; else None.

    What the forward pass leaves in high precision are layers, whose gradients explain as large a
    part of the backward pass.
    """
    rows = [row for row in _known(rank.survey.linear) if row.kind.classification.role is Role.GEMM]
    if {row.leg for row in rows} != {Leg.FPROP, Leg.BACKWARD}:
        return None
    if promises.leaves_high("dgrad") or promises.leaves_high("wgrad"):
        return None
    weigh = amounts_of(rank.linear)
    forward = Part.of((row for row in rows if row.leg is Leg.FPROP), weigh)
    backward = Part.of((row for row in rows if row.leg is Leg.BACKWARD), weigh)
    leg = backward.total / 2
    least = max(0.0, forward.share * leg - 2 * leg * (forward.share - backward.share))
    others = Part(forward.low + backward.low - least, forward.total + leg)
    return (forward, backward) if least < HALF * others.share * leg else None


def _said(short: ShortLeg) -> str:
    high = [row for row in short.rows if not row.precision.is_low]
    main = max(high, key=lambda row: row.time_ns).precision.value.upper()
    name, time_ns = short.leg.value, sum(row.time_ns for row in high)
    if len(high) == len(short.rows):
        return f"every {name} GEMM ran in {main} ({time_ns / 1e6:.1f} ms)"
    count, of = sum(row.calls for row in high), sum(row.calls for row in short.rows)
    return (
        f"{count} of {of} {name} GEMMs ran in {main} ({time_ns / 1e6:.1f} ms): "
        f"{short.part.share:.1%} of {name} is in FP8, {short.others.share:.1%} of the other legs"
    )


def _layers(rank: RankEvidence, leg: Leg) -> tuple[str, ...]:
    """Name the layers that ran a leg in high precision, where they have names."""
    gemms = rank.named.gemms if rank.named is not None else ()
    high = (found for found in gemms if found.leg is leg and not found.precision.is_low)
    return tuple(dict.fromkeys(found.layer for found in high))


def _listed(layers: Sequence[str]) -> str:
    return f": {abridged(patterns(layers), _LAYERS)}" if layers else ""

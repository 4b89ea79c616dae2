"""Findings on collectives: weights that did not travel in FP8, scales reduced one by one."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.communication import shards_gradients, weight_gathers
from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model import Finding
from fp8verify.verdict.findings_table import finding

# A loss, a gradient norm and a few metrics are scalars as well.
_USUAL_SCALARS_A_STEP = 8


def all_gather_not_fp8(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """An FP8 all-gather that was promised, and that the bytes moved refute."""
    rank = facts.rank
    who, gathers = _promise(rank, promises), weight_gathers(rank.collectives)
    # Bytes that may be anything are taken for what was promised.
    moved = gathers.eight_bit_bytes + gathers.wider_bytes
    if who is None or not moved or gathers.fp8 is not False:
        return
    yield finding(
        "all-gather-not-fp8",
        "logged" if promises.all_gather else "",
        promise=who,
        mb=moved / 1e6,
    )


def _promise(rank: RankEvidence, promises: Promises) -> str | None:
    """Who promises it: the log, or the weights' class where the model is sharded at all."""
    if promises.all_gather is not None:
        return f"log line {promises.all_gather.line}"
    if promises.weights_travel_in_fp8 and shards_gradients(rank.collectives):
        return "the class of the weights"
    return None


def scalar_all_reduces(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """All-reduces of one element each, as torchao makes for the amax of every sharded weight."""
    rank = facts.rank
    if not rank.ran_low:
        return
    reduces = [t for t in rank.collectives if t.is_scalar and "reduce" in t.name.lower()]
    calls = sum(total.calls for total in reduces)
    if calls < _USUAL_SCALARS_A_STEP * max(1, len(rank.steps)):
        return
    time_ns = sum(total.time_ns for total in reduces)
    yield finding(
        "scalar-all-reduces",
        calls=calls,
        ms=time_ns / 1e6,
        share=time_ns / rank.timeline.busy,
    )

"""The finding on layers whose values dwarf others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import by_peers
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import TensorRecord
from fp8verify.report.model import Finding
from fp8verify.text import listed
from fp8verify.verdict.findings.numerics.remedies import what_if
from fp8verify.verdict.findings.numerics.tensors import (
    ONE_SCALE,
    and_more,
    flushed_gradients,
    layers_of,
    sound_rows,
)
from fp8verify.verdict.findings_table import finding

OUTLIER = 100.0  # ours; times the median of the same projection in other layers
LEAST_PEERS = 3
WIDE_E4M3 = 2.0**13  # ours; at amax / rms above it a typical value of E4M3 is subnormal
_TENSORS = ("weight", "input", "grad_output")


def outlier_layer(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Layers whose values dwarf those of their peers, or of which one value dwarfs the rest.

    A weight that is too large makes its output and gradients large too: the cause is accused, what
    follows from it is only mentioned.
    """
    by_tensor = {tensor: list(_outliers(sound_rows(facts), tensor)) for tensor in _TENSORS}
    if flushed_gradients(facts):
        by_tensor["grad_output"] = []  # what flushes the rest is that finding's
    cause = next((tensor for tensor in _TENSORS if by_tensor[tensor]), None)
    if cause is None:
        return
    found = by_tensor[cause]
    worst, why = max(found, key=lambda pair: pair[0].amax or 0.0)
    rows = [row for row, _ in found]
    others = [f"{r.tensor} of {r.layer}" for t in _TENSORS if t != cause for r, _ in by_tensor[t]]
    yield finding(
        "outlier-layer",
        tensor=cause,
        layer=worst.layer,
        amax=worst.amax,
        why=why,
        others=and_more(rows, facts),
        also=f"; also the {listed(others, 3)}" if others else "",
        what_if=what_if(worst),
        layers=layers_of(rows),
    )


def _outliers(rows: Sequence[TensorRecord], tensor: str) -> Iterator[tuple[TensorRecord, str]]:
    """Yield the rows of one kind of tensor that dwarf others, and by how much each does."""
    for peers in by_peers(rows, tensor).values():
        for row in peers:
            others = [peer.amax for peer in peers if peer is not row and peer.amax]
            usual = median(others) if len(others) >= LEAST_PEERS else 0.0
            amax, rms = row.amax or 0.0, row.rms or 1.0
            if usual and amax >= OUTLIER * usual:
                times = f"{amax / usual:.3g} times the median of its peers"
                yield row, f"{times} (from {OUTLIER:.0f} on, ours)"
            elif _is_wide(row):
                yield row, f"{amax / rms:.3g} times its rms (from {WIDE_E4M3:.0f} on, ours)"


def _is_wide(row: TensorRecord) -> bool:
    narrow = row.scaling in ONE_SCALE and row.format == "e4m3"
    return bool(narrow and row.amax and row.rms and row.amax / row.rms >= WIDE_E4M3)

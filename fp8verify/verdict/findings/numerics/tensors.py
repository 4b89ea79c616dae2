"""The measured tensors of a rank: what counts as bad in one, and how messages name several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.capture.numerics import TensorRecord
from fp8verify.layer_names import shorten
from fp8verify.text import listed

GRADIENT_FLUSHED = 0.10  # ours; a sick layer of BioNeMo's summary_fl4.csv reached 0.092
UNDERFLOW = 0.01  # BioNeMo, analyze_activation_underflows.py: marks > 1.0 %
DEAD = 0.999
SQNR_DB = 20.0  # ours; torchao/test/float8 accepts casts from 25 dB, whole blocks from 20
SQNR_MX_DB = 22.0  # ours; torchao's tests of MXFP8 accept from 24
SATURATED = 1e-5  # FP8-LM, arXiv 2310.18313: lowers its scale from 0.001 % on
ONE_SCALE = ("tensorwise", "delayed")
# A message names no more layers or scales than these.
SHOWN = 4


def measured_rows(facts: RankFacts) -> Sequence[TensorRecord]:
    """Return the measured tensors of a rank, in the order of the step."""
    return facts.rank.numerics.rows if facts.rank.numerics is not None else ()


def sound_rows(facts: RankFacts) -> list[TensorRecord]:
    """Return the rows without NaN and infinity: with them no other figure means anything."""
    return [row for row in measured_rows(facts) if row.finite]


def flushed_share(row: TensorRecord) -> float:
    """Return the share of a tensor's values that the cast makes zero, 0 if not measured."""
    return row.flushed or 0.0


def flushed_gradients(facts: RankFacts) -> list[TensorRecord]:
    """Return the gradients of which the cast makes a good part zero."""
    return list(filter(is_flushed_gradient, sound_rows(facts)))


def is_flushed_gradient(row: TensorRecord) -> bool:
    """Whether a tensor is a gradient of which the cast makes a good part zero."""
    return row.tensor == "grad_output" and flushed_share(row) >= GRADIENT_FLUSHED


def is_clipped(row: TensorRecord) -> bool:
    """Whether the cast clips enough of a tensor to be told; bytes do not tell it from rounding."""
    return row.finite and row.source != "bytes" and (row.saturated or 0.0) >= SATURATED


def is_noisy(row: TensorRecord) -> bool:
    """Whether the cast leaves too little of a tensor."""
    return row.sqnr_db is not None and row.sqnr_db < least_sqnr(row)


def least_sqnr(row: TensorRecord) -> float:
    """Return the dB over the noise of its cast that a tensor must keep."""
    return SQNR_MX_DB if row.scaling == "mxfp8" and row.format == "e4m3" else SQNR_DB


def layers_of(rows: Iterable[TensorRecord]) -> tuple[str, ...]:
    """Return the names of the layers of some tensors, each once."""
    return tuple(dict.fromkeys(row.layer for row in rows))


def and_more(rows: Sequence[TensorRecord], facts: RankFacts) -> str:
    """Say how many more layers there are, and which."""
    layers = layers_of(rows)
    if len(layers) < 2:
        return ""
    return f", the worst of {len(layers)} layers: {listed(_short_names(layers, facts), SHOWN)}"


def and_others(rows: Sequence[TensorRecord], facts: RankFacts, said: str) -> str:
    """Add the names of the layers after the first, if there are more."""
    others = _short_names(layers_of(rows), facts)[1:]
    return f"{said}: {listed(others, SHOWN)}" if others else ""


def _short_names(layers: Sequence[str], facts: RankFacts) -> list[str]:
    names = shorten(layers, (row.layer for row in measured_rows(facts)))
    return list(dict.fromkeys(names))

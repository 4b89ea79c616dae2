"""Findings on measured tensors, in every step that was measured.

Each rule says which tensors of one step it accuses and how bad each is; a finding names the worst
step and tensor, and the first step. Thresholds have their sources; those called "ours" lie well
outside what sound runs showed on an H200 (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import Step, by_peers, steps_of
from fp8verify.analysis.promises import Promises
from fp8verify.capture.numerics import TensorRecord
from fp8verify.layer_names import pattern, shorten
from fp8verify.report.model import Finding
from fp8verify.text import counted, listed
from fp8verify.verdict.findings.numerics.remedies import (
    DEAD,
    SATURATED,
    UNDERFLOW,
    flushed_share,
    is_noisy,
    least_sqnr,
    remedy,
    remedy_for_clipping,
    what_if,
)
from fp8verify.verdict.findings_table import finding

GRADIENT_FLUSHED = 0.10  # ours; a sick layer of BioNeMo's summary_fl4.csv reached 0.092
TOP_BLOCKS = 0.05  # ours, after arXiv 2506.20752: blocks whose values share the last bucket
ZERO_ROWS = 0.01  # ours
OUTLIER = 100.0  # ours; times the median of the same projection in other layers
LEAST_PEERS = 3
WIDE_E4M3 = 2.0**13  # ours; at amax / rms above it a typical value of E4M3 is subnormal
ONE_SCALE = ("tensorwise", "delayed")
SHOWN = 4  # layers or scales that a message names
_TENSORS = ("weight", "input", "grad_output")
_NOT_FINITE_HINTS = {
    "input": "Look at what feeds this layer: the batch, the layer before it, rows of padding that "
    "nothing has written (MoE), a norm of all-zero rows.",
    "weight": "The optimizer or the checkpoint put it there: look at the gradient norm and the "
    "steps before, at lr, and at gradient clipping.",
    "grad_output": "The forward pass is finite up to here: look at the loss, at what comes after "
    "this layer, and at the loss scale.",
}


class Seen(NamedTuple):
    """What a rule accuses over all measured steps.

    Attributes:
        step: the worst of them.
        accused: its accused tensors, in the order of the step.
        worst: the worst of these.
        rows: the accused of all steps, each tensor once.
        when: says in which of several steps.
    """

    step: Step
    accused: Sequence[TensorRecord]
    worst: TensorRecord
    rows: Sequence[TensorRecord]
    when: str
    facts: RankFacts

    def common(self) -> dict[str, Any]:
        """Return the facts that most sentences name."""
        layers = layers_of(self.rows)
        named = listed(_short_names(layers, self.step), SHOWN)
        return {
            "tensor": self.worst.tensor,
            "layer": self.worst.layer,
            "others": f", the worst of {len(layers)} layers: {named}" if len(layers) > 1 else "",
            "when": self.when,
            "layers": layers,
        }


class Rule(NamedTuple):
    """A rule on the tensors of one step.

    Attributes:
        accused: returns those that are accused.
        badness: says how bad one of them is.
        finding: makes the finding of the worst step.
    """

    accused: Callable[[Sequence[TensorRecord]], list[TensorRecord]]
    badness: Callable[[TensorRecord], float]
    finding: Callable[[Seen], Finding]


def measured_tensors(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Run all rules on all measured steps of a rank."""
    steps = steps_of(facts.rank.numerics)
    for rule in RULES:
        hits = [(step, rows) for step in steps if (rows := rule.accused(step.rows))]
        if hits:
            # Of equals the first step.
            step, accused = max(hits, key=lambda hit: max(map(rule.badness, hit[1])))
            every = [accused, *(rows for _, rows in hits)]
            by_tensor = {(row.layer, row.tensor): row for part in every for row in part}
            yield rule.finding(
                Seen(
                    step,
                    accused,
                    max(accused, key=rule.badness),
                    tuple(by_tensor.values()),
                    _when(len(steps), [step.number for step, _ in hits], step.number),
                    facts,
                )
            )


def _when(count: int, numbers: Sequence[int], worst: int) -> str:
    """Say in which of several measured steps something is found."""
    if count < 2:
        return ""
    also = f", worst in step {worst}" if worst != numbers[0] else ""
    return f"; in {len(numbers)} of {count} measured steps, first in step {numbers[0]}{also}"


def _not_finite(seen: Seen) -> Finding:
    first, after = seen.accused[0], seen.accused[1:]
    count = first.rows_not_finite
    kind = "NaN" if first.nan else "infinity" if first.inf else "values that are not finite"
    return finding(
        "nan-or-inf",
        tensor=first.tensor,
        layer=first.layer,
        kind="NaN and infinity" if first.nan and first.inf else kind,
        rows=f" in {counted(count, 'row')}" if count else "",
        step=seen.step.number,
        others=f", before {counted(after, 'other tensor')}" if after else "",
        when=seen.when,
        remedy=_NOT_FINITE_HINTS.get(first.tensor, ""),
        layers=(first.layer,),
    )


def _gradient_flushed(seen: Seen) -> Finding:
    """Accuse the first gradient in the order of the backward pass, if about as bad as the worst.

    What is wrong with a gradient is wrong with those that are computed from it.
    """
    first = seen.worst
    said = ", the worst, and so in {} more"  # a log of statistics is in no such order
    if first.source != "te-debug":
        least = flushed_share(seen.worst) / 2
        first = next(row for row in seen.accused if flushed_share(row) >= least)
        said = ", and so in {} after it in the backward pass"
    layers = layers_of([first, *seen.rows])
    others = listed(_short_names(layers, seen.step)[1:], SHOWN)
    return finding(
        "gradient-flushed",
        share=flushed_share(first),
        layer=first.layer,
        dead=_dead(first),
        others=f"{said.format(len(layers) - 1)}: {others}" if len(layers) > 1 else "",
        threshold=GRADIENT_FLUSHED,
        when=seen.when,
        remedy=remedy(first, seen.facts),
        layers=layers,
    )


def _dead(row: TensorRecord) -> str:
    return ": it is dead" if flushed_share(row) > DEAD else ""


def _outlier(seen: Seen) -> Finding:
    worst, amax = seen.worst, seen.worst.amax or 0.0
    others = [
        f"{row.tensor} of {row.layer}"
        for tensor, rows in _outliers(seen.step.rows).items()
        for row in rows
        if tensor != worst.tensor
    ]
    usual = _usual(worst, by_peers(_sound(seen.step.rows), worst.tensor)[pattern(worst.layer)])
    why = f"{amax / (worst.rms or 1.0):.3g} times its rms (from {WIDE_E4M3:.0f} on, ours)"
    if usual and amax >= OUTLIER * usual:
        why = f"{amax / usual:.3g} times the median of its peers (from {OUTLIER:.0f} on, ours)"
    return finding(
        "outlier-layer",
        **seen.common(),
        amax=amax,
        why=why,
        also=f"; also the {listed(others, 3)}" if others else "",
        what_if=what_if(worst),
    )


def _outlier_rows(rows: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Return the tensors whose values dwarf those of their peers, or of which one dwarfs the rest.

    A weight that is too large makes its output and gradients large too: only the cause is accused.
    """
    return next((found for found in _outliers(rows).values() if found), [])


def _outliers(rows: Sequence[TensorRecord]) -> dict[str, list[TensorRecord]]:
    """Return outliers by tensor; gradients that flush the rest are another finding's."""
    sound = _sound(rows)
    flushed = any(map(is_flushed_gradient, sound))
    return {
        tensor: [
            row
            for peers in by_peers(sound, tensor).values()
            for row in peers
            if _is_large(row, peers) or _is_wide(row)
        ]
        for tensor in _TENSORS
        if not (flushed and tensor == "grad_output")
    }


def _is_large(row: TensorRecord, peers: Sequence[TensorRecord]) -> bool:
    amax = row.amax or 0.0
    least = min((peer.amax for peer in peers if peer.amax), default=0.0)
    if not least or amax < OUTLIER * least:
        return False
    usual = _usual(row, peers)
    return bool(usual) and amax >= OUTLIER * usual


def _usual(row: TensorRecord, peers: Sequence[TensorRecord]) -> float:
    """Return the median amax of the same projection in other layers, 0 where these are too few."""
    others = [peer.amax for peer in peers if peer is not row and peer.amax]
    return median(others) if len(others) >= LEAST_PEERS else 0.0


def _is_wide(row: TensorRecord) -> bool:
    narrow = row.scaling in ONE_SCALE and row.format == "e4m3"
    return bool(narrow and row.amax and row.rms and row.amax / row.rms >= WIDE_E4M3)


def _underflow(seen: Seen) -> Finding:
    worst = seen.worst
    keeps = f" and keeps {worst.sqnr_db:.1f} dB of it" if is_noisy(worst) else ""
    return finding(
        "underflow-high",
        **seen.common(),
        share=flushed_share(worst),
        keeps=f"{_dead(worst)}{keeps}",
        threshold=UNDERFLOW,
        remedy=remedy(worst, seen.facts),
    )


def _low_sqnr(seen: Seen) -> Finding:
    return finding(
        "sqnr-low",
        **seen.common(),
        db=seen.worst.sqnr_db,
        threshold=least_sqnr(seen.worst),
        remedy=remedy(seen.worst, seen.facts),
    )


def _clips(seen: Seen) -> Finding:
    return finding(
        "saturates",
        **seen.common(),
        share=seen.worst.saturated,
        remedy=remedy_for_clipping(seen.worst),
    )


def _last_bucket(seen: Seen) -> Finding:
    share = seen.worst.top_blocks
    return finding("mx-last-bucket", **seen.common(), share=share, threshold=TOP_BLOCKS)


def _zero_rows(seen: Seen) -> Finding:
    share = seen.worst.zero_rows
    return finding("zero-rows", **seen.common(), share=share, threshold=ZERO_ROWS)


def is_flushed_gradient(row: TensorRecord) -> bool:
    """Whether a tensor is a gradient of which the cast makes a good part zero."""
    return row.tensor == "grad_output" and flushed_share(row) >= GRADIENT_FLUSHED


def is_clipped(row: TensorRecord) -> bool:
    """Whether the cast clips enough of a tensor to be told; bytes do not tell it from rounding."""
    return row.finite and row.source != "bytes" and (row.saturated or 0.0) >= SATURATED


def _sound(rows: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Return the rows without NaN and infinity: with them no other figure means anything."""
    return [row for row in rows if row.finite]


def _sound_if(holds: Callable[[TensorRecord], bool]) -> Callable[..., list[TensorRecord]]:
    return lambda rows: [row for row in rows if row.finite and holds(row)]


def _is_underflow(row: TensorRecord) -> bool:
    return flushed_share(row) >= UNDERFLOW and not is_flushed_gradient(row)


def _has_zero_rows(row: TensorRecord) -> bool:
    by_group = bool(row.scaling) and row.scaling not in ONE_SCALE
    return by_group and (row.zero_rows or 0.0) >= ZERO_ROWS


RULES = (
    Rule(lambda rows: [row for row in rows if not row.finite], lambda _: 0.0, _not_finite),
    Rule(_sound_if(is_flushed_gradient), flushed_share, _gradient_flushed),
    Rule(_outlier_rows, lambda row: row.amax or 0.0, _outlier),
    Rule(_sound_if(_is_underflow), flushed_share, _underflow),
    Rule(
        # But for those accused of their zeros.
        _sound_if(lambda row: is_noisy(row) and flushed_share(row) < UNDERFLOW),
        lambda row: -(row.sqnr_db or 0.0),
        _low_sqnr,
    ),
    Rule(_sound_if(is_clipped), lambda row: row.saturated or 0.0, _clips),
    Rule(
        _sound_if(lambda row: (row.top_blocks or 0.0) >= TOP_BLOCKS),
        lambda row: row.top_blocks or 0.0,
        _last_bucket,
    ),
    # Under scales by row or block, whose scale is then at its limit.
    Rule(_sound_if(_has_zero_rows), lambda row: row.zero_rows or 0.0, _zero_rows),
)


def layers_of(rows: Iterable[TensorRecord]) -> tuple[str, ...]:
    """Return the names of the layers of some tensors, each once."""
    return tuple(dict.fromkeys(row.layer for row in rows))


def _short_names(layers: Sequence[str], step: Step) -> list[str]:
    return list(dict.fromkeys(shorten(layers, (row.layer for row in step.rows))))

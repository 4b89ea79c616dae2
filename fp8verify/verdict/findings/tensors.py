"""Findings on measured tensors, in every step that was measured. None makes a verdict.

Each row of `TENSOR_RULES` says which tensors of one step it accuses and how bad each is; a finding
names the worst step and tensor, and the first step. Each threshold has its source: a number of a
paper, a tool or a test suite; those called "ours" lie well outside what sound runs showed on an
H200 (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import Step, by_peers, kept_scales, steps_of
from fp8verify.analysis.promises import Promises
from fp8verify.capture.schema import TensorRecord
from fp8verify.report.model import Finding
from fp8verify.text import counted, listed, pattern, shorten
from fp8verify.verdict.findings_table import finding

UNDERFLOW = 0.01  # BioNeMo, analyze_activation_underflows.py: marks > 1.0 %
DEAD = 0.999
GRADIENT_FLUSHED = 0.10  # ours; a sick layer of BioNeMo's summary_fl4.csv reached 0.092
SQNR_DB = 20.0  # ours; torchao/test/float8 accepts casts from 25 dB, whole blocks from 20
SQNR_MX_DB = 22.0  # ours; torchao's tests of MXFP8 accept from 24
SATURATED = 1e-5  # FP8-LM, arXiv 2310.18313: lowers its scale from 0.001 % on
TOP_BLOCKS = 0.05  # ours, after arXiv 2506.20752: blocks whose values share the last bucket
ZERO_ROWS = 0.01  # ours
OUTLIER = 100.0  # ours; times the median of the same projection in other layers
LEAST_PEERS = 3
WIDE_E4M3 = 2.0**13  # ours; at amax / rms above it a typical value of E4M3 is subnormal
LEAST_AMAX = 1e-12  # torchao/float8/float8_utils.py, EPS
WORTH_DB = 1.0
ONE_SCALE = ("tensorwise", "delayed")
SHOWN = 4  # layers or scales that a message names
BETTER_SCALING = "Raise margin by one, lengthen amax_history_len, or use current scaling"
_KEEP_IN_BF16 = "Keep the layer in BF16 (filter_fqns, module_filter_fn)"
_LEAST_HOLDS = ("tensorwise", "rowwise", "block_1x128")
_TENSORS = ("weight", "input", "grad_output")


# ---- how bad a tensor is


def flushed_share(row: TensorRecord) -> float:
    """Return the share of a tensor's values that the cast makes zero, 0 if not measured."""
    return row.flushed or 0.0


def is_flushed_gradient(row: TensorRecord) -> bool:
    """Whether a tensor is a gradient of which the cast makes a good part zero."""
    return row.tensor == "grad_output" and flushed_share(row) >= GRADIENT_FLUSHED


def is_clipped(row: TensorRecord) -> bool:
    """Whether the cast clips enough of a tensor to report; bytes do not show it from rounding."""
    return row.finite and row.source != "bytes" and (row.saturated or 0.0) >= SATURATED


def is_noisy(row: TensorRecord) -> bool:
    """Whether the cast leaves too little of a tensor."""
    return row.sqnr_db is not None and row.sqnr_db < least_sqnr(row)


def least_sqnr(row: TensorRecord) -> float:
    """Return the dB over the noise of its cast that a tensor must keep."""
    return SQNR_MX_DB if row.scaling == "mxfp8" and row.format == "e4m3" else SQNR_DB


def _is_underflow(row: TensorRecord) -> bool:
    return flushed_share(row) >= UNDERFLOW and not is_flushed_gradient(row)


def _has_zero_rows(row: TensorRecord) -> bool:
    """Whether a scale by row or block is at its limit for some rows."""
    by_group = bool(row.scaling) and row.scaling not in ONE_SCALE
    return by_group and (row.zero_rows or 0.0) >= ZERO_ROWS


def _all_if(holds: Callable[[TensorRecord], bool]) -> Callable[..., list[TensorRecord]]:
    """Accuse each tensor that holds; with NaN and infinity no other figure means anything."""
    return lambda rows: [row for row in rows if row.finite and holds(row)]


# ---- outliers: a tensor against its peers


def _outlier_rows(rows: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Return the tensors whose values dwarf those of their peers, or of which one dwarfs the rest.

    A weight that is too large makes its output and gradients large too: only the cause is accused.
    """
    return next((found for found in _outliers(rows).values() if found), [])


def _outliers(rows: Sequence[TensorRecord]) -> dict[str, list[TensorRecord]]:
    """Return outliers by tensor; gradients that flush the rest are another finding's."""
    sound = [row for row in rows if row.finite]
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


# ---- the rules


class Seen(NamedTuple):
    """What a rule accuses over all measured steps.

    Attributes:
        step: the worst of them.
        accused: its accused tensors, in the order of the step.
        worst: the worst of these.
        rows: the accused of all steps, each tensor once.
    """

    step: Step
    accused: Sequence[TensorRecord]
    worst: TensorRecord
    rows: Sequence[TensorRecord]
    facts: RankFacts

    def names(self, layers: Sequence[str]) -> list[str]:
        """Return layers by their shortened names."""
        return list(dict.fromkeys(shorten(layers, (row.layer for row in self.step.rows))))


class Rule(NamedTuple):
    """A finding on the tensors of one step.

    Attributes:
        code: of the finding.
        accused: returns the tensors that are accused.
        badness: says how bad one of them is.
        facts: returns what the sentence names, apart from `tensor`, `layer`, `others` and `when`.
    """

    code: str
    accused: Callable[[Sequence[TensorRecord]], list[TensorRecord]]
    badness: Callable[[TensorRecord], float]
    facts: Callable[[Seen], Mapping[str, Any]]


def measured_tensors(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Apply all rules to all measured steps of a rank."""
    steps = steps_of(facts.rank.numerics)
    for rule in TENSOR_RULES:
        hits = [(step, rows) for step in steps if (rows := rule.accused(step.rows))]
        if not hits:
            continue
        # Of equals the first step.
        step, accused = max(hits, key=lambda hit: max(map(rule.badness, hit[1])))
        every = [accused, *(rows for _, rows in hits)]
        by_tensor = {(row.layer, row.tensor): row for part in every for row in part}
        worst = max(accused, key=rule.badness)
        seen = Seen(step, accused, worst, tuple(by_tensor.values()), facts)
        layers = layers_of(seen.rows)
        named = listed(seen.names(layers), SHOWN)
        common = {
            "tensor": worst.tensor,
            "layer": worst.layer,
            "others": f", the worst of {len(layers)} layers: {named}" if len(layers) > 1 else "",
            "when": _when(len(steps), [step.number for step, _ in hits], step.number),
            "layers": layers,
        }
        yield finding(rule.code, **{**common, **rule.facts(seen)})


def _when(count: int, numbers: Sequence[int], worst: int) -> str:
    """Say in which of several measured steps something is found."""
    if count < 2:
        return ""
    also = f", worst in step {worst}" if worst != numbers[0] else ""
    return f"; in {len(numbers)} of {count} measured steps, first in step {numbers[0]}{also}"


def layers_of(rows: Iterable[TensorRecord]) -> tuple[str, ...]:
    """Return the names of the layers of some tensors, each once."""
    return tuple(dict.fromkeys(row.layer for row in rows))


def _not_finite(seen: Seen) -> Mapping[str, Any]:
    first, after = seen.accused[0], seen.accused[1:]
    count = first.rows_not_finite
    kind = "NaN" if first.nan else "infinity" if first.inf else "values that are not finite"
    return {
        "tensor": first.tensor,
        "layer": first.layer,
        "kind": "NaN and infinity" if first.nan and first.inf else kind,
        "rows": f" in {counted(count, 'row')}" if count else "",
        "step": seen.step.number,
        "others": f", before {counted(after, 'other tensor')}" if after else "",
        "remedy": _NOT_FINITE_REMEDIES.get(first.tensor, ""),
        "layers": (first.layer,),
    }


_NOT_FINITE_REMEDIES = {
    "input": "Check what feeds this layer: the batch, the layer before it, rows of padding that "
    "are never written (MoE), a norm of all-zero rows.",
    "weight": "The optimizer or the checkpoint put it there: look at the gradient norm and the "
    "steps before, at lr, and at gradient clipping.",
    "grad_output": "The forward pass is finite up to here: look at the loss, at what comes after "
    "this layer, and at the loss scale.",
}


def _gradient_flushed(seen: Seen) -> Mapping[str, Any]:
    """Accuse the first gradient in the order of the backward pass, if about as bad as the worst.

    What is wrong with a gradient is wrong with those that are computed from it.
    """
    first = seen.worst
    said = ", the worst; also in {} more"  # a log of statistics is in no such order
    if first.source != "te-debug":
        least = flushed_share(seen.worst) / 2
        first = next(row for row in seen.accused if flushed_share(row) >= least)
        said = "; also in {} after it in the backward pass"
    layers = layers_of([first, *seen.rows])
    others = listed(seen.names(layers)[1:], SHOWN)
    return {
        "layer": first.layer,
        "share": flushed_share(first),
        "dead": _dead(first),
        "others": f"{said.format(len(layers) - 1)}: {others}" if len(layers) > 1 else "",
        "threshold": GRADIENT_FLUSHED,
        "remedy": remedy(first, seen.facts),
        "layers": layers,
    }


def _dead(row: TensorRecord) -> str:
    return ": it is dead" if flushed_share(row) > DEAD else ""


def _outlier(seen: Seen) -> Mapping[str, Any]:
    worst, amax, rows = seen.worst, seen.worst.amax or 0.0, seen.step.rows
    others = [
        f"{row.tensor} of {row.layer}"
        for tensor, found in _outliers(rows).items()
        for row in found
        if tensor != worst.tensor
    ]
    peers = by_peers([row for row in rows if row.finite], worst.tensor)[pattern(worst.layer)]
    usual = _usual(worst, peers)
    why = f"{amax / (worst.rms or 1.0):.3g} times its RMS (threshold: {WIDE_E4M3:.0f})"
    if usual and amax >= OUTLIER * usual:
        why = f"{amax / usual:.3g} times the median of its peers (threshold: {OUTLIER:.0f})"
    also = f"; also the {listed(others, 3)}" if others else ""
    return {"amax": amax, "why": why, "also": also, "what_if": what_if(worst)}


def _underflow(seen: Seen) -> Mapping[str, Any]:
    worst = seen.worst
    keeps = f" and keeps {worst.sqnr_db:.1f} dB of it" if is_noisy(worst) else ""
    return {
        "share": flushed_share(worst),
        "keeps": f"{_dead(worst)}{keeps}",
        "threshold": UNDERFLOW,
        "remedy": remedy(worst, seen.facts),
    }


TENSOR_RULES = (
    Rule(
        "nan-or-inf",
        lambda rows: [row for row in rows if not row.finite],
        lambda _: 0.0,
        _not_finite,
    ),
    Rule("gradient-flushed", _all_if(is_flushed_gradient), flushed_share, _gradient_flushed),
    Rule("outlier-layer", _outlier_rows, lambda row: row.amax or 0.0, _outlier),
    Rule("underflow-high", _all_if(_is_underflow), flushed_share, _underflow),
    Rule(
        "sqnr-low",
        # But for those accused of their zeros.
        _all_if(lambda row: is_noisy(row) and flushed_share(row) < UNDERFLOW),
        lambda row: -(row.sqnr_db or 0.0),
        lambda seen: {
            "db": seen.worst.sqnr_db,
            "threshold": least_sqnr(seen.worst),
            "remedy": remedy(seen.worst, seen.facts),
        },
    ),
    Rule(
        "saturates",
        _all_if(is_clipped),
        lambda row: row.saturated or 0.0,
        lambda seen: {
            "share": seen.worst.saturated,
            "remedy": _remedy_for_clipping(seen.worst),
        },
    ),
    Rule(
        "mx-last-bucket",
        _all_if(lambda row: (row.top_blocks or 0.0) >= TOP_BLOCKS),
        lambda row: row.top_blocks or 0.0,
        lambda seen: {"share": seen.worst.top_blocks, "threshold": TOP_BLOCKS},
    ),
    Rule(
        "zero-rows",
        _all_if(_has_zero_rows),
        lambda row: row.zero_rows or 0.0,
        lambda seen: {"share": seen.worst.zero_rows, "threshold": ZERO_ROWS},
    ),
)


# ---- remedies


def remedy(row: TensorRecord, facts: RankFacts) -> str:
    """Say what would help under the recipe at hand."""
    if row.amax and row.amax < LEAST_AMAX and row.scaling in _LEAST_HOLDS:
        # Only gradients grow with the loss.
        loss = "scale the loss up, or " if row.tensor == "grad_output" else ""
        return (
            f"Its largest value is {row.amax:.2g}; scales count no amax below {LEAST_AMAX:g} "
            f"(torchao's EPS), with any scaling: {loss}find what makes it so small."
        )
    rounding = "; on sm_12x see that stochastic rounding works (TE#3281)"
    dead = flushed_share(row) > DEAD and row.tensor == "grad_output"
    return f"{_how(row, facts)}{what_if(row)}{rounding if dead else ''}."


def _how(row: TensorRecord, facts: RankFacts) -> str:
    if row.scaling == "delayed" and (row.saturated or 0.0) >= SATURATED:
        return (
            "Use current scaling, or scale by block: no margin avoids both clipping and underflow"
        )
    if is_noisy(row) and row.what_if and _better(row) is None:
        return _KEEP_IN_BF16
    if row.scaling == "delayed":
        margin = _margin(row, facts)
        if margin > 0:
            return f"Lower margin (fp8_margin {margin} → {margin - 1}), or use current scaling"
        return (
            "Shorten amax_history_len if an old spike keeps the scale small, or use current scaling"
        )
    if row.tensor == "grad_output" and row.format == "e4m3" and row.scaling == "tensorwise":
        return "Cast gradients to E5M2 (hybrid format), or scale by row"
    if row.scaling == "tensorwise":
        return "Scale by row or block (rowwise, rowwise_with_gw_hp, Float8BlockScaling)"
    return _KEEP_IN_BF16


def _margin(row: TensorRecord, facts: RankFacts) -> int:
    """Return the margin of the scales that the run keeps for a tensor, 0 where it keeps none."""
    key = (row.layer, row.tensor)
    kept = kept_scales(facts.rank.numerics)
    margins = (one.recipe.margin for one in kept if (one.slot.layer, one.slot.tensor) == key)
    return max((margin or 0 for margin in margins), default=0)


def what_if(row: TensorRecord) -> str:
    """Say what the best of the other recipes would keep of a tensor of which little is kept.

    A few large values have nearly all of the signal: what becomes of the others dB do not show.
    """
    if not (row.what_if and is_noisy(row)):
        return ""
    best = _better(row)
    if best is None:
        return "; none of the usual recipes keeps more of it"
    return f"; {best[0]} would keep {best[1]:.1f} dB of it, now {row.sqnr_db:.1f}"


def _better(row: TensorRecord) -> tuple[str, float] | None:
    """Return the best of the other recipes by SQNR, if it is better."""
    best = max(row.what_if.items(), key=lambda item: item[1], default=None)
    return best if best is not None and best[1] >= (row.sqnr_db or 0.0) + WORTH_DB else None


def _remedy_for_clipping(row: TensorRecord) -> str:
    if row.scaling == "mxfp8":
        return "Round MX scales up (RCEIL, arXiv 2506.08027)."
    if row.scaling != "delayed":
        return "Compute the scale from the largest magnitude of the values that it scales."
    if flushed_share(row) >= UNDERFLOW:
        return (
            "Use current scaling, or scale by block: no margin fits a tensor whose largest "
            "values are clipped and whose smallest ones become zero."
        )
    return BETTER_SCALING + "."

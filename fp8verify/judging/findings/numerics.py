"""Findings on the tensors of FP8 layers: what their casts lose. None of them makes a verdict.

Each threshold stands with its source: a number of a paper, a tool or a test suite; those called
"ours" lie well outside of what sound runs showed on an H200 (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from fp8verify.capture.numerics import TensorRecord
from fp8verify.evidence.facts import RankFacts
from fp8verify.evidence.numerics import Kept, by_peers, kept_scales
from fp8verify.evidence.promises import Promises
from fp8verify.judging.findings.formats import gradients_in_e5m2
from fp8verify.layer_names import shorten
from fp8verify.model import Finding, Severity
from fp8verify.wording import counted, listed

GRADIENT_FLUSHED = 0.10  # ours; a sick layer of BioNeMo's summary_fl4.csv reached 0.092
UNDERFLOW = 0.01  # BioNeMo, analyze_activation_underflows.py: marks > 1.0 %
SQNR_DB = 20.0  # ours; torchao/test/float8 accepts casts from 25 dB, whole blocks from 20
SQNR_MX_DB = 22.0  # ours; torchao's tests of MXFP8 accept from 24
OUTLIER = 100.0  # ours; times the median of the same projection in other layers
LEAST_PEERS = 3
WIDE_E4M3 = 2.0**13  # ours; at amax / rms above it a typical value of E4M3 is subnormal
SATURATED = 1e-5  # FP8-LM, arXiv 2310.18313: lowers its scale from 0.001 % on
TOP_BLOCKS = 0.05  # ours, after arXiv 2506.20752: blocks whose values share the last bucket
ZERO_ROWS = 0.01  # ours
WORTH_DB = 1.0
LEAST_AMAX = 1e-12  # torchao/float8/float8_utils.py, EPS
_LEAST_HOLDS = ("tensorwise", "rowwise", "block_1x128")
_SHOWN = 4
_TENSORS = ("weight", "input", "grad_output")
_ONE_SCALE = ("tensorwise", "delayed")


def not_finite(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """The first tensor that holds a NaN or infinity, in the order of the step."""
    bad = [row for row in _rows(facts) if not row.finite]
    if bad:
        first = bad[0]
        rest = f", before {counted(bad[1:], 'other tensor')}" if len(bad) > 1 else ""
        count = first.rows_not_finite
        rows = f" in {count} row{'' if count == 1 else 's'}" if count else ""
        yield Finding(
            code="nan-or-inf",
            severity=Severity.ERROR,
            message=f"the {first.tensor} of {first.layer} holds {_kind(first)}{rows}, the first to "
            f"do so in step {_step(facts)}{rest}",
            hint=_NOT_FINITE_HINTS[first.tensor],
            layers=(first.layer,),
        )


_NOT_FINITE_HINTS = {
    "input": "Look at what feeds this layer: the batch, the layer before it, rows of padding that "
    "nothing has written (MoE), a norm of all-zero rows.",
    "weight": "The optimizer or the checkpoint put it there: look at the gradient norm and the "
    "steps before, at lr, and at gradient clipping.",
    "grad_output": "The forward pass is finite up to here: look at the loss, at what comes after "
    "this layer, and at the loss scale.",
}


def _kind(row: TensorRecord) -> str:
    return "NaN" if row.nan and not row.inf else "infinity" if row.inf and not row.nan else (
        "NaN and infinity" if row.nan else "values that are not finite"
    )  # fmt: skip


def gradient_flushed(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Gradients of which the cast makes a good part zero.

    What is wrong with a gradient is wrong with those that are computed from it: the first one in
    the order of the backward pass is accused, if it is about as bad as the worst.
    """
    found = _flushed_gradients(facts)
    if found:
        worst = max(found, key=_flushed)
        first = next(row for row in found if _flushed(row) >= _flushed(worst) / 2)
        after = ", and so in {} after it in the backward pass"
        if worst.source == "te-debug":  # a log of statistics is in no such order
            first, after = worst, ", the worst, and so in {} more"
        dead = ": it is dead" if _flushed(first) > 0.999 else ""
        layers = _layers([first, *found])
        yield Finding(
            code="gradient-flushed",
            severity=Severity.ERROR,
            message=f"the cast makes {_flushed(first):.1%} of the grad_output of {first.layer} zero"
            f"{dead}{_others([first, *found], facts, after.format(len(layers) - 1))} "
            f"(threshold {GRADIENT_FLUSHED:.0%}, ours)",
            hint=_remedy(first, facts),
            layers=layers,
        )


def _flushed_gradients(facts: RankFacts) -> list[TensorRecord]:
    gradients = [row for row in _sound(facts) if row.tensor == "grad_output"]
    return [row for row in gradients if _flushed(row) >= GRADIENT_FLUSHED]


def underflow_high(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Tensors of which the cast makes more zero than sound runs do."""
    found = [row for row in _sound(facts) if _flushed(row) >= UNDERFLOW]
    found = [r for r in found if r.tensor != "grad_output" or _flushed(r) < GRADIENT_FLUSHED]
    if found:
        worst = max(found, key=_flushed)
        yield Finding(
            code="underflow-high",
            severity=Severity.WARNING,
            message=f"the cast makes {_flushed(worst):.1%} of the {worst.tensor} of {worst.layer} "
            f"zero{_keeps(worst)}{_and_more(found, facts)} (BioNeMo marks from {UNDERFLOW:.0%} on)",
            hint=_remedy(worst, facts),
            layers=_layers(found),
        )


def _keeps(row: TensorRecord) -> str:
    """Say how little the cast keeps of a tensor that is accused of its zeros, if it is little."""
    return f" and keeps {row.sqnr_db:.1f} dB of it" if _is_noisy(row) else ""


def sqnr_low(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Tensors that the cast leaves too little of, but for those accused of their zeros."""
    found = [row for row in _sound(facts) if _is_noisy(row) and _flushed(row) < UNDERFLOW]
    if found:
        worst = min(found, key=lambda row: row.sqnr_db or 0.0)
        yield Finding(
            code="sqnr-low",
            severity=Severity.WARNING,
            message=f"the {worst.tensor} of {worst.layer} keeps {worst.sqnr_db:.1f} dB over the "
            f"noise of its cast{_and_more(found, facts)} (threshold {_least(worst):.0f} dB, ours; "
            "sound ones have 31 dB in E4M3, 25 dB in E5M2)",
            hint=_remedy(worst, facts),
            layers=_layers(found),
        )


def _is_noisy(row: TensorRecord) -> bool:
    return row.sqnr_db is not None and row.sqnr_db < _least(row)


def _least(row: TensorRecord) -> float:
    return SQNR_MX_DB if row.scaling == "mxfp8" and row.format == "e4m3" else SQNR_DB


def outlier_layer(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Layers whose values dwarf those of their peers, or of which one value dwarfs the rest.

    A weight that is too large makes its output and gradients large too: the cause is accused, what
    follows from it is only mentioned.
    """
    by_tensor = {tensor: list(_outliers(_sound(facts), tensor)) for tensor in _TENSORS}
    if _flushed_gradients(facts):
        by_tensor["grad_output"] = []  # what flushes the rest is that finding's
    cause = next((tensor for tensor in _TENSORS if by_tensor[tensor]), None)
    if cause is None:
        return
    found = by_tensor[cause]
    worst, why = max(found, key=lambda pair: pair[0].amax or 0.0)
    rows = [row for row, _ in found]
    others = [f"{r.tensor} of {r.layer}" for t in _TENSORS if t != cause for r, _ in by_tensor[t]]
    beside = f"; beside it the {listed(others, 3)}" if others else ""
    yield Finding(
        code="outlier-layer",
        severity=Severity.WARNING,
        message=f"the {cause} of {worst.layer} reaches {worst.amax:.3g}, {why}"
        f"{_and_more(rows, facts)}{beside}",
        hint="Look at how it was initialised or what it learned from; keep this layer in BF16 "
        f"(filter_fqns, module_filter_fn){_what_if(worst)}. Outliers that grow at down "
        "projections are SwiGLU's (arXiv 2409.12517, Smooth-SwiGLU).",
        layers=_layers(rows),
    )


def _outliers(rows: Sequence[TensorRecord], tensor: str) -> Iterator[tuple[TensorRecord, str]]:
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
    narrow = row.scaling in _ONE_SCALE and row.format == "e4m3"
    return bool(narrow and row.amax and row.rms and row.amax / row.rms >= WIDE_E4M3)


def saturates(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Tensors that the cast clips, under scales of earlier steps or rounded-down MX scales."""
    found = [row for row in _sound(facts) if is_clipped(row)]
    if found:
        worst = max(found, key=lambda row: row.saturated or 0.0)
        yield Finding(
            code="saturates",
            severity=Severity.WARNING,
            message=f"the cast clips {worst.saturated:.3%} of the {worst.tensor} of {worst.layer}"
            f"{_and_more(found, facts)} (FP8-LM lowers its scale from 0.001% on)",
            hint="Round MX scales up (RCEIL, arXiv 2506.08027)."
            if worst.scaling == "mxfp8"
            else "Make the scale of the largest magnitude of the values that it is for."
            if worst.scaling != "delayed"
            else "Use current scaling, or scale by block: no margin suits a tensor whose largest "
            "values are clipped and whose smallest ones become zero."
            if _flushed(worst) >= UNDERFLOW
            else "Raise margin by one, lengthen amax_history_len, or use current scaling.",
            layers=_layers(found),
        )


def is_clipped(row: TensorRecord) -> bool:
    """Whether the cast clips enough of a tensor to be told; bytes do not tell it from rounding."""
    return row.finite and row.source != "bytes" and (row.saturated or 0.0) >= SATURATED


def mx_last_bucket(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """MX tensors many of whose blocks hold hardly anything but their largest value."""
    found = [row for row in _sound(facts) if (row.top_blocks or 0.0) >= TOP_BLOCKS]
    if found:
        worst = max(found, key=lambda row: row.top_blocks or 0.0)
        yield Finding(
            code="mx-last-bucket",
            severity=Severity.WARNING,
            message=f"in {worst.top_blocks:.1%} of the MX blocks of the {worst.tensor} of "
            f"{worst.layer} most values are the largest one{_and_more(found, facts)} "
            f"(from {TOP_BLOCKS:.0%} on, ours, after arXiv 2506.20752)",
            hint="Keep the affine weights of layer norms in high precision, and round scales up.",
            layers=_layers(found),
        )


def mxfp8_e5m2_gradients(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Gradients in E5M2 under MX scales, where no kernel has told of them already."""
    if any(gradients_in_e5m2(facts, promises)):
        return
    rows = [r for r in _rows(facts) if r.scaling == "mxfp8" and (r.format or "").startswith("e5m2")]
    numerics = facts.rank.numerics
    windows = numerics.record.windows if numerics is not None else ()
    recipes = [recipe for window in windows for recipe in window.recipes]
    if rows or any(r.name == "MXFP8BlockScaling" and r.backward == "e5m2" for r in recipes):
        yield Finding(
            code="mxfp8-e5m2-gradients",
            severity=Severity.ERROR,
            message="gradients are cast to MXFP8 in E5M2",
            hint='Use E4M3 throughout (fp8="e4m3", Format.E4M3): runs with hybrid formats diverged '
            "(Megatron-Bridge#638, arXiv 2506.08027).",
            layers=_layers(rows),
        )


def zero_rows(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """All-zero rows under scales by row or block, whose scale is then at its limit."""
    found = [
        row
        for row in _sound(facts)
        if row.scaling not in _ONE_SCALE and row.scaling and (row.zero_rows or 0.0) >= ZERO_ROWS
    ]
    if found:
        worst = max(found, key=lambda row: row.zero_rows or 0.0)
        yield Finding(
            code="zero-rows",
            severity=Severity.INFO,
            message=f"{worst.zero_rows:.1%} of the rows of the {worst.tensor} of {worst.layer} are "
            f"all zero{_and_more(found, facts)} (told from {ZERO_ROWS:.0%} on, ours)",
            hint="Padding and masked tokens do this; scales of such rows are at their limit, where "
            "some kernels made NaN (ao#3356).",
            layers=_layers(found),
        )


def _rows(facts: RankFacts) -> Sequence[TensorRecord]:
    return facts.rank.numerics.rows if facts.rank.numerics is not None else ()


def _sound(facts: RankFacts) -> list[TensorRecord]:
    """Return the rows without NaN and infinity: with them no other figure means anything."""
    return [row for row in _rows(facts) if row.finite]


def _step(facts: RankFacts) -> int:
    numerics = facts.rank.numerics
    measured = numerics.record.measured if numerics is not None else None
    return measured.step if measured is not None else 0


def _flushed(row: TensorRecord) -> float:
    return row.flushed or 0.0


def _layers(rows: Iterable[TensorRecord]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.layer for row in rows))


def _and_more(rows: Sequence[TensorRecord], facts: RankFacts) -> str:
    """Say how many more layers there are, and which."""
    layers = _layers(rows)
    if len(layers) < 2:
        return ""
    names = shorten(layers, (row.layer for row in _rows(facts)))
    return f", the worst of {len(layers)} layers: {listed(list(dict.fromkeys(names)), _SHOWN)}"


def _others(rows: Sequence[TensorRecord], facts: RankFacts, said: str) -> str:
    """Add the names of the layers after the first, if there are more."""
    layers = _layers(rows)
    names = shorten(layers, (row.layer for row in _rows(facts)))
    others = list(dict.fromkeys(names))[1:]
    return f"{said}: {listed(others, _SHOWN)}" if others else ""


def _remedy(row: TensorRecord, facts: RankFacts) -> str:
    """Say what would help under the recipe at hand."""
    if row.amax and row.amax < LEAST_AMAX and row.scaling in _LEAST_HOLDS:
        return (
            f"Its largest value is {row.amax:.2g}; scales count no amax below {LEAST_AMAX:g} "
            "(torchao's EPS), however they are grouped: scale the loss up, or find what makes "
            "it so small."
        )
    stochastic = (
        "; on sm_12x see that stochastic rounding works (TE#3281)"
        if _flushed(row) > 0.999 and row.tensor == "grad_output"
        else ""
    )
    return f"{_how(row, facts)}{_what_if(row)}{stochastic}."


def _how(row: TensorRecord, facts: RankFacts) -> str:
    if row.scaling == "delayed" and (row.saturated or 0.0) >= SATURATED:
        return "Use current scaling, or scale by block: no margin suits what is clipped as well"
    if _is_noisy(row) and row.what_if and _better(row) is None:
        return "Keep the layer in BF16 (filter_fqns, module_filter_fn)"
    if row.scaling == "delayed":
        margin = max((kept.recipe.margin or 0 for kept in _scales_of(row, facts)), default=0)
        if margin > 0:
            return f"Lower margin (fp8_margin {margin} → {margin - 1}), or use current scaling"
        return (
            "Shorten amax_history_len if an old spike keeps the scale small, or use current scaling"
        )
    if row.tensor == "grad_output" and row.format == "e4m3" and row.scaling == "tensorwise":
        return "Cast gradients to E5M2 (hybrid format), or scale by row"
    if row.scaling == "tensorwise":
        return "Scale by row or block (rowwise, rowwise_with_gw_hp, Float8BlockScaling)"
    return "Keep the layer in BF16 (filter_fqns, module_filter_fn)"


def _scales_of(row: TensorRecord, facts: RankFacts) -> list[Kept]:
    key = (row.layer, row.tensor)
    kept = kept_scales(facts.rank.numerics)
    return [one for one in kept if (one.slot.layer, one.slot.tensor) == key]


def _better(row: TensorRecord) -> tuple[str, float] | None:
    """Return the best of the other recipes by SQNR, if it is better."""
    best = max(row.what_if.items(), key=lambda item: item[1], default=None)
    return best if best is not None and best[1] >= (row.sqnr_db or 0.0) + WORTH_DB else None


def _what_if(row: TensorRecord) -> str:
    """Tell what the best of the other recipes would keep of a tensor of which little is kept.

    A few large values have nearly all of the signal: what becomes of the others dB do not tell.
    """
    if not (row.what_if and _is_noisy(row)):
        return ""
    best = _better(row)
    if best is None:
        return "; none of the usual recipes keeps more of it"
    return f"; {best[0]} would keep {best[1]:.1f} dB of it, now {row.sqnr_db:.1f}"

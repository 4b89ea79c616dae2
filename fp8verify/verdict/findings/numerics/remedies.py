"""How bad a tensor is, and what helps one of which the cast keeps too little."""

from __future__ import annotations

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.numerics import kept_scales
from fp8verify.capture.numerics import TensorRecord

UNDERFLOW = 0.01  # BioNeMo, analyze_activation_underflows.py: marks > 1.0 %
DEAD = 0.999
SQNR_DB = 20.0  # ours; torchao/test/float8 accepts casts from 25 dB, whole blocks from 20
SQNR_MX_DB = 22.0  # ours; torchao's tests of MXFP8 accept from 24
SATURATED = 1e-5  # FP8-LM, arXiv 2310.18313: lowers its scale from 0.001 % on
BETTER_SCALING = "Raise margin by one, lengthen amax_history_len, or use current scaling"
LEAST_AMAX = 1e-12  # torchao/float8/float8_utils.py, EPS
WORTH_DB = 1.0
_KEEP_IN_BF16 = "Keep the layer in BF16 (filter_fqns, module_filter_fn)"
_LEAST_HOLDS = ("tensorwise", "rowwise", "block_1x128")


def flushed_share(row: TensorRecord) -> float:
    """Return the share of a tensor's values that the cast makes zero, 0 if not measured."""
    return row.flushed or 0.0


def is_noisy(row: TensorRecord) -> bool:
    """Whether the cast leaves too little of a tensor."""
    return row.sqnr_db is not None and row.sqnr_db < least_sqnr(row)


def least_sqnr(row: TensorRecord) -> float:
    """Return the dB over the noise of its cast that a tensor must keep."""
    return SQNR_MX_DB if row.scaling == "mxfp8" and row.format == "e4m3" else SQNR_DB


def remedy(row: TensorRecord, facts: RankFacts) -> str:
    """Say what would help under the recipe at hand."""
    if row.amax and row.amax < LEAST_AMAX and row.scaling in _LEAST_HOLDS:
        # Only gradients grow with the loss.
        loss = "scale the loss up, or " if row.tensor == "grad_output" else ""
        return (
            f"Its largest value is {row.amax:.2g}; scales count no amax below {LEAST_AMAX:g} "
            f"(torchao's EPS), however they are grouped: {loss}find what makes it so small."
        )
    return f"{_how(row, facts)}{what_if(row)}{_see_rounding(row)}."


def remedy_for_clipping(row: TensorRecord) -> str:
    """Say what would keep the cast from clipping a tensor."""
    if row.scaling == "mxfp8":
        return "Round MX scales up (RCEIL, arXiv 2506.08027)."
    if row.scaling != "delayed":
        return "Make the scale of the largest magnitude of the values that it is for."
    if flushed_share(row) >= UNDERFLOW:
        return (
            "Use current scaling, or scale by block: no margin suits a tensor whose largest "
            "values are clipped and whose smallest ones become zero."
        )
    return BETTER_SCALING + "."


def _how(row: TensorRecord, facts: RankFacts) -> str:
    if row.scaling == "delayed" and (row.saturated or 0.0) >= SATURATED:
        return "Use current scaling, or scale by block: no margin suits what is clipped as well"
    if is_noisy(row) and row.what_if and _better(row) is None:
        return _KEEP_IN_BF16
    if row.scaling == "delayed":
        return _how_under_delayed_scaling(_margin(row, facts))
    if row.tensor == "grad_output" and row.format == "e4m3" and row.scaling == "tensorwise":
        return "Cast gradients to E5M2 (hybrid format), or scale by row"
    if row.scaling == "tensorwise":
        return "Scale by row or block (rowwise, rowwise_with_gw_hp, Float8BlockScaling)"
    return _KEEP_IN_BF16


def _how_under_delayed_scaling(margin: int) -> str:
    if margin > 0:
        return f"Lower margin (fp8_margin {margin} → {margin - 1}), or use current scaling"
    return "Shorten amax_history_len if an old spike keeps the scale small, or use current scaling"


def _margin(row: TensorRecord, facts: RankFacts) -> int:
    """Return the margin of the scales that the run keeps for a tensor, 0 where it keeps none."""
    key = (row.layer, row.tensor)
    kept = kept_scales(facts.rank.numerics)
    margins = (one.recipe.margin for one in kept if (one.slot.layer, one.slot.tensor) == key)
    return max((margin or 0 for margin in margins), default=0)


def _see_rounding(row: TensorRecord) -> str:
    if flushed_share(row) > DEAD and row.tensor == "grad_output":
        return "; on sm_12x see that stochastic rounding works (TE#3281)"
    return ""


def what_if(row: TensorRecord) -> str:
    """Tell what the best of the other recipes would keep of a tensor of which little is kept.

    A few large values have nearly all of the signal: what becomes of the others dB do not tell.
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

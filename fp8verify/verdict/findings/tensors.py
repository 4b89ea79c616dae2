"""Findings on measured tensors, in every step that was measured. None makes a verdict.

Each row of `_RULES` is a threshold on a figure of a tensor; its finding names the worst step and
tensor, and the first step. Each threshold has its source: a number of a paper, a tool or a test
suite; those called "ours" lie well outside what sound runs showed on an H200 (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import asdict

from fp8verify import thresholds as limits
from fp8verify.analysis.kinds import grouped
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import steps_of
from fp8verify.capture.schema import MeasuredRecord, SlotRecord, TensorRecord
from fp8verify.model.verdict import Finding
from fp8verify.text import counted, listed, pattern, patterns
from fp8verify.verdict.clauses import optional
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings_table import finding

_ONE_SCALE = ("tensorwise", "delayed")
_Record: TypeAlias = "TensorRecord | SlotRecord"


# ---- one finding of all records that a rule accuses


class Accused(NamedTuple):
    """A record that a rule accuses, with how bad it is and the step in which it was seen."""

    figure: float
    step: int
    record: _Record


def accuse(
    code: str,
    accused: Sequence[Accused],
    *,
    case: str = "",
    steps: int = 1,
    remedy: Callable[[Any], str] = lambda _: "",
    **facts: object,
) -> Iterator[Finding]:
    """Make one finding of the records that a rule accuses: it names the worst, of equals the first.

    Args:
        code: of the finding.
        accused: records in the order in which they were met; of none there is no finding.
        case: of the code.
        steps: how many steps were measured.
        remedy: what would help the worst.
        facts: what the sentence names besides the fields of the worst record, `name`, `figure`,
            `step`, `others` (how many layers are accused) and `when` (in how many steps).
    """
    if not accused:
        return
    figure, step, worst = max(accused, key=lambda record: record.figure)
    layers: dict[str, None] = {}
    numbers = set()
    for record in accused:
        layers[record.record.layer] = None
        numbers.add(record.step)
    named = listed(patterns(layers), limits.SHOWN)
    among = f", one of {len(layers)} layers: {named}"
    gemm = getattr(worst, "gemm", 0)  # a tensor has none
    of_gemm = optional(f" (GEMM {gemm + 1})", when=gemm)
    common = {
        "name": f"the {worst.tensor} of {worst.layer}{of_gemm}",
        "figure": figure,
        "step": step,
        "others": optional(among, when=len(layers) > 1),
        "when": optional(_in_steps(numbers, steps, step), when=steps > 1),
        "remedy": remedy(worst),
    }
    yield finding(code, case, layers=layers, **{**asdict(worst), **common, **facts})


def _in_steps(numbers: Collection[int], measured: int, worst: int) -> str:
    """Say in which of the measured steps something was seen, and where it is worst."""
    first = min(numbers)
    also = optional(f", worst in step {worst}", when=worst != first)
    seen = f"in {len(numbers)} of {measured} measured steps"
    return f"; {seen}, first in step {first}{also}"


# ---- thresholds on a figure of one tensor


class Rule(NamedTuple):
    """A threshold on a figure of a record: a tensor, or a scale that is kept.

    Attributes:
        code: of the finding.
        figure: how bad a record is.
        limit: it is accused from this figure on.
        holds: for which records the rule holds.
        remedy: what would help the worst of them.
        case: of the code.
    """

    code: str
    figure: Callable[[Any], float]
    limit: float
    holds: Callable[[Any], bool] = lambda _: True
    remedy: Callable[[Any], str] = lambda _: ""
    case: str = ""


def by_rules(
    rules: Iterable[Rule],
    seen: Sequence[tuple[int, Any, _Record]],
    steps: int = 1,
) -> Iterator[Finding]:
    """Hold records against limits.

    Args:
        rules: the limits.
        seen: the step of each record, what the rules read of it, and the record.
        steps: how many steps were measured.
    """
    for rule in rules:
        accused = [
            Accused(rule.figure(one), step, record)
            for step, one, record in seen
            if rule.holds(one) and not rule.figure(one) < rule.limit  # NaN is no less
        ]
        yield from accuse(
            rule.code,
            accused,
            case=rule.case,
            steps=steps,
            remedy=rule.remedy,
        )


def measured_tensors(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Hold all measured tensors against all limits."""
    steps = steps_of(rank)
    seen = [(step.step, row, row) for step in steps for row in step.rows if row.finite]
    yield from by_rules(_RULES, seen, len(steps))


def is_clipped(row: TensorRecord) -> bool:
    """Whether the cast clips enough of a tensor to report; bytes do not show it from rounding."""
    return row.finite and row.source != "bytes" and _saturated(row) >= limits.SATURATED


def _flushed(row: TensorRecord) -> float:
    return row.flushed or 0.0


def _saturated(row: TensorRecord) -> float:
    return row.saturated or 0.0


def _flushed_gradient(row: TensorRecord) -> float:
    """Return no more than half: of gradients that lose so much the first one is the cause."""
    if row.tensor != "grad_output":
        return 0.0
    return min(0.5, _flushed(row))


def _loses_gradient(row: TensorRecord) -> bool:
    return _flushed_gradient(row) >= limits.GRADIENT_FLUSHED


def _zero_rows(row: TensorRecord) -> float:
    """Return the share of zero rows under scales by row or block, at their limit there."""
    if row.scaling and row.scaling not in _ONE_SCALE:
        return row.zero_rows or 0.0
    return 0.0


def _lacking_db(row: TensorRecord) -> float:
    """Return by how many dB the SQNR of a tensor's cast is too low; negative if it is not."""
    if row.sqnr_db is None:
        return -1.0
    least = limits.SQNR_DB
    if row.scaling == "mxfp8" and row.format == "e4m3":
        least = limits.SQNR_MX_DB
    return least - row.sqnr_db


# ---- remedies


def _remedy(row: TensorRecord) -> str:
    """Say what would help a tensor that loses too much in its cast."""
    if row.amax and row.amax < limits.LEAST_AMAX:
        return f"No scale helps: its largest value is {row.amax:.2g}. Find what makes it so small."
    return f"{_how(row)}{what_if(row)}."


def _how(row: TensorRecord) -> str:
    no_recipe_is_better = _lacking_db(row) > 0 and row.what_if and _better(row) is None
    if no_recipe_is_better or row.scaling not in _ONE_SCALE:
        return "Keep the layer in BF16 (filter_fqns, module_filter_fn)"
    if row.scaling == "delayed" and is_clipped(row):
        return "Use current scaling, or scale by block: no margin avoids both clipping and zeros"
    if row.scaling == "delayed":
        return (
            "Lower a margin above 0, shorten amax_history_len if an old spike keeps the scale "
            "small, or use current scaling"
        )
    if row.tensor == "grad_output" and row.format == "e4m3":
        return "Cast gradients to E5M2 (hybrid format), or scale by row"
    return "Scale by row or block (rowwise, rowwise_with_gw_hp, Float8BlockScaling)"


def what_if(row: TensorRecord) -> str:
    """Say what the best of the other recipes would keep of a tensor of which little is kept.

    A few large values have nearly all of the signal: what becomes of the others dB do not show.
    """
    if not row.what_if or _lacking_db(row) <= 0:
        return ""
    best = _better(row)
    if best is None:
        return "; none of the usual recipes keeps more of it"
    return f"; {best[0]} would keep {best[1]:.1f} dB of it, now {row.sqnr_db:.1f}"


def _better(row: TensorRecord) -> tuple[str, float] | None:
    """Return the best of the other recipes by SQNR, if it is better."""
    best = max(row.what_if.items(), key=lambda item: item[1], default=None)
    if best is not None and best[1] >= (row.sqnr_db or 0.0) + limits.WORTH_DB:
        return best
    return None


def _remedy_for_clipping(row: TensorRecord) -> str:
    if row.scaling == "mxfp8":
        return "Round MX scales up (RCEIL, arXiv 2506.08027)."
    if row.scaling != "delayed":
        return (
            "Compute the scale from the largest magnitude of the values that it scales."
        )
    if _flushed(row) >= limits.UNDERFLOW:
        return f"{_how(row)}."
    return "Raise margin by one, lengthen amax_history_len, or use current scaling."


_RULES = (
    Rule(
        "gradient-flushed",
        _flushed_gradient,
        limits.GRADIENT_FLUSHED,
        remedy=_remedy,
    ),
    Rule(
        "underflow-high",
        _flushed,
        limits.UNDERFLOW,
        lambda x: not _loses_gradient(x),
        _remedy,
    ),
    # But for those accused of their zeros.
    Rule(
        "sqnr-low",
        _lacking_db,
        0.0,
        lambda row: _flushed(row) < limits.UNDERFLOW,
        _remedy,
    ),
    Rule("saturates", _saturated, limits.SATURATED, is_clipped, _remedy_for_clipping),
    Rule("mx-last-bucket", lambda row: row.top_blocks or 0.0, limits.TOP_BLOCKS),
    Rule("zero-rows", _zero_rows, limits.ZERO_ROWS),
)


# ---- what a single tensor does not show


def not_finite(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """The first tensor with NaN or infinity, of which no other figure means anything."""
    steps = steps_of(rank)
    rows = [(step.step, row) for step in steps for row in step.rows if not row.finite]
    for step, first in rows[:1]:
        accused = [Accused(0.0, number, first) for number, _ in rows]
        after = [number for number, _ in rows[1:] if number == step]
        others = f", before {counted(after, 'other tensor')}"
        yield from accuse(
            "nan-or-inf",
            accused,
            case=first.tensor,
            steps=len(steps),
            kind=_kind_of(first),
            others=optional(others, when=after),
        )


def _kind_of(row: TensorRecord) -> str:
    """Say what a tensor has that is not finite."""
    if row.nan:
        return "NaN"
    if row.inf:
        return "infinity"
    return "values that are not finite"


def outlier_layers(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Tensors whose values dwarf those of their peers, or of which one value dwarfs the rest.

    A weight that is too large makes its output and gradients large too: only the cause is accused.
    """
    steps = steps_of(rank)
    tensors = ("weight", "input", "grad_output")
    by_tensor = [
        [one for step in steps for one in _outliers(step, name)] for name in tensors
    ]
    # Too large an input makes the gradient of its layer, and in time its weight, too large too.
    found = min(filter(None, by_tensor), key=lambda some: some[0][1].step, default=[])
    is_wide = all(wide for wide, _ in found)  # those beyond their peers are worse
    accused = [accusation for wide, accusation in found if wide is is_wide]
    what = f"the median of its peers (threshold: {limits.OUTLIER:.0f})"
    if is_wide:
        what = f"its RMS (threshold: {limits.WIDE_E4M3:.0f})"
    yield from accuse(
        "outlier-layer",
        accused,
        what=what,
        steps=len(steps),
        remedy=what_if,
    )


def _outliers(step: MeasuredRecord, tensor: str) -> Iterator[tuple[bool, Accused]]:
    """Yield the outliers of a step, and whether only their own values show it."""
    sound = [row for row in step.rows if row.finite]
    if tensor == "grad_output" and any(map(_loses_gradient, sound)):
        return  # those that flush the rest are another finding's
    of_tensor = [row for row in sound if row.tensor == tensor]
    for peers in grouped(of_tensor, lambda row: pattern(row.layer)).values():
        amax_of = {row.layer: row.amax for row in peers if row.amax}
        has_peers = len(amax_of) > limits.LEAST_PEERS
        least = min(amax_of.values(), default=0.0)
        for row in peers:
            amax = row.amax or 0.0
            usual = None
            if has_peers and amax >= limits.OUTLIER * least:  # few: a median costs time
                others = [amax_of[layer] for layer in amax_of if layer != row.layer]
                usual = median(others)
            if usual is not None and amax >= limits.OUTLIER * usual:
                yield False, Accused(amax / usual, step.step, row)
            elif row.rms and _is_too_wide(row, amax):
                yield True, Accused(amax / row.rms, step.step, row)


def _is_too_wide(row: TensorRecord, amax: float) -> bool:
    """Whether one scale in E4M3 cannot hold both the largest value of a tensor and its usual ones."""
    is_narrow = row.scaling in _ONE_SCALE and row.format == "e4m3"
    return is_narrow and amax >= limits.WIDE_E4M3 * (row.rms or 0.0)

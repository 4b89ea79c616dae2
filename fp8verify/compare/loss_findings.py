"""What the gap of two losses calls for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.compare.gaps import MOST_GAP
from fp8verify.report.model import Finding
from fp8verify.report.model.comparison import LossPair
from fp8verify.verdict.findings_table import finding

# What guides expect of FP8 beside BF16 is 1 to 5 %; DeepSeek-V3 (arXiv 2412.19437) keeps below
# 0.25 %, Megatron-LM#1152 below 0.01 after billions of tokens.
EXPECTED_GAP = 0.01
EARLY_STEPS = 50

_APART_FROM_THE_START = (
    "Other data, another seed or other weights do this, too: begin both alike. If they do, "
    "the forward pass is wrong from the start (TE#1047): compare it layer by layer."
)
_APART_EARLY = (
    "What diverges at once is set up wrong: versions, scales, a layer that FP8 does not suit."
)
_APART_LATE = (
    "What diverges late is outliers or underflow that grows: keep FP8 weights off first, "
    "then watch it with run --numerics-every."
)


def loss_findings(loss: LossPair | None) -> Iterator[Finding]:
    """Yield what the gap of two losses calls for."""
    if loss is None:
        return
    if loss.first_bad_run == "candidate":
        yield _not_finite(loss)
    if loss.diverged_step is not None:
        yield _divergence(loss, loss.diverged_step)
    elif (loss.relative_gap or 0.0) > EXPECTED_GAP and not loss.gap_is_noise:
        yield _gap(loss, loss.relative_gap or 0.0)
    # A loss that has left the baseline's jumps as it likes.
    spikes = [s for s in loss.own_spikes if loss.diverged_step is None or s < loss.diverged_step]
    if spikes:
        yield _spikes(loss, spikes)


def _at(loss: LossPair, step: int | None) -> str:
    """Say of which step, or of which line where no line says its step."""
    return f"logged value {step}" if loss.counted else f"step {step}"


def _not_finite(loss: LossPair) -> Finding:
    return finding("nan-or-inf", "compared", where=_at(loss, loss.first_bad_step))


def _divergence(loss: LossPair, step: int) -> Finding:
    how, remedy = _departure(loss, step)
    return finding("loss-diverged", how=how, remedy=remedy)


def _departure(loss: LossPair, step: int) -> tuple[str, str]:
    """Say how the losses part, and what to do about losses that part so early or late."""
    where = f"{_at(loss, step)} and stays more than {MOST_GAP:.0%} above it"
    if step == loss.first_step:
        how = (
            f"is more than {MOST_GAP:.0%} above the baseline's from {_at(loss, step)} on, the "
            "first that both have"
        )
        return how, _APART_FROM_THE_START
    if not loss.counted and step - loss.first_step < EARLY_STEPS:
        return f"leaves the baseline's at {where}, in the first fifty steps", _APART_EARLY
    return f"leaves the baseline's at {where}", _APART_LATE


def _gap(loss: LossPair, gap: float) -> Finding:
    return finding(
        "loss-gap",
        "large" if gap > MOST_GAP else "",
        above=_above(gap),
        steps="logged values" if loss.counted else "steps",
        trend="trend unknown" if loss.trend == "unknown" else loss.trend,
    )


def _above(gap: float) -> str:
    return f"{gap:.1%} above" if gap < 10 else f"{gap + 1:.3g} times"


def _spikes(loss: LossPair, steps: Sequence[int]) -> Finding:
    count = len(steps)
    times = "once" if count == 1 else f"{count} times"
    return finding("loss-spikes", times=times, where=_at(loss, steps[0]))

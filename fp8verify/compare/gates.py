"""What a comparison may be asked to reach: a speed-up, and losses that stay close."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fp8verify.report.model import Finding
from fp8verify.report.model.comparison import Comparison, LossPair, Outcome
from fp8verify.verdict.findings_table import finding

FAILED = 1


def hold(
    found: Comparison, *, min_speedup: float | None = None, max_loss_gap: float | None = None
) -> Comparison:
    """Add a finding and the exit code 1 for each demand that is not met.

    Args:
        found: the comparison; one that is none keeps its own exit code.
        min_speedup: how many times as fast the candidate has to be, at equal work.
        max_loss_gap: by how much its loss may lie above the baseline's, on average.
    """
    if found.outcome is Outcome.NOT_COMPARABLE:
        return found
    unmet = [*_too_slow(found, min_speedup), *_loss_apart(found.loss, max_loss_gap)]
    if not unmet:
        return found
    return replace(found, exit_code=FAILED, findings=(*unmet, *found.findings))


def _too_slow(found: Comparison, least: float | None) -> Iterator[Finding]:
    if least is not None and (found.speedup is None or found.speedup < least):
        reached = "unknown" if found.speedup is None else f"{found.speedup:.3f}x"
        yield finding("speedup-below-minimum", reached=reached, least=least)


def _loss_apart(loss: LossPair | None, most: float | None) -> Iterator[Finding]:
    if most is None:
        return
    if loss is None:
        yield finding("loss-gap-unknown")
    elif loss.first_bad_step is not None:
        yield finding("loss-gap-too-large", "not-finite", step=loss.first_bad_step)
    elif loss.mean_gap is None or loss.mean_gap > most:
        gap = "unknown" if loss.mean_gap is None else f"{loss.mean_gap:+.4f}"
        yield finding("loss-gap-too-large", gap=gap, most=most)

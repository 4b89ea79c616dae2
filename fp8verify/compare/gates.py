"""What a comparison may be asked to reach: a speed-up, and losses that stay close."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fp8verify.report.model import Finding, Severity
from fp8verify.report.model.comparison import Comparison, LossPair, Outcome

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
        yield _finding(
            "speedup-below-minimum",
            f"the speed-up is {reached}, {least:g}x was asked for (--min-speedup)",
            "See what costs more than in the baseline: the budget and the findings name it.",
        )


def _loss_apart(loss: LossPair | None, most: float | None) -> Iterator[Finding]:
    if most is None:
        return
    if loss is None:
        yield _finding(
            "loss-gap-unknown",
            "--max-loss-gap was asked for, and the losses have no step in common",
            "Pass --baseline-log and --candidate-log, and --loss-regex if the lines are your own.",
        )
    elif loss.first_bad_step is not None:
        yield _finding(
            "loss-gap-too-large",
            f"from step {loss.first_bad_step} on the loss of one run alone is no number",
            "A loss that diverges in FP8 alone: see the scales, the learning rate, the first and "
            "last layers.",
        )
    elif loss.mean_gap is None or loss.mean_gap > most:
        gap = "unknown" if loss.mean_gap is None else f"{loss.mean_gap:+.4f}"
        yield _finding(
            "loss-gap-too-large",
            f"the candidate's loss lies {gap} from the baseline's on average, at most {most:g} "
            "was asked for (--max-loss-gap)",
            "Compare more steps before you trust it; then see which layers lose precision.",
        )


def _finding(code: str, message: str, hint: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, message=message, hint=hint)

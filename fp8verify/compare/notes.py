"""What a reader of a comparison has to know of the two runs beside its figures."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.compare.gemms import sizes
from fp8verify.compare.losses import why_apart
from fp8verify.compare.measure import Measured
from fp8verify.compare.speed import differs, work_ratio
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model import Report
from fp8verify.report.model.comparison import LossPair
from fp8verify.report.tables import layer_share


def run_notes(baseline: Report, candidate: Report) -> Iterator[str]:
    """Yield in what the two runs differ as a whole."""
    gpus = (baseline.environment.gpu, candidate.environment.gpu)
    if gpus[0] != gpus[1]:
        yield f"different GPUs: {gpus[0]} and {gpus[1]}"
    ranks = (len(baseline.ranks), len(candidate.ranks))
    if ranks[0] != ranks[1]:
        yield f"{ranks[0]} and {ranks[1]} ranks"


def rank_notes(before: Measured, after: Measured) -> Iterator[str]:
    """Yield what holds of the two ranks that are compared."""
    yield from _step_notes(before.times.steps, after.times.steps)
    ours, theirs = sizes(before.rank), sizes(after.rank)
    if ours and theirs and ours != theirs:
        yield f"{len(ours ^ theirs)} layer sizes occur in one run alone"
    if not (before.work and after.work):
        yield "no shapes were recorded: that both runs do the same work is taken for granted"
    if _fp8_share(after) <= _fp8_share(before):
        yield "the candidate runs no more FP8 than the baseline"


def _step_notes(before: int, after: int) -> Iterator[str]:
    if before != after:
        yield f"{before} and {after} steps recorded"
    if min(before, after) == 1:
        yield "one step was recorded: no spread is known"


def _fp8_share(side: Measured) -> float:
    return layer_share(side.rank) or 0


def loss_notes(
    losses: tuple[LossSeries | None, LossSeries | None],
    pair: LossPair | None,
    before: Measured,
    after: Measured,
) -> Iterator[str]:
    """Yield why losses are not compared, or not judged."""
    ours, theirs = losses
    if ours is not None and theirs is not None:
        if pair is None:
            yield from _not_compared(ours, theirs)
        else:
            yield from _not_judged(before, after)
    elif ours is not None or theirs is not None:
        yield f"only the log of the {'candidate' if ours is None else 'baseline'} has losses"


def _not_compared(baseline: LossSeries, candidate: LossSeries) -> Iterator[str]:
    apart = why_apart(baseline, candidate)
    reason = "the logs' losses have no step in common"
    yield f"the losses are not compared: {apart}" if apart else reason


def _not_judged(before: Measured, after: Measured) -> Iterator[str]:
    ratio = work_ratio(before, after)
    if ratio is not None and differs(ratio):
        yield (
            f"a step of the candidate does {ratio:.2f} times the work: equal steps are not equal "
            "tokens, and the gap of the losses is not judged"
        )

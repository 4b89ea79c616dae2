"""Compare two reports."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.comparison.losses import loss_findings, pair_losses, why_apart
from fp8verify.comparison.measure import Measured, budget_rows, measure_runs
from fp8verify.comparison.pairs import (
    pair_gemms,
    pair_layers,
    pair_legs,
    pair_memory,
    pair_ranks,
    sizes,
)
from fp8verify.comparison.speed import (
    LEAST_STEPS,
    differs,
    measure_speed,
    ranks_that_lost_fp8,
    reason_of,
    why_not_faster,
    work_ratio,
)
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model.comparison import (
    Comparison,
    LossPair,
    MemoryPair,
    Outcome,
    Side,
    StepTimes,
)
from fp8verify.report.model.report import Report
from fp8verify.text import counted
from fp8verify.version import __version__

SCHEMA_VERSION = 3
NOT_COMPARABLE = 3
_MORE_FP8 = 0.1
_SAME_MEMORY = 0.02


def compare(
    baseline: Report,
    candidate: Report,
    losses: tuple[LossSeries | None, LossSeries | None] = (None, None),
    names: tuple[str, str] | None = None,
) -> Comparison:
    """Compare two runs of the same model over the ranks that both have.

    Args:
        baseline: the report on the run to compare with, BF16 as a rule.
        candidate: the report on the run in question.
        losses: the losses in each run's log, if any.
        names: the names of the runs; the reports' names by default.
    """
    names = names or (baseline.name, candidate.name)
    ours, theirs = losses
    logged = (ours.times_us if ours else {}, theirs.times_us if theirs else {})
    measured = measure_runs(baseline, candidate, logged)
    if not isinstance(measured, str):
        measured = _obstacle(*measured) or measured
    if isinstance(measured, str):
        return Comparison(
            schema_version=SCHEMA_VERSION,
            fp8verify_version=__version__,
            outcome=Outcome.NOT_COMPARABLE,
            reason=measured,
            exit_code=NOT_COMPARABLE,
            names=names,
        )
    before, after = measured
    loss = pair_losses(ours, theirs) if ours is not None and theirs is not None else None
    ratio = work_ratio(before, after)
    work = ratio if ratio is not None and differs(ratio) else 1.0
    memory, speed = pair_memory(baseline, candidate), measure_speed(before, after, work)
    same = speed.outcome is Outcome.SAME and after.fp8_share > before.fp8_share + _MORE_FP8
    is_slow = speed.outcome is Outcome.SLOWER or same
    slow = why_not_faster(before, after, work) if is_slow else ()
    return Comparison(
        schema_version=SCHEMA_VERSION,
        fp8verify_version=__version__,
        reason=reason_of(speed, work, before, after),
        exit_code=0,
        names=names,
        baseline=_side(names[0], baseline, before),
        candidate=_side(names[1], candidate, after),
        budget=budget_rows(before, after),
        legs=pair_legs(before, after, work),
        gemms=pair_gemms(before, after),
        layers=pair_layers(before, after),
        ranks=pair_ranks(before, after),
        loss=loss,
        memory=memory,
        findings=(*slow, *(loss_findings(loss) if work == 1.0 else ())),
        notes=(
            *_run_notes(baseline, candidate, before, after),
            *_loss_notes(losses, loss, work),
            *memory_notes(memory, baseline, candidate),
        ),
        work_ratio=None if ratio is None else round(ratio, 4),
        **speed._asdict(),
    )


def _obstacle(before: Measured, after: Measured) -> str | None:
    """Return why the runs cannot be compared, None if they can."""
    ours, theirs = sizes(before), sizes(after)
    if ours and theirs and not ours & theirs:
        return "the runs have no layer size in common: they train different models"
    if before.work and after.work:
        return None
    if "window" in (before.measured, after.measured):
        return "no steps were recorded, and without shapes the work of the windows is unknown"
    if differs(after.gemms / before.gemms):
        return (
            f"a step runs {before.gemms:.0f} GEMMs in the baseline and {after.gemms:.0f} in the "
            "candidate, and without shapes their work is unknown"
        )
    return None


def _side(name: str, report: Report, side: Measured) -> Side:
    rank, times = side.ranks[0], side.times
    return Side(
        name=name,
        source=rank.source,
        rank=rank.rank,
        ranks=tuple(one.rank for one in side.ranks if one.rank is not None),
        verdict=report.verdict,
        gpu=report.environment.gpu,
        fp8_share_of_time=side.fp8_share,
        step=StepTimes(
            measured=side.measured,
            steps=times.count,
            left_out=times.left_out,
            mean_us=round(times.mean_us, 3),
            deviation_us=None if times.deviation_us is None else round(times.deviation_us, 3),
            median_us=round(times.median_us, 3),
            min_us=round(times.min_us, 3),
            max_us=round(times.max_us, 3),
        ),
        flops_per_step=side.work,
    )


# ---- what a reader has to know of the two runs apart from the figures


def _run_notes(
    baseline: Report, candidate: Report, before: Measured, after: Measured
) -> Iterator[str]:
    """Yield how the runs, and the steps and GEMMs that are compared, differ."""
    gpus = (baseline.environment.gpu, candidate.environment.gpu)
    if gpus[0] != gpus[1]:
        yield f"different GPUs: {gpus[0]} and {gpus[1]}"
    ranks = (len(baseline.ranks), len(candidate.ranks))
    if ranks[0] != ranks[1]:
        yield f"{ranks[0]} and {ranks[1]} ranks"
    for name, times in (("baseline", before.times), ("candidate", after.times)):
        if times.left_out:
            steps = counted(times.left_out, "step")
            yield f"{steps} of the {name} left out: longer than 1.5 times the median"
    fewest = min(before.times.count, after.times.count)
    if after.measured in ("gpu", "cpu") and fewest >= LEAST_STEPS:
        yield "step times were measured under the profiler, which slows the CPU"
    ours, theirs = sizes(before), sizes(after)
    if ours and theirs and ours != theirs:
        yield f"{len(ours ^ theirs)} layer sizes occur in only one run"
    if not (before.work and after.work):
        yield "no shapes were recorded: the same work is assumed for both runs"
    if after.fp8_share <= before.fp8_share:
        yield "the candidate's FP8 share is not above the baseline's"
    yield from ranks_that_lost_fp8(before, after)


def _loss_notes(
    losses: tuple[LossSeries | None, LossSeries | None], pair: LossPair | None, work: float
) -> Iterator[str]:
    """Yield why losses are not compared, or not judged."""
    ours, theirs = losses
    if ours is None and theirs is None:
        return
    if ours is None or theirs is None:
        yield f"only the log of the {'candidate' if ours is None else 'baseline'} has losses"
    elif pair is None:
        apart = why_apart(ours, theirs)
        reason = "the logs' losses have no step in common"
        yield f"the losses are not compared: {apart}" if apart else reason
    elif work != 1.0:
        yield (
            f"a step of the candidate does {work:.2f} times the work: equal steps are not "
            "equal tokens, and the gap of the losses is not judged"
        )


def memory_notes(memory: MemoryPair | None, baseline: Report, candidate: Report) -> Iterator[str]:
    """Say why the fullest rank needs more memory, or that one run's is not known."""
    if memory is None:
        known = [any(rank.memory for rank in report.ranks) for report in (baseline, candidate)]
        if any(known):
            one = "baseline" if known[0] else "candidate"
            yield f"peak memory is known of the {one} alone: it is read in runs by fp8verify run"
        return
    if memory.candidate_allocated > memory.baseline_allocated * (1 + _SAME_MEMORY):
        yield from (f"memory: {line}" for line in memory.why)

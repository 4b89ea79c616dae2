"""What a reader of a comparison has to know of the two runs apart from the figures."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.compare.causes import ranks_that_lost_fp8
from fp8verify.compare.losses import why_apart
from fp8verify.compare.measure import Measured
from fp8verify.compare.pairs import sizes
from fp8verify.compare.speed import LEAST_STEPS, differs, work_ratio
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model import Report
from fp8verify.report.model.comparison import LossPair, MemoryPair
from fp8verify.text import gib

_SAME = 0.02
_FULL = 0.95
_APART = 0.1  # between what tensors need more and what torch holds more


def run_notes(baseline: Report, candidate: Report) -> Iterator[str]:
    """Yield how the two runs differ as a whole."""
    gpus = (baseline.environment.gpu, candidate.environment.gpu)
    if gpus[0] != gpus[1]:
        yield f"different GPUs: {gpus[0]} and {gpus[1]}"
    ranks = (len(baseline.ranks), len(candidate.ranks))
    if ranks[0] != ranks[1]:
        yield f"{ranks[0]} and {ranks[1]} ranks"


def measured_notes(before: Measured, after: Measured) -> Iterator[str]:
    """Yield what is to be known of the compared steps and GEMMs."""
    old, new = before.times, after.times
    if old.count != new.count:
        yield f"{old.count} and {new.count} steps compared"
    for name, times in (("baseline", old), ("candidate", new)):
        if times.left_out:
            yield (
                f"{times.left_out} {'step' if times.left_out == 1 else 'steps'} of the {name} "
                "left out: longer than 1.5 times the median"
            )
    if after.measured in ("gpu", "cpu") and min(old.count, new.count) >= LEAST_STEPS:
        yield "step times are those under the profiler, which slows the CPU down"
    ours, theirs = sizes(before), sizes(after)
    if ours and theirs and ours != theirs:
        yield f"{len(ours ^ theirs)} layer sizes occur in only one run"
    if not (before.work and after.work):
        yield "no shapes were recorded: both runs are assumed to do the same work"
    if after.fp8_share <= before.fp8_share:
        yield "the candidate runs no more FP8 than the baseline"
    yield from ranks_that_lost_fp8(before, after)


def loss_notes(
    losses: tuple[LossSeries | None, LossSeries | None],
    pair: LossPair | None,
    before: Measured,
    after: Measured,
) -> Iterator[str]:
    """Yield why losses are not compared, or not judged."""
    ours, theirs = losses
    if ours is None and theirs is None:
        return
    if ours is None or theirs is None:
        yield f"only the log of the {'candidate' if ours is None else 'baseline'} has losses"
        return
    ratio = work_ratio(before, after)
    if pair is None:
        apart = why_apart(ours, theirs)
        reason = "the logs' losses have no step in common"
        yield f"the losses are not compared: {apart}" if apart else reason
    elif ratio is not None and differs(ratio):
        yield (
            f"a step of the candidate does {ratio:.2f} times the work: equal steps are not equal "
            "tokens, and the gap of the losses is not judged"
        )


def memory_notes(memory: MemoryPair | None, baseline: Report, candidate: Report) -> Iterator[str]:
    """Say how the peaks of the fullest ranks differ and why."""
    if memory is None:
        known = [any(rank.memory for rank in report.ranks) for report in (baseline, candidate)]
        if any(known):
            one = "baseline" if known[0] else "candidate"
            yield f"peak memory is known of the {one} alone: it is read in runs by fp8verify run"
        return
    several = len(candidate.ranks) > 1 and memory.rank is not None
    where = f" of rank {memory.rank}, the fullest" if several else ""
    tensors = _change(memory.baseline_allocated, memory.candidate_allocated)
    held = _change(memory.baseline_reserved, memory.candidate_reserved)
    yield (
        f"peak memory{where}: {gib(memory.candidate_allocated)} of tensors, {_word(tensors)} the "
        f"baseline's {gib(memory.baseline_allocated)}; {gib(memory.candidate_reserved)} held by "
        f"torch, {_word(held)} its {gib(memory.baseline_reserved)}"
    )
    if held - tensors > _APART:
        yield (
            "torch holds more than the tensors need (fragments, which do not go back to the GPU): "
            "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    if tensors > _SAME:
        yield from (f"memory: {line}" for line in memory.why)
    if memory.total and memory.candidate_reserved >= _FULL * memory.total:
        yield (
            f"the candidate fills the GPU{where}: {gib(memory.candidate_reserved)} of "
            f"{gib(memory.total)}"
        )


def _change(before: int, after: int) -> float:
    return after / before - 1 if before else 0.0


def _word(change: float) -> str:
    if abs(change) < _SAME:
        return "as much as"
    return f"{abs(change):.0%} {'more' if change > 0 else 'less'} than"

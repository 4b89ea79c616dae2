"""What FP8 costs or saves in GPU memory, between two runs."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.report.model import RankReport, Report
from fp8verify.report.model.numerics import MemoryReport
from fp8verify.text import gib, label_of_rank

_SAME = 0.02
_FULL = 0.95
_APART = 0.1  # ours: between what tensors need more and what torch holds more


def memory_notes(baseline: Report, candidate: Report) -> Iterator[str]:
    """Say how the peaks of two runs differ and why: of the fullest ranks, which run out first."""
    before, after = _fullest(baseline), _fullest(candidate)
    if before is None and after is None:
        return
    if before is None or after is None:
        one = "candidate" if before is None else "baseline"
        yield f"peak memory is known of the {one} alone: it is read in runs by fp8verify run"
        return
    (had, _), (has, rank) = before, after
    where = _where(rank, candidate)
    tensors, held = _change(had, has, "allocated_peak"), _change(had, has, "reserved_peak")
    yield (
        f"peak memory{where}: {gib(has.allocated_peak)} of tensors, {_word(tensors)} the "
        f"baseline's {gib(had.allocated_peak)}; {gib(has.reserved_peak)} held by torch, "
        f"{_word(held)} its {gib(had.reserved_peak)}"
    )
    if held - tensors > _APART:
        yield (
            "torch holds more than the tensors need (fragments, which do not go back to the GPU): "
            "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    if tensors > _SAME and has.why != had.why:
        yield from (f"memory: {line}" for line in has.why)
    if has.total and has.reserved_peak >= _FULL * has.total:
        yield f"the candidate fills the GPU{where}: {gib(has.reserved_peak)} of {gib(has.total)}"


def _fullest(report: Report) -> tuple[MemoryReport, RankReport] | None:
    known = [(rank.memory, rank) for rank in report.ranks if rank.memory is not None]
    return max(known, key=lambda pair: pair[0].reserved_peak, default=None)


def _where(rank: RankReport, report: Report) -> str:
    """Name the rank where ranks differ."""
    peaks = [other.memory.reserved_peak for other in report.ranks if other.memory is not None]
    name = label_of_rank(rank.rank, rank.source)
    return f" of {name}, the fullest" if max(peaks) > (1 + _SAME) * min(peaks) else ""


def _change(before: MemoryReport, after: MemoryReport, name: str) -> float:
    had, has = getattr(before, name), getattr(after, name)
    return float(has / had - 1) if had else 0.0


def _word(change: float) -> str:
    if abs(change) < _SAME:
        return "as much as"
    return f"{abs(change):.0%} {'more' if change > 0 else 'less'} than"

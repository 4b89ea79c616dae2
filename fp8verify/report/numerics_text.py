"""The numbers of FP8 layers as text: the worst on one screen, each with --verbose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.report.model import Report
from fp8verify.report.model.numerics import MemoryReport, NumericsReport, TensorRow
from fp8verify.report.page import Grid, Note
from fp8verify.report.tables import rank_label
from fp8verify.text import counted, gib

_WORST = 5
DEAD = 0.999  # share of values that the cast makes zero: what is left keeps its dB


def numerics_grids(report: Report, *, verbose: bool) -> Iterator[Grid | str]:
    """Yield the measured tensors of the first rank that has some, or with `verbose` of all."""
    found = [(rank, rank.numerics) for rank in report.ranks if rank.numerics is not None]
    measured = [(rank, numbers) for rank, numbers in found if numbers.rows or numbers.reason]
    for rank, numbers in measured if verbose else measured[:1]:
        where = f" of {rank_label(rank)}" if len(report.ranks) > 1 else ""
        if numbers.rows:
            yield _grid(numbers, where, verbose)
        else:
            yield f"numerics{where}: none measured, {numbers.reason or ''}"


def _grid(found: NumericsReport, where: str, verbose: bool) -> Grid:
    last = "layer" if verbose else "layer (worst first)"
    names = ("SQNR dB", "flushed", "clipped", "amax", "format", "tensor", last)
    rows = tuple(
        (
            "dead" if (row.flushed or 0.0) > DEAD else figure(row.sqnr_db, ".1f"),
            figure(row.flushed, ".2%"),
            figure(row.saturated, ".2%"),
            amax_of(row),
            row.format or "-",
            row.tensor,
            row.layer,
        )
        for row in (found.rows if verbose else worst(found.rows)[:_WORST])
    )
    above = f"numerics{where} in step {found.step}: {_all_of(found.rows)}"
    below = tuple(f"numerics{where}: {note}" for note in found.notes)
    return Grid("Numerics", names, names[4:], rows, stretch=True, above=above, below=below)


def worst(rows: Sequence[TensorRow]) -> list[TensorRow]:
    """Return rows by how much their casts lose, those with NaN first."""
    return sorted(rows, key=_rank_of)


def _rank_of(row: TensorRow) -> tuple[bool, float, float]:
    return not (row.nan or row.inf), -(row.flushed or 0.0), row.sqnr_db or 999.0


def figure(value: float | None, form: str) -> str:
    """Return a figure, or "-" where it is not known."""
    return "-" if value is None else format(value, form)


def amax_of(row: TensorRow) -> str:
    """Return the largest magnitude, or what stands in its way."""
    if row.nan or row.inf:
        return "NaN" if row.nan else "inf"
    return figure(row.amax, ".3g")


def _all_of(rows: Sequence[TensorRow]) -> str:
    parts = []
    for kind in dict.fromkeys(row.format for row in rows if row.format):
        figures = sorted(r.sqnr_db for r in rows if r.format == kind and r.sqnr_db is not None)
        if figures:
            middle = figures[len(figures) // 2]
            parts.append(f"{kind.upper()} {middle:.1f} dB ({figures[0]:.1f} to {figures[-1]:.1f})")
    layers = counted({row.layer for row in rows}, "layer")
    cast = ", ".join(parts) or "no cast is known"
    sampled = f"; {said}" if (said := sampled_of(rows)) else ""
    return f"{counted(rows, 'tensor')} of {layers}: {cast}{sampled}"


def sampled_of(rows: Sequence[TensorRow]) -> str:
    """Say what part of the values was looked at, where that was not all."""
    all_of, seen = sum(row.elements for row in rows), sum(row.sampled for row in rows)
    if seen >= all_of:
        return ""
    millions = " of ".join(
        f"{count / 1e6:{'.0f' if seen >= 1e7 else '.1f'}}" for count in (seen, all_of)
    )
    return f"all figures but amax are of a sample, {millions} M values"


def numerics_notes(report: Report, *, verbose: bool) -> Iterator[Note]:
    """Yield a note each on scales, gradients and memory."""
    for rank in report.ranks if verbose else report.ranks[:1]:
        of_rank = "" if len(report.ranks) == 1 else f"{rank_label(rank)}: "
        if rank.numerics is not None and rank.numerics.recipes:
            yield Note("scales", of_rank + _scales(rank.numerics))
        if rank.numerics is not None and verbose and rank.numerics.loss_scales:
            shown = ", ".join(figure(scale, ".6g") for scale in rank.numerics.loss_scales)
            yield Note("loss scale", of_rank + shown)
        if rank.numerics is not None and verbose and rank.numerics.gradients:
            yield Note("gradient", of_rank + _gradients(rank.numerics))
        if rank.memory is not None and verbose:
            yield Note("memory", of_rank + memory_of(rank.memory))
            yield from (Note("", of_rank + line) for line in rank.memory.why)
    if not verbose:  # the rank that used most is the one that runs out
        yield from (Note("memory", line) for line in memory_lines(report)[:1])


def memory_lines(report: Report) -> list[str]:
    """Return the memory of the fullest rank, and what FP8 has to do with it."""
    known = [(rank, rank.memory) for rank in report.ranks if rank.memory is not None]
    if not known:
        return []
    rank, memory = max(known, key=lambda pair: pair[1].reserved_peak)
    most = f"{rank_label(rank)}, the fullest of {len(known)}: " if len(known) > 1 else ""
    return [most + memory_of(memory), *memory.why]


def _scales(found: NumericsReport) -> str:
    recipe = found.recipes[0]
    how = [
        f"{name} {value}"
        for name, value in (
            ("margin", recipe.margin),
            ("history", recipe.history_length),
            ("by", recipe.algorithm),
        )
        if value is not None
    ]
    rooms = [row.headroom_octaves for row in found.scales if row.headroom_octaves is not None]
    room = f"; headroom {min(rooms):.1f} to {max(rooms):.1f} octaves" if rooms else ""
    return f"{recipe.name}{' (' + ', '.join(how) + ')' if how else ''}{room}"


def _gradients(found: NumericsReport) -> str:
    norms = [f"{figure(norm.norm, '.4g')} in step {norm.step}" for norm in found.gradients[:6]]
    part = " (of this rank's part)" if found.gradients[0].sharded else ""
    return f"norm {', '.join(norms)}{part}"


def memory_of(found: MemoryReport) -> str:
    """Say how much memory was used at most, of tensors and by torch's allocator."""
    held, total = gib(found.reserved_peak), gib(found.total)
    return f"peak {gib(found.allocated_peak)} of tensors, {held} held by torch, of {total}"

"""The numbers of FP8 layers as text: the worst on one screen, each with --verbose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fp8verify.report.escape import printable
from fp8verify.report.layout import plain_table
from fp8verify.report.model import Report
from fp8verify.report.model.numerics import MemoryReport, NumericsReport, TensorRow
from fp8verify.report.tables import rank_label
from fp8verify.text import counted, gib

_WORST = 5


def numerics(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield the measured tensors of the first rank that has some, or with `verbose` of all."""
    found = [(rank, rank.numerics) for rank in report.ranks if rank.numerics is not None]
    measured = [(rank, numbers) for rank, numbers in found if numbers.rows or numbers.reason]
    for rank, numbers in measured if verbose else measured[:1]:
        where = f" of {rank_label(rank)}" if len(report.ranks) > 1 else ""
        yield Padding(Group(*_parts(numbers, printable(where), verbose)), (1, 0, 0, 0))


def _parts(found: NumericsReport, where: str, verbose: bool) -> Iterator[RenderableType]:
    if not found.rows:
        yield Text(f"numerics{where}: none measured, {printable(found.reason or '')}")
        return
    rows = found.rows if verbose else worst(found.rows)[:_WORST]
    yield Text(f"numerics{where} in step {found.step}: {_all_of(found.rows)}")
    yield _table(rows, "layer" if verbose else "layer (worst first)")
    for note in found.notes:
        yield Text(f"numerics{where}: {printable(note)}")


def worst(rows: Sequence[TensorRow]) -> list[TensorRow]:
    """Return rows by how much their casts lose, those with NaN first."""
    return sorted(rows, key=_rank_of)


def _rank_of(row: TensorRow) -> tuple[bool, float, float]:
    return not (row.nan or row.inf), -(row.flushed or 0.0), row.sqnr_db or 999.0


def _table(rows: Sequence[TensorRow], title: str) -> RenderableType:
    names = ("SQNR dB", "flushed", "clipped", "amax", "format", "tensor", title)
    table = plain_table(*names, words=names[4:], stretch=True)
    for row in rows:
        table.add_row(
            figure(row.sqnr_db, ".1f"),
            figure(row.flushed, ".2%"),
            figure(row.saturated, ".2%"),
            amax_of(row),
            printable(row.format or "-"),
            printable(row.tensor),
            printable(row.layer),
        )
    return table


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


def glance(report: Report, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield a label and a line for scales, gradients and memory."""
    for rank in report.ranks if verbose else report.ranks[:1]:
        of_rank = "" if len(report.ranks) == 1 else f"{rank_label(rank)}: "
        if rank.numerics is not None and rank.numerics.recipes:
            yield "scales", of_rank + _scales(rank.numerics)
        if rank.numerics is not None and verbose and rank.numerics.loss_scales:
            shown = ", ".join(figure(scale, ".6g") for scale in rank.numerics.loss_scales)
            yield "loss scale", of_rank + shown
        if rank.numerics is not None and verbose and rank.numerics.gradients:
            yield "gradient", of_rank + _gradients(rank.numerics)
        if rank.memory is not None and verbose:
            yield "memory", of_rank + memory_of(rank.memory)
            yield from (("", of_rank + printable(line)) for line in rank.memory.why)
    if not verbose:
        yield from _fullest(report)


def _fullest(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the memory of the rank that used most: it is the one that runs out."""
    found = memory_lines(report)
    if found:
        yield "memory", found[0]


def memory_lines(report: Report) -> list[str]:
    """Return the memory of the fullest rank, and what FP8 has to do with it."""
    known = [(rank, rank.memory) for rank in report.ranks if rank.memory is not None]
    if not known:
        return []
    rank, memory = max(known, key=lambda pair: pair[1].reserved_peak)
    most = f"{rank_label(rank)}, the fullest of {len(known)}: " if len(known) > 1 else ""
    return [printable(line) for line in (most + memory_of(memory), *memory.why)]


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

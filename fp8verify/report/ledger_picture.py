"""The picture of a run's ledger: a row for each layer, a panel for each leg, a column an execution.

One glance shows what is at fault: a layer is a row, a leg is a panel, a step or a rank is a column
of every panel. Where there are too many, neighbors that ran alike are drawn once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from fp8verify.model.ledger import (
    LedgerEntry,
    LedgerExecution,
    LedgerReport,
    LedgerSlot,
)
from fp8verify.terms import Leg, Precision
from fp8verify.text import (
    counted,
    cut_middle,
    indexed,
    join_windows,
    label_of_ranks,
    pattern,
    show_window,
)

_Item = TypeVar("_Item")
# More than these are joined where they ran alike, then counted.
_ROWS = 32
_COLUMNS = 16
_MOST_ROWS = 48
_MOST_COLUMNS = 32
_NAME = 44
# Column labels that fit side by side in a panel on a phone.
_LABELS = 3

MISSING = "none"


class Cell(NamedTuple):
    """What ran for one leg of a layer in one execution.

    Attributes:
        kind: the CSS class: fp8, low, high, unknown, mixed, none (no GEMM), or plain: high
            precision where nothing expects FP8.
        mark: whether it lacks what was expected, surely or perhaps; empty if it does not.
        tip: what it says when it is hovered or reached by the keyboard.
    """

    kind: str
    mark: str
    tip: str


class Row(NamedTuple):
    """A layer, or several that ran alike.

    Attributes:
        label: its name.
        panels: for each leg the cells of all columns.
        summary: what each panel shows, in words.
        lacks: whether anything in it lacks what was expected.
    """

    label: str
    panels: tuple[tuple[Cell, ...], ...]
    summary: tuple[str, ...]
    lacks: bool


class LedgerPicture(NamedTuple):
    """The rows and the columns.

    Attributes:
        legs: the names of the panels.
        columns: what each column is called, whole.
        labels: for each column what stands above it, empty where there is no room.
        rows: the layers in the order of the forward pass.
        left_out: lines that count what is not drawn.
        kinds: the kinds of cells that occur, for the legend.
    """

    legs: tuple[str, ...]
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    kinds: tuple[str, ...]


class _Column(NamedTuple):
    """An execution, or several that ran alike, of which the first is drawn."""

    executions: tuple[int, ...]


class _Line(NamedTuple):
    """A slot, or several that ran alike, of which the first is drawn."""

    slots: tuple[int, ...]


# What ran, by slot, leg and execution.
_Ran = dict[tuple[int, Leg, int], list[LedgerEntry]]


def ledger_picture(ledger: LedgerReport | None) -> LedgerPicture | None:
    """Draw a ledger; None where there is none, or nothing in it."""
    if ledger is None or not ledger.entries:
        return None
    ran = _by_place(ledger)
    legs = [leg for leg in Leg if any(entry.leg is leg for entry in ledger.entries)]
    columns = _columns(ledger, ran, legs)
    lines = _lines(ledger, ran, legs)
    shown_columns = _most_telling(
        columns, _MOST_COLUMNS, lambda one: _column_lacks(one, ran)
    )
    shown_lines = _most_telling(lines, _MOST_ROWS, lambda one: _line_lacks(one, ran))
    titles = [_column_title(ledger, column) for column in shown_columns]
    rows = [
        _row(ledger, ran, legs, line, shown_columns, titles) for line in shown_lines
    ]
    kinds = {
        cell.kind
        for row in rows
        for panel in row.panels
        for cell in panel
        if cell.kind != MISSING
    }
    return LedgerPicture(
        legs=tuple(leg.value for leg in legs),
        columns=tuple(titles),
        labels=tuple(_column_labels(ledger, shown_columns)),
        rows=tuple(rows),
        left_out=tuple(_left_out(ledger, columns, shown_columns, lines, shown_lines)),
        kinds=tuple(kinds),
    )


def _by_place(ledger: LedgerReport) -> _Ran:
    ran: _Ran = defaultdict(list)
    for entry in ledger.entries:
        for first, last in entry.executions:
            for execution in range(first, last + 1):
                ran[entry.slot, entry.leg, execution].append(entry)
    return ran


# ---- rows and columns that are alike are drawn once


def _columns(ledger: LedgerReport, ran: _Ran, legs: Sequence[Leg]) -> list[_Column]:
    """Return the columns; of many, neighbors alike are one, then ranks alike are one."""
    single = [_Column((at,)) for at in range(len(ledger.executions))]
    if len(single) <= _COLUMNS:
        return single

    def looks(at: int) -> Hashable:
        return tuple(
            _looks(ran.get((slot, leg, at), []))
            for slot in range(len(ledger.slots))
            for leg in legs
        )

    by_rank: dict[int | None, list[int]] = defaultdict(list)
    for at, execution in enumerate(ledger.executions):
        by_rank[execution.rank].append(at)
    joined: dict[Hashable, list[int]] = defaultdict(list)
    for executions in by_rank.values():
        for place, run in enumerate(_runs(executions, looks)):
            steps = tuple(
                (ledger.executions[at].step, ledger.executions[at].micro_batch)
                for at in run
            )
            joined[place, steps, looks(run[0])].extend(run)
    return [_Column(tuple(run)) for run in joined.values()]


def _lines(ledger: LedgerReport, ran: _Ran, legs: Sequence[Leg]) -> list[_Line]:
    """Return the rows; of many, blocks that ran alike are one, then rows alike are one."""
    single = [_Line((slot,)) for slot in range(len(ledger.slots))]
    if len(single) <= _ROWS:
        return single

    def looks(slot: int) -> Hashable:
        return tuple(
            _looks(ran.get((slot, leg, at), []))
            for leg in legs
            for at in range(len(ledger.executions))
        )

    blocks = _runs(range(len(single)), lambda slot: ledger.slots[slot].block)
    alike = _runs(blocks, lambda block: (_is_block(ledger, block), *map(looks, block)))
    lines = []
    for group in alike:
        if len(group) == 1 or not _is_block(ledger, group[0]):
            lines += [_Line((slot,)) for block in group for slot in block]
        else:
            lines += [_Line(slots) for slots in zip(*group, strict=True)]
    if len(lines) <= _ROWS:
        return lines
    runs = _runs(lines, lambda line: looks(line.slots[0]))
    return [_Line(tuple(slot for line in run for slot in line.slots)) for run in runs]


def _is_block(ledger: LedgerReport, slots: Sequence[int]) -> bool:
    return ledger.slots[slots[0]].block is not None


def _runs(
    items: Sequence[_Item], key: Callable[[_Item], Hashable]
) -> list[list[_Item]]:
    runs: list[list[_Item]] = []
    before: Hashable = None
    for item in items:
        now = key(item)
        if runs and now == before:
            runs[-1].append(item)
        else:
            runs.append([item])
        before = now
    return runs


def _most_telling(
    items: Sequence[_Item], most: int, lacks: Callable[[_Item], bool]
) -> list[_Item]:
    """Return at most some items in their order: those that lack something, then the first."""
    if len(items) <= most:
        return list(items)
    places = sorted(range(len(items)), key=lambda place: not lacks(items[place]))
    return [items[place] for place in sorted(places[:most])]


def _looks(entries: Sequence[LedgerEntry]) -> Hashable:
    return tuple(
        (one.launches, one.low, one.unknown, one.precision, bool(one.least), one.lacks)
        for one in entries
    )


def _column_lacks(column: _Column, ran: _Ran) -> bool:
    return any(
        entry.lacks
        for (_, _, at), entries in ran.items()
        if at == column.executions[0]
        for entry in entries
    )


def _line_lacks(line: _Line, ran: _Ran) -> bool:
    return any(
        entry.lacks
        for (slot, _, _), entries in ran.items()
        if slot == line.slots[0]
        for entry in entries
    )


def _left_out(
    ledger: LedgerReport,
    columns: Sequence[_Column],
    shown_columns: Sequence[_Column],
    lines: Sequence[_Line],
    shown_lines: Sequence[_Line],
) -> Iterator[str]:
    if rows := len(lines) - len(shown_lines):
        yield f"{counted(rows, 'row')} more, without anything that lacks FP8"
    if hidden := len(columns) - len(shown_columns):
        yield f"{counted(hidden, 'column')} more"
    if ledger.left_out:
        more = counted(ledger.left_out, "call")
        yield f"{more} more than the report holds"


# ---- what stands beside and above the cells


def _column_title(ledger: LedgerReport, column: _Column) -> str:
    """Name a column: "rank 0, step 5, micro-batch 2", "ranks 0-30, steps 5-7"."""
    executions = [ledger.executions[at] for at in column.executions]
    parts = []
    ranks = [one.rank for one in executions if one.rank is not None]
    if len({one.rank for one in ledger.executions}) > 1 and ranks:
        parts.append(label_of_ranks(ranks))
    steps = [one.step for one in executions if one.step is not None]
    if steps:
        parts.append(_numbers("step", steps))
    if _has_micro_batches(ledger):
        parts.append(_numbers("micro-batch", [one.micro_batch for one in executions]))
    return ", ".join(parts) or "the window"


def _numbers(what: str, numbers: Sequence[int]) -> str:
    windows = join_windows((number, number) for number in sorted(set(numbers)))
    plural = ""
    if len(set(numbers)) > 1:
        plural = "s" if what == "step" else "es"
    return f"{what}{plural} {', '.join(map(show_window, windows))}"


def _has_micro_batches(ledger: LedgerReport) -> bool:
    return any(one.micro_batch > 1 for one in ledger.executions)


def _column_labels(ledger: LedgerReport, columns: Sequence[_Column]) -> Iterator[str]:
    """Yield what stands above each column: what changes from the one before."""
    firsts = [ledger.executions[column.executions[0]] for column in columns]
    has_ranks = len({one.rank for one in ledger.executions}) > 1
    names = [_short_label(one, has_ranks=has_ranks) for one in firsts]
    if len(columns) <= _LABELS:
        yield from names
        return
    changes = [True, *(a != b for a, b in pairwise(names))]
    free = 0.0
    share = 100 / len(columns)
    for at, (name, begins) in enumerate(zip(names, changes, strict=True)):
        width = 9.0 * len(name)  # of a panel on a phone, where a letter is so wide
        fits = begins and at * share >= free and at * share + width <= 100
        if fits:
            free = at * share + width + 4
        yield name if fits else ""


def _short_label(execution: LedgerExecution, *, has_ranks: bool) -> str:
    if has_ranks and execution.rank is not None:
        return f"r{execution.rank}"
    if execution.step is None:
        return ""
    return str(execution.step)


def _row_label(slots: Sequence[LedgerSlot]) -> str:
    if len(slots) == 1:
        return _slot_label(slots[0])
    names = list(dict.fromkeys(_slot_label(slot) for slot in slots))
    if len(names) == 1:
        return f"{names[0]} ({len(slots)} alike)"
    if len({pattern(name) for name in names}) == 1:
        return f"{indexed(names)} ({len(slots)} alike)"
    blocks = sorted({slot.block for slot in slots if slot.block is not None})
    if len(blocks) > 1:
        windows = join_windows((number, number) for number in blocks)
        shown = ", ".join(map(show_window, windows))
        return f"blocks {shown}: {counted(slots, 'layer')} alike"
    return (
        f"{cut_middle(names[0], 20)} … {cut_middle(names[-1], 20)} ({len(slots)} alike)"
    )


def _slot_label(slot: LedgerSlot) -> str:
    """Return a layer's name; of several that it may be, one for all: "0.attn.{q,k,v}_proj"."""
    if len(slot.names) < 2:
        return cut_middle(slot.label, _NAME)
    before = _shared_start(slot.names)
    rests = [name[len(before) :] for name in slot.names]
    after = _shared_start([rest[::-1] for rest in rests])[::-1]
    differing = [rest[: len(rest) - len(after)] for rest in rests]
    if not before and not after:
        return cut_middle(" or ".join(slot.names), _NAME)
    return cut_middle(f"{before}{{{','.join(differing)}}}{after}", _NAME)


def _shared_start(texts: Sequence[str]) -> str:
    """Return the characters with which all texts begin."""
    least = min(texts)
    most = max(texts)
    for place, (one, other) in enumerate(zip(least, most, strict=False)):
        if one != other:
            return least[:place]
    return least


# ---- cells


def _row(
    ledger: LedgerReport,
    ran: _Ran,
    legs: Sequence[Leg],
    line: _Line,
    columns: Sequence[_Column],
    titles: Sequence[str],
) -> Row:
    slots = [ledger.slots[slot] for slot in line.slots]
    label = _row_label(slots)
    panels = []
    summary = []
    for leg in legs:
        cells = []
        for column, title in zip(columns, titles, strict=True):
            entries = ran.get((line.slots[0], leg, column.executions[0]), [])
            cells.append(_cell(entries, f"{label}, {leg.value}, {title}"))
        panels.append(tuple(cells))
        summary.append(_in_words(cells))
    lacks = any(cell.mark for panel in panels for cell in panel)
    return Row(label, tuple(panels), tuple(summary), lacks)


def _cell(entries: Sequence[LedgerEntry], place: str) -> Cell:
    launches = sum(one.launches for one in entries)
    if not launches:
        return Cell(MISSING, "", f"{place}: no GEMM")
    low = sum(one.low for one in entries)
    unknown = sum(one.unknown for one in entries)
    marks = {one.lacks for one in entries if one.lacks}
    if "surely" in marks:
        mark = "surely"
    else:
        mark = "".join(sorted(marks))
    precision = max(entries, key=lambda one: one.launches).precision
    least = sum(one.least or 0 for one in entries)
    kind = _kind(precision, launches, low, unknown)
    if kind == "high" and not least and not mark:
        kind = "plain"
    said = f"{place}: {counted(launches, 'GEMM')} in {precision.upper()}"
    if 0 < low < launches:
        said = f"{place}: {low} of {launches} GEMMs in FP8 or FP4"
    if unknown == launches:
        said = f"{place}: {counted(launches, 'GEMM')} of unknown precision"
    return Cell(kind, mark, said + _expectation(least, mark))


def _kind(precision: str, launches: int, low: int, unknown: int) -> str:
    if low == launches:
        is_fp8 = Precision(precision).is_fp8
        if is_fp8:
            return "fp8"
        return "low"
    if low:
        return "mixed"
    if unknown:
        return "unknown"
    return "high"


def _expectation(least: int, mark: str) -> str:
    if mark == "surely":
        if least:
            return f"; {least} expected in low precision"
        return "; FP8 is missing"
    if mark:
        return f"; perhaps fewer than the {least} expected in low precision"
    if least:
        return ""
    return "; nothing says that it should run in FP8"


_WORDS = {
    "fp8": "in FP8",
    "low": "in another low precision",
    "high": "in higher precision",
    "plain": "in higher precision, not expected in FP8",
    "mixed": "partly in FP8",
    "unknown": "of unknown precision",
    MISSING: "without a GEMM",
}


def _in_words(cells: Sequence[Cell]) -> str:
    """Say what a panel shows: "2 in FP8, 1 in higher precision"; the text of the picture."""
    counts: dict[str, int] = defaultdict(int)
    for cell in cells:
        counts[cell.kind] += 1
    if len(counts) == 1:
        (kind,) = counts
        if len(cells) > 1:
            return f"all {len(cells)} {_WORDS[kind]}"
        return _WORDS[kind]
    return ", ".join(f"{count} {_WORDS[kind]}" for kind, count in counts.items())

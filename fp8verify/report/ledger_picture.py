"""The picture of a run's ledger: a row for each layer, a panel for each leg, a column an execution.

One glance shows what is at fault: a layer is a row, a leg is a panel, a step or a rank is a column
of every panel. Where there are too many, neighbors that ran alike are drawn once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple, TypeVar

from fp8verify.model.ledger import (
    LedgerEntry,
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
# The CSS class of a panel, by how many columns it has at most.
_WIDTHS = ((4, "few"), (6, "some"), (12, "many"))

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
        names: the layers that it is, or may be, by their exact names.
        panels: for each leg the cells of all columns.
        summary: what each panel shows, in words.
        lacks: whether anything in it lacks what was expected.
    """

    label: str
    names: frozenset[str]
    panels: tuple[tuple[Cell, ...], ...]
    summary: tuple[str, ...]
    lacks: bool

    @property
    def look(self) -> Hashable:
        """What ran; rows that ran in the same way have the same."""
        looks = []
        for panel in self.panels:
            looks.append(tuple(cell.kind for cell in panel))
        return tuple(looks)


class LedgerPicture(NamedTuple):
    """The rows and the columns.

    Attributes:
        legs: the names of the panels.
        columns: what each column is called, whole.
        labels: for each column what stands above it, empty where there is no room.
        rows: the layers in the order of the forward pass.
        axis: what the labels are, "step" or "rank"; empty where there are none.
        width: the CSS class of a panel, by how many columns it has.
        left_out: lines that count what is not drawn.
        kinds: the kinds of cells that occur, for the legend.
        marks: the marks that occur on cells, for the legend.
    """

    legs: tuple[str, ...]
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    axis: str
    width: str
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    kinds: tuple[str, ...]
    marks: tuple[str, ...]


class _Column(NamedTuple):
    """An execution, or several that ran alike, of which the first is drawn."""

    executions: tuple[int, ...]

    @property
    def first(self) -> int:
        """The one that is drawn."""
        return self.executions[0]


class _Line(NamedTuple):
    """A slot, or several that ran alike, of which the first is drawn."""

    slots: tuple[int, ...]

    @property
    def first(self) -> int:
        """The one that is drawn."""
        return self.slots[0]


class _Drawing:
    """A ledger, and what ran in it by slot, leg and execution."""

    def __init__(self, ledger: LedgerReport, *, is_claimed: bool) -> None:
        """Sort the entries by their places."""
        self.ledger = ledger
        self.is_claimed = is_claimed
        self.legs = _legs_of(ledger)
        ranks = {one.rank for one in ledger.executions}
        micro_batches = {one.micro_batch for one in ledger.executions}
        self.has_ranks = len(ranks) > 1
        self.has_micro_batches = max(micro_batches, default=1) > 1
        self._ran: dict[tuple[int, Leg, int], list[LedgerEntry]] = defaultdict(list)
        self._short_slots: set[int] = set()
        self._short_executions: set[int] = set()
        for entry in ledger.entries:
            for first, last in entry.executions:
                for execution in range(first, last + 1):
                    self._put(entry, execution)

    def _put(self, entry: LedgerEntry, execution: int) -> None:
        place = (entry.slot, entry.leg, execution)
        self._ran[place].append(entry)
        if entry.lacks:
            self._short_slots.add(entry.slot)
            self._short_executions.add(execution)

    def at(self, slot: int, leg: Leg, execution: int) -> Sequence[LedgerEntry]:
        """Return what ran for one leg of a slot in an execution."""
        place = (slot, leg, execution)
        return self._ran.get(place, ())

    def look_of_slot(self, slot: int) -> Hashable:
        """Return what a row of the picture shows; rows alike are equal."""
        looks = []
        count = len(self.ledger.executions)
        for leg in self.legs:
            for execution in range(count):
                entries = self.at(slot, leg, execution)
                looks.append(_looks(entries))
        return tuple(looks)

    def look_of_execution(self, execution: int) -> Hashable:
        """Return what a column of the picture shows; columns alike are equal."""
        looks = []
        count = len(self.ledger.slots)
        for slot in range(count):
            for leg in self.legs:
                entries = self.at(slot, leg, execution)
                looks.append(_looks(entries))
        return tuple(looks)

    def column_lacks(self, column: _Column) -> bool:
        """Whether something in a column lacks what was expected."""
        return column.first in self._short_executions

    def line_lacks(self, line: _Line) -> bool:
        """Whether something in a row lacks what was expected."""
        return line.first in self._short_slots


def _legs_of(ledger: LedgerReport) -> list[Leg]:
    ran = {entry.leg for entry in ledger.entries}
    return [leg for leg in Leg if leg in ran]


def ledger_picture(
    ledger: LedgerReport | None, *, is_claimed: bool = False
) -> LedgerPicture | None:
    """Draw a ledger; None where there is none, or nothing in it.

    Args:
        ledger: what ran in each call of a layer.
        is_claimed: whether FP8 was claimed of a run that has none: then no layer is one of which
            nothing expects FP8.
    """
    if ledger is None or not ledger.entries:
        return None
    drawing = _Drawing(ledger, is_claimed=is_claimed)
    columns = _columns(drawing)
    lines = _lines(drawing)
    shown_columns = _most_telling(columns, _MOST_COLUMNS, drawing.column_lacks)
    shown_lines = _most_telling(lines, _MOST_ROWS, drawing.line_lacks)
    titles = []
    for column in shown_columns:
        titles.append(_column_title(drawing, column))
    rows = []
    for line in shown_lines:
        rows.append(_row(drawing, line, shown_columns, titles))
    labels = tuple(_column_labels(drawing, shown_columns))
    hidden_rows = len(lines) - len(shown_lines)
    hidden_columns = len(columns) - len(shown_columns)
    return LedgerPicture(
        legs=tuple(leg.value for leg in drawing.legs),
        columns=tuple(titles),
        labels=labels,
        axis=_axis(drawing, labels),
        width=_width(len(shown_columns)),
        rows=tuple(rows),
        left_out=tuple(_left_out(ledger, hidden_rows, hidden_columns)),
        kinds=tuple(_kinds(rows)),
        marks=tuple(_marks(rows)),
    )


def _kinds(rows: Iterable[Row]) -> set[str]:
    """Return the kinds of cells that the legend explains."""
    kinds: set[str] = set()
    for row in rows:
        for panel in row.panels:
            kinds.update(cell.kind for cell in panel)
    return kinds - {MISSING}


def _marks(rows: Iterable[Row]) -> list[str]:
    """Return the marks that the legend explains, the surest first."""
    marks: set[str] = set()
    for row in rows:
        for panel in row.panels:
            marks.update(cell.mark for cell in panel)
    return sorted(marks - {""}, reverse=True)


# ---- rows and columns that are alike are drawn once


def _columns(drawing: _Drawing) -> list[_Column]:
    """Return the columns; of many, neighbors alike are one, then ranks alike are one."""
    executions = drawing.ledger.executions
    count = len(executions)
    if count <= _COLUMNS:
        return [_Column((at,)) for at in range(count)]
    by_rank: dict[int | None, list[int]] = defaultdict(list)
    for at, execution in enumerate(executions):
        by_rank[execution.rank].append(at)
    joined: dict[Hashable, list[int]] = defaultdict(list)
    for of_rank in by_rank.values():
        runs = _runs(of_rank, drawing.look_of_execution)
        for place, run in enumerate(runs):
            steps = []
            for at in run:
                execution = executions[at]
                steps.append((execution.step, execution.micro_batch))
            look = drawing.look_of_execution(run[0])
            joined[place, tuple(steps), look].extend(run)
    columns = []
    for alike in joined.values():
        columns.append(_Column(tuple(alike)))
    return columns


def _lines(drawing: _Drawing) -> list[_Line]:
    """Return the rows; of many, blocks that ran alike are one, then rows alike are one."""
    count = len(drawing.ledger.slots)
    if count <= _ROWS:
        return [_Line((slot,)) for slot in range(count)]
    lines = _lines_of_blocks(drawing)
    if len(lines) <= _ROWS:
        return lines

    def look_of_line(line: _Line) -> Hashable:
        return drawing.look_of_slot(line.first)

    joined = []
    for run in _runs(lines, look_of_line):
        places: list[int] = []
        for line in run:
            places += line.slots
        joined.append(_Line(tuple(places)))
    return joined


def _lines_of_blocks(drawing: _Drawing) -> list[_Line]:
    """Return a row for each slot; the slots of neighboring blocks that ran alike share theirs."""
    slots = drawing.ledger.slots

    def block_of(slot: int) -> int | None:
        return slots[slot].block

    def is_block(block: Sequence[int]) -> bool:
        return block_of(block[0]) is not None

    def look_of_block(block: Sequence[int]) -> Hashable:
        looks = tuple(map(drawing.look_of_slot, block))
        return (is_block(block), looks)

    lines = []
    blocks = _runs(range(len(slots)), block_of)
    for alike in _runs(blocks, look_of_block):
        is_repeated = len(alike) > 1 and is_block(alike[0])
        if is_repeated:
            for same in zip(*alike, strict=True):
                lines.append(_Line(same))
        else:
            for slot in chain.from_iterable(alike):
                lines.append(_Line((slot,)))
    return lines


def _runs(
    items: Sequence[_Item], key: Callable[[_Item], Hashable]
) -> list[list[_Item]]:
    """Return neighbors that have the same key together."""
    return [list(run) for _, run in groupby(items, key)]


def _most_telling(
    items: Sequence[_Item], most: int, lacks: Callable[[_Item], bool]
) -> list[_Item]:
    """Return at most some items in their order: those that lack something, then the first."""
    if len(items) <= most:
        return list(items)
    lacking: list[_Item] = []
    others: list[_Item] = []
    for item in items:
        found = lacking if lacks(item) else others
        found.append(item)
    chosen = [*lacking, *others][:most]
    return sorted(chosen, key=items.index)


def _looks(entries: Sequence[LedgerEntry]) -> Hashable:
    looks = []
    for one in entries:
        look = (
            one.launches,
            one.low,
            one.unknown,
            one.precision,
            bool(one.least),
            one.lacks,
        )
        looks.append(look)
    return tuple(looks)


def _left_out(
    ledger: LedgerReport, hidden_rows: int, hidden_columns: int
) -> Iterator[str]:
    if hidden_rows:
        yield f"{counted(hidden_rows, 'row')} more, without anything that lacks FP8"
    if hidden_columns:
        yield f"{counted(hidden_columns, 'column')} more"
    if ledger.left_out:
        yield f"{counted(ledger.left_out, 'call')} more than the report holds"


# ---- what stands beside and above the cells


def _column_title(drawing: _Drawing, column: _Column) -> str:
    """Name a column: "rank 0, step 5, micro-batch 2", "ranks 0-30, steps 5-7"."""
    ranks: list[int] = []
    steps: list[int] = []
    micro_batches: list[int] = []
    for at in column.executions:
        execution = drawing.ledger.executions[at]
        micro_batches.append(execution.micro_batch)
        if execution.rank is not None:
            ranks.append(execution.rank)
        if execution.step is not None:
            steps.append(execution.step)
    parts = []
    if drawing.has_ranks and ranks:
        parts.append(label_of_ranks(ranks))
    if steps:
        parts.append(_numbers("step", "steps", steps))
    if drawing.has_micro_batches:
        parts.append(_numbers("micro-batch", "micro-batches", micro_batches))
    return ", ".join(parts) or "the window"


def _numbers(one: str, many: str, numbers: Iterable[int]) -> str:
    distinct = sorted(set(numbers))
    name = one
    if len(distinct) > 1:
        name = many
    return f"{name} {_windows(distinct)}"


def _windows(numbers: Sequence[int]) -> str:
    """Return numbers in order as "0-3, 6"."""
    windows = join_windows(zip(numbers, numbers, strict=True))
    return ", ".join(map(show_window, windows))


def _column_labels(drawing: _Drawing, columns: Sequence[_Column]) -> Iterator[str]:
    """Yield what stands above each column: what changes from the one before."""
    names = []
    for column in columns:
        names.append(_short_label(drawing, column))
    if len(columns) <= _LABELS:
        yield from names
        return
    free = 0.0
    share = 100 / len(columns)
    before = None
    for at, name in enumerate(names):
        begin = at * share
        end = begin + 9.0 * len(name)  # of a panel on a phone: a letter is so wide
        has_room = free <= begin and end <= 100
        if name != before and has_room:
            free = end + 4
            yield name
        else:
            yield ""
        before = name


def _short_label(drawing: _Drawing, column: _Column) -> str:
    """Return the rank of a column, "r0+" for several that ran alike, or else its step."""
    first = drawing.ledger.executions[column.first]
    if drawing.has_ranks and first.rank is not None:
        ranks = set()
        for at in column.executions:
            execution = drawing.ledger.executions[at]
            ranks.add(execution.rank)
        more = "+" if len(ranks) > 1 else ""
        return f"r{first.rank}{more}"
    if first.step is None:
        return ""
    return str(first.step)


def _axis(drawing: _Drawing, labels: Iterable[str]) -> str:
    """Say what the labels of the columns are."""
    if not any(labels):
        return ""
    if drawing.has_ranks:
        return "rank"
    return "step"


def _width(columns: int) -> str:
    """Return the class of a panel whose cells stay wide enough for their marks on a phone."""
    for most, name in _WIDTHS:
        if columns <= most:
            return name
    return "most"


def _row_label(slots: Sequence[LedgerSlot]) -> str:
    if len(slots) == 1:
        return _slot_label(slots[0])
    names = list(dict.fromkeys(map(_slot_label, slots)))
    if len(names) == 1:
        return f"{names[0]} ({len(slots)} alike)"
    if len(set(map(pattern, names))) == 1:
        return f"{indexed(names)} ({len(slots)} alike)"
    blocks = {slot.block for slot in slots if slot.block is not None}
    if len(blocks) > 1:
        sizes = set()
        for name in names:
            _, _, size = name.partition(", ")
            sizes.add(size)
        layers = counted(slots, "layer")
        numbers = _windows(sorted(blocks))
        if len(sizes) == 1:
            return f"blocks {numbers}, {sizes.pop()} ({len(slots)} alike)"
        return f"blocks {numbers}: {layers} alike"
    first = cut_middle(names[0], 20)
    last = cut_middle(names[-1], 20)
    return f"{first} … {last} ({len(slots)} alike)"


def _slot_label(slot: LedgerSlot) -> str:
    """Return a layer's name; of several that it may be, one for all: "0.attn.{q,k,v}_proj"."""
    if len(slot.names) < 2:
        return cut_middle(slot.label, _NAME)
    before = _shared_start(slot.names)
    rests = [name.removeprefix(before) for name in slot.names]
    after = _shared_end(rests)
    if not before and not after:
        names = ", ".join(slot.names)
        return cut_middle(f"one of {names}", _NAME)
    middles = [rest.removesuffix(after) for rest in rests]
    differing = ",".join(middles)
    return cut_middle(f"{before}{{{differing}}}{after}", _NAME)


def _shared_end(texts: Sequence[str]) -> str:
    """Return the characters with which all texts end."""
    turned = [text[::-1] for text in texts]
    return _shared_start(turned)[::-1]


def _shared_start(texts: Sequence[str]) -> str:
    """Return the characters with which all texts begin."""
    least = min(texts)
    most = max(texts)
    place = 0
    for one, other in zip(least, most, strict=False):
        if one != other:
            break
        place += 1
    return least[:place]


# ---- cells


def _row(
    drawing: _Drawing,
    line: _Line,
    columns: Sequence[_Column],
    titles: Sequence[str],
) -> Row:
    slots = [drawing.ledger.slots[slot] for slot in line.slots]
    label = _row_label(slots)
    panels = []
    summary = []
    for leg in drawing.legs:
        cells = []
        for column, title in zip(columns, titles, strict=True):
            entries = drawing.at(line.first, leg, column.first)
            place = f"{label}, {leg.value}, {title}"
            cells.append(_cell(entries, place, is_claimed=drawing.is_claimed))
        panels.append(tuple(cells))
        summary.append(_in_words(cells))
    return Row(
        label=label,
        names=frozenset(chain.from_iterable(slot.names for slot in slots)),
        panels=tuple(panels),
        summary=tuple(summary),
        lacks=any(cell.mark for cell in chain.from_iterable(panels)),
    )


def _cell(
    entries: Sequence[LedgerEntry],
    place: str,
    *,
    is_claimed: bool,
) -> Cell:
    launches = 0
    low = 0
    unknown = 0
    least = 0
    for entry in entries:
        launches += entry.launches
        low += entry.low
        unknown += entry.unknown
        least += entry.least or 0
    if not launches:
        return Cell(MISSING, "", f"{place}: no GEMM")
    precision = max(entries, key=lambda one: one.launches).precision
    mark = _mark(entries)
    kind = _kind(precision, launches, low, unknown)
    is_expected = bool(least or mark or is_claimed)
    if kind == "high" and not is_expected:
        kind = "plain"
    said = f"{counted(launches, 'GEMM')} in {precision.upper()}"
    if 0 < low < launches:
        said = f"{low} of {launches} GEMMs in FP8 or FP4"
    if unknown == launches:
        said = f"{counted(launches, 'GEMM')} of unknown precision"
    if kind == "plain":
        said = f"{said}; nothing says that it should run in FP8"
    expectation = _expectation(least, mark)
    return Cell(kind, mark, f"{place}: {said}{expectation}")


def _mark(entries: Iterable[LedgerEntry]) -> str:
    """Return the surest mark of what lacks FP8; nothing if nothing does."""
    marks = [entry.lacks for entry in entries if entry.lacks]
    if "surely" in marks:
        return "surely"
    return next(iter(marks), "")


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
    return ""


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
    counts = Counter(cell.kind for cell in cells)
    if len(counts) == 1:
        words = _WORDS[cells[0].kind]
        if len(cells) > 1:
            return f"all {len(cells)} {words}"
        return words
    said = []
    for kind, count in counts.items():
        said.append(f"{count} {_WORDS[kind]}")
    return ", ".join(said)

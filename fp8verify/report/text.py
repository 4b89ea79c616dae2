"""The writer of text: one screen in the page's order, and with --verbose every table after it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fp8verify.patterns import lazy_pattern
from fp8verify.report.page import BAD, FAIR, GOOD, TONES, Grid, Note, Page
from fp8verify.terms import Precision, Verdict
from fp8verify.text import cut_middle, printable

PLAIN_WIDTH = 80
MAX_WIDTH = 120
# A last column of words that is cut keeps at least this much.
_LEAST_WORDS = 12
_GAP = 2
_BAR_WIDTH = 10
_FULL = "█"
_EMPTY = "░"
_LABEL_WIDTH = 9
_STYLES = {GOOD: "green", FAIR: "yellow", BAD: "red"}
_LABELS = {
    "error": "red",
    "warning": "yellow",
    "info": "cyan",
    "fix": "bold",
    "speed": "",
}

# Where a long name may go on in the next line, and how far names under a row are indented.
_BLANKS = lazy_pattern(r"\s+")
_BREAKS = lazy_pattern(r"[,:_<>(){}./-]+")
_INDENT = 4

_WITH_ERRORS = lazy_pattern(r"[A-Z]+, \d+ errors?")


def _cell_styles() -> dict[str, str]:
    """Return the colors of cells that are precisions or verdicts."""
    styles = {}
    for precision in Precision:
        if precision.is_low:
            styles[precision.value] = "green"
    for verdict in Verdict:
        styles[verdict.value] = f"bold {_STYLES[TONES.get(verdict, BAD)]}"
    return styles


_CELL_STYLES = _cell_styles()


def write_text(
    page: Page,
    *,
    terminal: bool = False,
    verbose: bool = False,
    width: int | None = None,
    whole: str = "",
) -> str:
    """Write a page without trailing blanks.

    Args:
        page: what to write.
        terminal: whether it is for a terminal; then it has colors, unless NO_COLOR is set.
        verbose: whether to show all rows, whole names and every table.
        width: columns; by default the terminal's, at most `MAX_WIDTH`, and 80 elsewhere.
        whole: the file of the whole report, which is then named; empty if there is none.
    """
    columns = width
    if columns is None and terminal:
        columns = min(Console().width, MAX_WIDTH)
    if columns is None:
        columns = PLAIN_WIDTH
    screen = _Screen(page, terminal, verbose, columns, whole)
    return screen.text()


class _Screen:
    """A page on a screen of a certain width."""

    def __init__(
        self,
        page: Page,
        terminal: bool,
        verbose: bool,
        width: int,
        whole: str,
    ) -> None:
        """Open a console that writes into memory."""
        self._page = page
        self._verbose = verbose
        self._width = width
        self._whole = whole
        self._console = Console(
            file=StringIO(),
            force_terminal=terminal,
            no_color=None if terminal else True,
            width=width,
            highlight=False,
            markup=False,  # names and log lines may hold brackets
            emoji=False,
        )

    def text(self) -> str:
        """Return the whole text."""
        page = self._page
        proof = page.proof
        if proof is not None and self._console.is_terminal:
            proof = _with_bars(proof, self._width)
        head = self._head()
        head += self._below(proof)
        requested = []
        for part in page.requested:
            requested += self._below(part)
        every = self._notes()
        shown = every
        if not self._verbose:
            room = page.lines - len(head) - 1
            if page.exit:
                last = self._exit([])
                room -= len(self._apart(last))
            shown = self._fitting(every, room)
        lines = [*head, *requested]
        if shown:
            labeled = _labeled(shown)
            lines += self._apart(labeled)
        if self._verbose or not page.verdict:
            for part in page.body:
                lines += self._below(part)
        if page.exit:
            hidden = _counts_of(every, shown)
            last = self._exit(hidden)
            lines += self._apart(last)
        stripped = [line.rstrip() for line in lines]
        text = "\n".join(stripped)
        return text.removeprefix("\n") + "\n"

    def _notes(self) -> list[Note]:
        """Return the lines under labels for which there may be room."""
        page = self._page
        rows = [*page.told(verbose=self._verbose)]
        if self._verbose:
            rows += page.notes
            rows += _facts(page)
        else:
            rows += page.urgent
        if self._whole:
            rows.append(Note("report", self._whole))
        return rows

    def _apart(self, *parts: RenderableType) -> list[str]:
        lines = self._lines(*parts)
        return ["", *lines]

    def _lines(self, *parts: RenderableType) -> list[str]:
        with self._console.capture() as captured:
            for part in parts:
                self._console.print(part, crop=False)
        return captured.get().splitlines()

    def _head(self) -> list[str]:
        page = self._page
        if not page.verdict:
            return []
        verdict = (page.verdict, f"bold {_STYLES[page.tone]}")
        run = self._run_in_lines()
        first = Text.assemble(verdict, "  ", (run, "dim"))
        if not page.sentence:
            return self._lines(first)
        return self._lines(first, Text(printable(page.statement)))

    def _run_in_lines(self) -> str:
        """Return what was run; a line that is too long ends between two parts of it."""
        page = self._page
        run = ""
        room = self._width - cell_len(page.verdict) - _GAP
        for part in map(printable, page.run):
            longer = f"{run} · {part}" if run else part
            last = longer.rpartition("\n")[2]
            if run and cell_len(last) > room:
                longer = f"{run} ·\n{part}"
                room = self._width
            run = longer
        return run

    def _below(self, part: Grid | str | None) -> list[str]:
        """Return the lines of a part under an empty one."""
        if not part:
            return []
        if isinstance(part, str):
            text = Text(printable(part))
            return self._apart(text)
        lines = _grid(part, self._width, self._verbose)
        return self._apart(*lines)

    def _fitting(self, rows: list[Note], room: int) -> list[Note]:
        """Return the rows for which there is room, as if the screen were of usual width.

        Where there is none for the cause and its fix, the cause refers to the sentence.
        """
        if self._height(rows) <= room:
            return rows
        gravest = [row for row in rows if row.rank <= 1]
        if self._height(gravest) > room:
            rows = list(map(self._referring, rows))
        fitting = [row for row in rows if not row.rank]
        for row in sorted(rows, key=_rank_of):
            subjects = [other.finding for other in fitting]
            is_fix = row.label == "fix"
            if is_fix and row.finding not in subjects:
                continue  # advice without what it is about
            wanted = []
            for other in rows:
                is_wanted = other is row or other in fitting
                if is_wanted:
                    wanted.append(other)
            height = self._height(wanted)
            if row.rank and height <= room:
                fitting = wanted
        return fitting

    def _referring(self, row: Note) -> Note:
        finding = row.finding
        if finding is None or row.rank or finding.code != self._page.cause:
            return row
        if not finding.message:  # its line is the fix, which is never cut
            return row
        return row._replace(text="see the sentence above")

    def _height(self, rows: list[Note]) -> int:
        return sum(map(self._height_of, rows))

    def _height_of(self, row: Note) -> int:
        """Return how many lines a row takes beside its label."""
        room = max(self._width, PLAIN_WIDTH) - _LABEL_WIDTH
        text = Text(printable(row.coded()))
        return len(text.wrap(self._console, room, overflow="fold"))

    def _exit(self, hidden: list[str]) -> Text:
        """Return the last line: the exit code, and what else there is as far as it fits."""
        page = self._page
        shows_all = self._verbose or self._whole
        more = [*dict.fromkeys(hidden), *page.further]
        if shows_all or not page.exit:
            more = []
        while more:
            names = ", ".join(more)
            line = f"{page.exit} · more with -v: {names}"
            width = cell_len(line)
            if width <= self._width:
                return Text(printable(line))
            more.pop()
        return Text(printable(page.exit))


def _rank_of(note: Note) -> int:
    return note.rank


def _facts(page: Page) -> list[Note]:
    """Return what was run and when; the GPU is in the first line."""
    facts = []
    for note in page.facts:
        if note.label != "GPU":
            facts.append(note)
    if not facts and page.software:
        facts.append(Note("software", page.software))
    return facts


def _counts_of(every: list[Note], shown: list[Note]) -> list[str]:
    """Count what is hidden of the notes: "2 warnings", "1 fix"."""
    hidden = [note.label for note in every]
    for note in shown:
        hidden.remove(note.label)
    names = {
        "error": "errors",
        "warning": "warnings",
        "fix": "fixes",
        "info": "infos",
    }
    counts = []
    for label, plural in names.items():
        count = hidden.count(label)
        if count == 1:
            counts.append(f"1 {label}")
        elif count:
            counts.append(f"{count} {plural}")
    return counts


_PART_OF_ALL = lazy_pattern(r"(\d+)/(\d+)")


def _with_bars(grid: Grid, width: int) -> Grid:
    """Draw each count of a table as a bar too, "24/24 ██████████", where there is room."""
    rows = []
    for row in grid.rows:
        cells = tuple(map(_with_bar, row))
        rows.append(cells)
    widest = _widths(grid.names, rows)
    gaps = _GAP * len(widest)
    if sum(widest) + gaps > width:
        return grid
    return grid._replace(rows=rows)


def _widths(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[int]:
    """Return how many columns of a screen each column of a table needs."""
    widest = list(map(cell_len, names))
    for row in rows:
        for column, cell in enumerate(row):
            width = cell_len(cell)
            widest[column] = max(widest[column], width)
    return widest


def _with_bar(cell: str) -> str:
    counts = _PART_OF_ALL.fullmatch(cell)
    if counts is None:
        return cell
    part, whole = map(int, counts.groups())
    if not whole:
        return cell
    full = _BAR_WIDTH * part // whole
    if part:
        full = max(1, full)  # what is not nothing is seen
    empty = _BAR_WIDTH - full
    bar = _FULL * full + _EMPTY * empty
    return f"{cell} {bar}"


def _styled(cell: str) -> Text:
    """Return a cell, with its color if it is a precision, a verdict or a bar."""
    if _EMPTY in cell or _FULL in cell:
        text = Text(cell)
        text.highlight_words([_FULL], "green")
        text.highlight_words([_EMPTY], "yellow")
        return text
    if _WITH_ERRORS.fullmatch(cell):
        return Text(cell, style=f"bold {_STYLES[BAD]}")
    return Text(cell, style=_CELL_STYLES.get(cell, ""))


def _labeled(rows: list[Note]) -> Table:
    right_of_a_label = (0, 1, 0, 0)
    grid = Table.grid(padding=right_of_a_label)
    grid.add_column(width=_LABEL_WIDTH - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        style = _STYLES.get(row.tone)
        if style is None:
            style = _LABELS.get(row.label, "dim")
        label = Text(row.label, style=style)
        said = row.coded()
        text = Text(printable(said))
        grid.add_row(label, text)
    return grid


def _grid(grid: Grid, width: int, verbose: bool) -> Iterator[RenderableType]:
    """Yield a grid with its lines.

    Figures are never cut. Of a last column of words the middle is, where there is no room; with
    `verbose` the words go below their row. What does not fit even so is as wide as it needs.
    """
    shown = grid if verbose else grid.head(grid.shown)
    if grid.above:
        yield Text(printable(grid.above))
    if shown.rows:
        below_rows = grid.own_line
        if verbose and _is_too_wide(shown, width):
            below_rows = True
        if below_rows:
            yield from _with_own_lines(shown, width)
        else:
            yield _table(shown, width)
    for line in shown.below:
        yield Text(printable(line))


def _is_too_wide(grid: Grid, width: int) -> bool:
    """Whether the words of the last column do not fit next to the others."""
    rows = list(map(_printable, grid.rows))
    if not grid.stretch:
        return False
    needed = _widths(grid.names, rows)
    gaps = _GAP * (len(needed) - 1)
    return sum(needed) + gaps > width


def _with_own_lines(grid: Grid, width: int) -> Iterator[RenderableType]:
    """Yield a table whose last column is on a line of its own, under its row."""
    rows = tuple(row[:-1] for row in grid.rows)
    others = grid._replace(
        headings=grid.headings[:-1],
        rows=rows,
        stretch=False,
    )
    output = StringIO()
    console = Console(
        file=output,
        width=max(width, MAX_WIDTH),
        no_color=True,
        markup=False,
    )
    console.print(_table(others, width), crop=False)
    head, *lines = output.getvalue().splitlines()
    title = f"{head.rstrip()}  {grid.names[-1]}"
    if cell_len(title) > width:  # its lines show by themselves what they are
        title = head.rstrip()
    yield _line(title, "bold")
    indent = " " * _INDENT
    for line, row in zip(lines, grid.rows, strict=True):
        yield _line(line.rstrip())
        words = printable(row[-1])
        for part in _wrapped(words, width - _INDENT):
            yield _line(f"{indent}{part}", "dim")


def _line(text: str, style: str = "") -> Text:
    """Return text that is neither wrapped nor cut."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a name, which goes on behind a blank or another separator if it can."""
    while cell_len(text) > width:
        end = _last_end(_BLANKS, text[: width + 1])
        half = width // 2
        if end < half:
            end = _last_end(_BREAKS, text[:width])
        if end < half:
            end = width
        line = text[:end]
        rest = text[end:]
        yield line.rstrip()
        text = rest.lstrip()
    yield text


def _last_end(separators: re.Pattern[str], text: str) -> int:
    last = 0
    for match in separators.finditer(text):
        last = match.end()
    return last


def _printable(row: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(printable, row))


def _with_cut_words(row: tuple[str, ...], room: int) -> tuple[str, ...]:
    *figures, words = row
    shown = cut_middle(words, room)
    return (*figures, shown)


def _table(grid: Grid, width: int) -> Table:
    rows = list(map(_printable, grid.rows))
    needed = _widths(grid.names, rows)
    gaps = _GAP * (len(needed) - 1)
    if grid.stretch:
        *figures, words = needed
        heading = len(grid.names[-1])
        readable = max(_LEAST_WORDS, heading // 2)
        least = min(words, readable)
        left = width - sum(figures) - gaps
        room = max(least, left)
        rows = [_with_cut_words(row, room) for row in rows]
        needed[-1] = min(needed[-1], room)
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="bold",
        width=sum(needed) + gaps,
    )
    for name, is_words, least in zip(grid.names, grid.words, needed, strict=True):
        table.add_column(
            name,
            justify="left" if is_words else "right",
            no_wrap=True,
            width=least,
        )
    for row in rows:
        cells = map(_styled, row)
        table.add_row(*cells)
    return table

"""The writer of text: one screen, 80 columns wide where there is no terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from io import StringIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fp8verify.report.escape import printable
from fp8verify.report.model import Precision, Severity, Verdict
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Note, Page

PLAIN_WIDTH = 80
MAX_WIDTH = 120
# A last column of words that is cut keeps at least this much, else rows are laid out one by one.
_LEAST_WORDS = 12
_GAP = 2
_LABEL_WIDTH = 9
_INFOS = 3
_STYLES = {GOOD: "green", FAIR: "yellow", BAD: "red"}
# Words that are coloured where they begin a row: precisions, verdicts, what counters prove.
_CELL_STYLES = {
    "agrees": "green",
    "differs": "red",
    "missed": "red",
    "unclaimed": "yellow",
    **{precision.value: "green" for precision in Precision if precision.is_low},
    **{verdict.value: "bold red" for verdict in Verdict},
    Verdict.ACTIVE.value: "bold green",
    Verdict.PARTIAL.value: "bold yellow",
    Verdict.INCONCLUSIVE.value: "bold yellow",
}


def write_text(
    page: Page, *, terminal: bool = False, verbose: bool = False, width: int | None = None
) -> str:
    """Write a page.

    Args:
        page: what to write.
        terminal: whether it is for a terminal; then it has colours, unless NO_COLOR is set.
        verbose: whether to show all rows, whole names and the advice of information.
        width: columns; by default the terminal's, at most `MAX_WIDTH`, and 80 elsewhere.
    """
    return render(list(_sections(page, verbose)), terminal=terminal, width=width)


def brief(page: Page, whole: str = "") -> str:
    """Return at most four lines: the verdict, what fails, whether FP8 pays, where the rest is.

    Args:
        page: the result.
        whole: the file of the whole result, or the command that prints it; empty if none can.
    """
    lines = [f"{page.verdict}  {page.reason} ({page.name})."]
    error = next((one for one in page.findings if one.severity is Severity.ERROR), None)
    if error is not None:
        lines.append(f"error    [{error.code}] {error.message}")
    if page.pays is not None:
        lines.append(f"{page.pays.label:8} {page.pays_briefly}")
    if whole:
        lines.append(f"report   {whole}")
    return "".join(f"{printable(line)}\n" for line in lines)


def render(sections: list[RenderableType], *, terminal: bool, width: int | None = None) -> str:
    """Render to text without trailing blanks."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=width or (min(Console().width, MAX_WIDTH) if terminal else PLAIN_WIDTH),
        highlight=False,
        markup=False,  # names and log lines may hold brackets
        emoji=False,
    )
    console.print(Group(*sections))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _sections(page: Page, verbose: bool) -> Iterator[RenderableType]:
    if page.head:
        yield Text(printable(page.head), style="dim")
    if page.verdict:
        verdict = (page.verdict, f"bold {_STYLES[page.tone]}")
        yield Padding(Text.assemble(verdict, "  ", printable(page.reason), "."), (1, 0, 0, 0))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL_WIDTH - 1, no_wrap=True)
    grid.add_column()
    for note in (*([page.pays] if page.pays else []), *page.actions()):
        style = _STYLES.get(note.tone, "bold" if note.label == "to do" else "")
        grid.add_row(Text(note.label, style=style), Text(printable(note.text)))
    if grid.row_count:
        yield Padding(grid, (1, 0, 0, 0))
    first = not page.verdict
    for part in page.body:
        yield Padding(_part(part, verbose), (0 if first else 1, 0, 0, 0))
        first = False
    yield from _notes(page, verbose)
    yield from _infos(page, verbose)


def _part(part: Grid | str, verbose: bool) -> RenderableType:
    if isinstance(part, str):
        return Text(printable(part))
    shown = part if verbose else part.head(part.shown)
    table = PlainTable(part.names, part.words, stretch=part.stretch, uncut=verbose)
    for row in shown.rows:
        style = _CELL_STYLES.get(row[0], "")
        table.add_row(Text(printable(row[0]), style), *map(printable, row[1:]))
    above: list[RenderableType] = [Text(printable(part.above))] if part.above else []
    middle: list[RenderableType] = [table] if part.rows else []
    return Group(*above, *middle, *(Text(printable(line)) for line in shown.below))


def _notes(page: Page, verbose: bool) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    notes = [*page.notes, *([Note("software", page.software)] if verbose and page.software else [])]
    for note in notes:
        grid.add_row(note.label, Text(printable(note.text)))
    if notes:
        yield Padding(grid, (1, 0, 0, 0))


def _infos(page: Page, verbose: bool) -> Iterator[RenderableType]:
    """Show what needs no action: as much as the screen holds, advice with --verbose."""
    infos = [finding for finding in page.findings if finding.severity is Severity.INFO]
    shown = infos if verbose else infos[: max(1, _INFOS - (len(page.findings) - len(infos)))]
    lines: list[RenderableType] = []
    hints: set[str] = set()
    for finding in shown:
        label = (finding.severity.value, "cyan")
        lines.append(Text.assemble(label, f" [{finding.code}] ", printable(finding.message)))
        if verbose and finding.hint not in {*hints, ""}:
            lines.append(Padding(Text(printable(finding.hint), style="dim"), (0, 0, 0, 4)))
        hints.add(finding.hint)
    if len(shown) < len(infos):
        lines.append(Text(f"… and {len(infos) - len(shown)} more with --verbose"))
    if lines:
        yield Padding(Group(*lines), (1, 0, 0, 0))


class PlainTable:
    """Rows under headings; where they do not fit side by side, each row is a block of its own.

    Figures are never cut. Only a last column of words is, with a sign, and not if it is `uncut`.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        words: Collection[str] = (),
        *,
        stretch: bool = False,
        uncut: bool = False,
    ) -> None:
        self._names, self._words = names, words
        self._stretch, self._uncut = stretch, uncut
        self._rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row of as many cells as there are headings."""
        self._rows.append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the table, or its rows one by one."""
        if self._width() <= options.max_width:
            yield self._table()
            return
        for row in self._rows:
            yield from self._block(row, options.max_width)

    def _width(self) -> int:
        """Return the columns that the table needs."""
        needed = [len(name) for name in self._names]
        for row in self._rows:
            needed = [max(pair) for pair in zip(needed, (c.cell_len for c in row), strict=True)]
        if self._stretch:
            needed[-1] = min(needed[-1], max(_LEAST_WORDS, len(self._names[-1]) // 2))
        return sum(needed) + _GAP * (len(needed) - 1)

    def _table(self) -> Table:
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
            header_style="bold",
            expand=self._stretch,
        )
        for place, name in enumerate(self._names):
            last = self._stretch and place == len(self._names) - 1
            table.add_column(
                name,
                justify="left" if name in self._words else "right",
                no_wrap=not (last and self._uncut),
                overflow="fold" if self._uncut else "ellipsis",
                ratio=1 if last else None,
            )
        for row in self._rows:
            table.add_row(*row)
        return table

    def _block(self, row: tuple[Text, ...], width: int) -> Iterator[Text]:
        """Lay one row out as "heading value" after "heading value", then its words."""
        pairs = [
            f"{name} {cell.plain}"
            for name, cell in zip(self._names, row, strict=True)
            if cell.plain != "-"
        ]
        words = pairs.pop() if self._stretch and row[-1].plain != "-" else None
        yield from map(Text, filled(pairs, width))
        if words is not None:
            yield from (Text(f"  {line}") for line in _folded(row[-1].plain, width - _GAP))


def _folded(text: str, width: int) -> Iterator[str]:
    """Cut text into lines; nothing of it is lost."""
    return (text[start : start + width] for start in range(0, len(text), width))


def filled(parts: list[str], width: int) -> list[str]:
    """Fill lines with parts that are not broken themselves; those after the first are set in."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + _GAP <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(f"  {part}" if lines else part)
    return lines

"""The writer of text: one screen, 80 columns wide if there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Note, Page
from fp8verify.terms import Precision, Severity, Verdict
from fp8verify.text import printable

PLAIN_WIDTH = 80
MAX_WIDTH = 120
# A last column of words that is cut keeps at least this much.
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
    """Write a page without trailing blanks.

    Args:
        page: what to write.
        terminal: whether it is for a terminal; then it has colours, unless NO_COLOR is set.
        verbose: whether to show all rows, whole names and the advice of information.
        width: columns; by default the terminal's, at most `MAX_WIDTH`, and 80 elsewhere.
    """
    buffer = StringIO()
    columns = width or (min(Console().width, MAX_WIDTH) if terminal else PLAIN_WIDTH)
    console = Console(
        file=buffer,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=columns,
        highlight=False,
        markup=False,  # names and log lines may hold brackets
        emoji=False,
    )
    console.print(Group(*_sections(page, columns, verbose)), crop=False)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _sections(page: Page, width: int, verbose: bool) -> Iterator[RenderableType]:
    if page.head:
        yield Text(printable(page.head), style="dim")
    if page.verdict:
        verdict = (page.verdict, f"bold {_STYLES[page.tone]}")
        yield _below(Text.assemble(verdict, "  ", printable(page.reason), "."))
    actions = [*([page.pays] if page.pays else []), *page.actions()]
    if actions:
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=_LABEL_WIDTH - 1, no_wrap=True)
        grid.add_column()
        for note in actions:
            style = _STYLES.get(note.tone, "bold" if note.label == "to do" else "")
            grid.add_row(Text(note.label, style=style), Text(printable(note.text)))
        yield _below(grid)
    for place, part in enumerate(page.body):
        lines = [Text(printable(part))] if isinstance(part, str) else _grid(part, width, verbose)
        yield Group(*lines) if not page.verdict and place == 0 else _below(*lines)
    notes = [*page.notes, *([Note("software", page.software)] if verbose and page.software else [])]
    if notes:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        for note in notes:
            grid.add_row(note.label, Text(printable(note.text)))
        yield _below(grid)
    if infos := list(_infos(page, verbose)):
        yield _below(*infos)


def _below(*parts: RenderableType) -> Group:
    """Leave an empty line above parts of the page."""
    return Group("", *parts)


def _infos(page: Page, verbose: bool) -> Iterator[RenderableType]:
    """Show what needs no action: as much as the screen holds, advice with --verbose."""
    infos = [finding for finding in page.findings if finding.severity is Severity.INFO]
    shown = infos if verbose else infos[: max(1, _INFOS - (len(page.findings) - len(infos)))]
    hints = {""}
    for finding in shown:
        label = (finding.severity.value, "cyan")
        yield Text.assemble(label, f" [{finding.code}] ", printable(finding.message))
        if verbose and finding.hint not in hints:
            yield Padding(Text(printable(finding.hint), style="dim"), (0, 0, 0, 4))
        hints.add(finding.hint)
    if len(shown) < len(infos):
        yield Text(f"… and {len(infos) - len(shown)} more with --verbose")


def _grid(grid: Grid, width: int, verbose: bool) -> Iterator[RenderableType]:
    """Yield a grid with its lines.

    Figures are never cut. Only a last column of words is, with a sign, and not with `verbose`; a
    table that does not fit even so is as wide as it needs.
    """
    shown = grid if verbose else grid.head(grid.shown)
    if grid.above:
        yield Text(printable(grid.above))
    if shown.rows:
        yield _table(shown, width, verbose)
    yield from (Text(printable(line)) for line in shown.below)


def _table(grid: Grid, width: int, uncut: bool) -> Table:
    rows = [tuple(map(printable, row)) for row in grid.rows]
    needed = [max(map(cell_len, cells)) for cells in zip(grid.names, *rows, strict=True)]
    gaps = _GAP * (len(needed) - 1)
    words = min(needed[-1], max(_LEAST_WORDS, len(grid.names[-1]) // 2))
    fits = sum(needed[:-1]) + gaps + (words if grid.stretch else needed[-1]) <= width
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="bold",
        expand=grid.stretch,
        width=None if fits else sum(needed) + gaps,
    )
    for place, name in enumerate(grid.names):
        last = grid.stretch and place == len(grid.names) - 1
        table.add_column(
            name,
            justify="left" if name in grid.words else "right",
            no_wrap=not (last and uncut),
            overflow="fold" if uncut else "ellipsis",
            ratio=1 if last else None,
        )
    for first, *others in rows:
        table.add_row(Text(first, _CELL_STYLES.get(first, "")), *map(Text, others))
    return table

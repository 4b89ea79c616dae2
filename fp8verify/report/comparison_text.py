"""A comparison at a glance: the verdict, what to do, where the time goes, GEMMs side by side."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fp8verify.report.comparison_tables import (
    grids,
    kernels_alone,
    loss_line,
    loss_lines,
    title,
    word,
)
from fp8verify.report.escape import printable
from fp8verify.report.first_lines import SEVERITY_STYLES
from fp8verify.report.grid import Grid
from fp8verify.report.layout import PlainTable, render
from fp8verify.report.model import Finding
from fp8verify.report.model.comparison import Comparison, Outcome

_TOP = 6
_STYLES = {Outcome.FASTER: "bold green", Outcome.SLOWER: "bold red"}


def to_text(
    found: Comparison, *, terminal: bool = False, verbose: bool = False, width: int | None = None
) -> str:
    """Render a comparison; colour only on a terminal."""
    return render(list(_sections(found, verbose)), terminal=terminal, width=width)


def brief(found: Comparison) -> str:
    """Return at most four lines: the outcome, the losses, the gravest finding."""
    lines = [f"{word(found)}  {found.reason}."]
    if found.loss is not None:
        lines.append(loss_line(found.loss))
    lines += [f"{one.severity.value} [{one.code}] {one.message}" for one in found.findings[:2]]
    return "".join(f"{printable(line)}\n" for line in lines)


def _sections(found: Comparison, verbose: bool) -> Iterator[RenderableType]:
    yield Text(f"fp8verify {found.fp8verify_version} · {title(found)}", style="dim")
    verdict = (word(found), _STYLES.get(found.outcome, "bold yellow"))
    yield Padding(Text.assemble(verdict, f"  {printable(found.reason)}."), (1, 0))
    for finding in found.findings:
        yield Padding(_finding(finding), (0, 0, 1, 0))
    for place, grid in enumerate(grids(found)):
        yield Padding(_table(grid, verbose), (min(place, 1), 0, 0, 0))
        if grid.names[0] == "ms a mean step":
            yield Text(kernels_alone(found))
    if found.loss is not None:
        yield Padding(Text(loss_lines(found.loss)), (1, 0, 0, 0))
    yield from (Text(f"note: {printable(note)}", style="dim") for note in found.notes)


def _finding(finding: Finding) -> RenderableType:
    label = (finding.severity.value, SEVERITY_STYLES.get(finding.severity, ""))
    said = Text.assemble(label, f" [{finding.code}] ", printable(finding.message))
    return Group(said, Padding(Text(f"to do: {printable(finding.hint)}"), (0, 0, 0, 4)))


def _table(grid: Grid, verbose: bool) -> RenderableType:
    shown = grid if verbose else grid.head(_TOP + (grid.names[0] == "ms a mean step"))
    table = PlainTable(grid.names, grid.words, stretch=grid.stretch, uncut=verbose)
    for row in shown.rows:
        table.add_row(*row)
    hidden = len(grid.rows) - len(shown.rows)
    return Group(table, Text(f"… and {hidden} more with --verbose")) if hidden else table

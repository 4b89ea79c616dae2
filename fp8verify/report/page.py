"""A result as data for its forms: one page of a verdict, findings, tables and notes.

Reports, comparisons and tables of runs are laid out as pages; each format has one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from string import Formatter
from typing import Any, NamedTuple

from fp8verify.report.model.parts import Finding
from fp8verify.report.tables import millis, percent, times
from fp8verify.terms import Severity
from fp8verify.text import gib

GOOD, FAIR, BAD = "good", "fair", "bad"


class Grid(NamedTuple):
    """A table of text.

    Attributes:
        title: what it shows.
        names: the headings.
        words: those of columns that hold words; the others hold figures.
        rows: the cells.
        stretch: whether the last column may be cut if there is little room.
        shown: how many rows are shown at a glance; None for all.
        above: a line above the table.
        below: lines below it.
        folded: whether Markdown folds it away.
    """

    title: str
    names: tuple[str, ...]
    words: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    stretch: bool = False
    shown: int | None = None
    above: str = ""
    below: tuple[str, ...] = ()
    folded: bool = False

    def head(self, count: int | None) -> Grid:
        """Return the first rows, and a line that counts the others."""
        hidden = 0 if count is None else len(self.rows) - count
        if hidden <= 0:
            return self
        more = f"… and {hidden} more with --verbose"
        return self._replace(rows=self.rows[:count], below=(more, *self.below))


class _CellFormatter(Formatter):
    """Formats a cell as `str.format` does, with formats for figures; what is None becomes "-"."""

    FIGURES: Mapping[str, Callable[[Any], str]] = {
        "ms": millis,
        "%": percent,
        "x": times,
        "MB": lambda size: f"{size / 1e6:.1f}",
        "size": gib,
    }

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return one figure as text."""
        if value is None:
            return "-"
        show = self.FIGURES.get(format_spec)
        return show(value) if show else format(value, format_spec)


_CELLS = _CellFormatter()


def lay_out(
    title: str, headings: str, row: str, items: Iterable[tuple[Any, ...]], **more: Any
) -> Grid:
    """Lay out a grid with one row for each item.

    Args:
        title: what the grid shows.
        headings: the headings with " | " between them; "<" marks a column of words.
        row: the cells in the same way, as `str.format` takes them: "{0.name} | {1.mean_us:ms}".
            Formats of figures: ms (of µs), % (of a share), x (a factor), MB and size (of bytes).
        items: the positional arguments of each row.
        more: further fields of `Grid`.
    """
    names = headings.split(" | ")
    cells = row.split(" | ")
    return Grid(
        title=title,
        names=tuple(name.removeprefix("<") for name in names),
        words=tuple(name[1:] for name in names if name.startswith("<")),
        rows=tuple(tuple(_CELLS.vformat(cell, item, {}) for cell in cells) for item in items),
        **more,
    )


class Note(NamedTuple):
    """A line under a label; `tone` is good, fair, bad or empty."""

    label: str
    text: str
    tone: str = ""


class Page(NamedTuple):
    """What every form of a result shows.

    Attributes:
        head: the program, the run, the GPU, the steps; empty for none.
        verdict: a word; empty if the result has none.
        tone: whether the verdict is good, fair or bad.
        reason: a sentence without its full stop.
        fails: whether the result fails what was asked of it.
        name: what the run is called.
        pays: whether FP8 pays, None if that is not known.
        pays_briefly: the same in a few words.
        findings: what the reader should know, the gravest first, with the ranks that it is about.
        to_do: what to do about the verdict where no error or warning says it.
        body: tables and lines, in the order in which they are shown.
        notes: remarks under labels.
        software: the versions of the run's software, empty if not recorded.
    """

    head: str
    verdict: str
    tone: str
    reason: str
    fails: bool
    name: str
    pays: Note | None = None
    pays_briefly: str = ""
    findings: tuple[Finding, ...] = ()
    to_do: tuple[str, ...] = ()
    body: tuple[Grid | str, ...] = ()
    notes: tuple[Note, ...] = ()
    software: str = ""

    @property
    def grids(self) -> Iterator[Grid]:
        """The tables."""
        return (part for part in self.body if isinstance(part, Grid))

    def actions(self) -> Iterator[Note]:
        """Yield the errors and warnings, and what to do about each, every advice once."""
        yield from (Note("to do", text) for text in self.to_do)
        hints: set[str] = set()
        for finding in self.findings:
            if finding.severity is Severity.INFO:
                continue
            tone = BAD if finding.severity is Severity.ERROR else FAIR
            yield Note(finding.severity.value, f"[{finding.code}] {finding.message}", tone)
            if finding.hint and finding.hint not in hints:
                yield Note("to do", finding.hint)
            hints.add(finding.hint)

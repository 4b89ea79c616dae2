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
        own_line: whether text shows the last column on a line of its own.
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
    own_line: bool = False

    def head(self, count: int | None) -> Grid:
        """Return the first rows, and a line that counts the others."""
        hidden = 0 if count is None else len(self.rows) - count
        if hidden <= 0:
            return self
        more = f"… and {hidden} more with -v"
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
    """What every form of a result shows, in this order.

    Attributes:
        verdict: a word, with how many errors an ACTIVE run has; empty if the result has none.
        tone: whether the verdict is good, fair or bad.
        run: the run's name, the GPU, the steps, the ranks.
        sentence: what ran in FP8 and what did not, without its full stop.
        fails: whether the result fails what was asked of it.
        exit: the exit code and why, for the last line.
        proof: the table that shows what the sentence says, None if none is needed.
        sources: what log, model and kernels say.
        findings: what the reader should know, the gravest first, with the ranks that it is about.
        cause: code of the finding that the sentence is about, None if it is about none.
        fix: what to do about the verdict where no error or warning says it.
        speed: whether FP8 pays, or how the losses compare; None if that is not known.
        requested: tables that were asked for when the run was recorded or inspected.
        body: further tables and lines, in the order in which they are shown.
        notes: remarks under labels.
        further: what the body has in a few words.
        urgent: those of the notes that the first screen has if there is room.
        detail: codes of findings that another line says, or that need no action.
        pays: code of the finding whose fact is the line of the speed.
        lines: how many the first screen has at most.
        software: the versions of the run's software and of fp8verify.
    """

    verdict: str
    tone: str
    run: tuple[str, ...]
    sentence: str
    fails: bool
    exit: str = ""
    proof: Grid | None = None
    sources: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    cause: str | None = None
    fix: str = ""
    speed: Note | None = None
    requested: tuple[Grid | str, ...] = ()
    body: tuple[Grid | str, ...] = ()
    notes: tuple[Note, ...] = ()
    further: tuple[str, ...] = ()
    urgent: tuple[Note, ...] = ()
    detail: frozenset[str] = frozenset()
    pays: str = ""
    lines: int = 26
    software: str = ""

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.run[0]

    @property
    def grids(self) -> Iterator[Grid]:
        """The tables."""
        return (part for part in (*self.requested, *self.body) if isinstance(part, Grid))

    def message_of(self, finding: Finding) -> str:
        """Return what a finding says, empty if the sentence has said it."""
        return "" if finding.code == self.cause else finding.message

    @property
    def reports(self) -> tuple[Finding, ...]:
        """The findings that decide or cost, but for what the speed says."""
        return tuple(
            one
            for one in self.findings
            if one.severity is not Severity.INFO and (self.speed is None or one.code != self.pays)
        )

    @property
    def infos(self) -> tuple[Finding, ...]:
        """The findings that need no action and that no other line says."""
        return tuple(
            one
            for one in self.findings
            if one.severity is Severity.INFO and one.code not in self.detail
        )


def sentence(text: str) -> str:
    """Return text as a sentence begins; a name in front stays as it is."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text

"""The tables of a text: where each begins and ends, and which of its lines cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.kernel_table.cells import nanoseconds
from fp8verify.trace.kernel_table.headings import HEAVY, Headings, rule_in
from fp8verify.trace.kernel_table.listed import Listed
from fp8verify.trace.kernel_table.table import Fit, Table
from fp8verify.trace.source import Source

# Rows left out, after which one is not even taken apart: that would take longer than all else.
_MOST_TAKEN_APART: Final = 5000
_IS_RULED: Final = lazy_pattern(r"[\s|:+=\u2500-\u257f-]*")
_TOTAL: Final = lazy_pattern(r"Self (?!CPU )[A-Z][A-Z0-9]* time total: (\S+)")


def text_tables(source: Source, *, is_glance: bool) -> Iterator[Table]:
    """Yield each table with its rows; for a glance it is done after its first kernel."""
    lines: _Lines | None = None
    headings = Headings()
    listed = Listed()
    for raw in source.lines():
        line = raw.rstrip("\r\n")
        if lines is None:
            listed.take(line)
        following = headings.take(line)
        if following is not None:
            if lines is not None:
                yield lines.finish()
            lines = _Lines(following)
            continue
        if lines is None:
            continue
        total = _total(line)
        if total is not None:
            lines.table.total_ns = nanoseconds(total[1], "u")
            yield lines.finish()
            lines = None
            continue
        lines.take(line, is_whole=raw.endswith("\n"))
        if is_glance and lines.table.begins_with_kernel:
            break
    if lines is not None:
        yield lines.finish()
    elif listed.table.sums:
        yield listed.table


def _total(line: str) -> re.Match[str] | None:
    if " time total: " in line:
        return _TOTAL.search(line)
    return None


class _Lines:
    """Takes the lines below the headings of a table up to its end.

    A line that is no row is a damaged one if rows follow it, or if it looks like one. Behind a rule
    or an empty line there may be other text, of which only rows count.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._has_rows = False
        self._may_be_over = False
        self._doubtful: list[str] = []  # lines since the last row

    def take(self, line: str, *, is_whole: bool) -> None:
        """Take a line; one that is not whole is the last of a file that may be cut."""
        table = self.table
        is_empty = not line.strip()
        if is_empty or _IS_RULED.fullmatch(line) or rule_in(line):
            # Grids have a rule below each row.
            is_end = is_empty or not table.sign
            self._may_be_over |= self._has_rows and is_end
            return
        if table.left_out >= _MOST_TAKEN_APART:
            table.left_out += 1
            return
        fit = table.add(table.cells(line))
        if fit is Fit.ROW:
            self._has_rows = True
            table.unread += len(self._doubtful)
            self._doubtful.clear()
        is_open = line.count('"') % 2 == 1
        if not is_whole and (fit is Fit.NOT or is_open):
            table.unread += 1  # the file is cut within its last line
        elif fit is Fit.NOT and not self._may_be_over:
            self._doubtful.append(line)

    def finish(self) -> Table:
        """Return the table with the lines counted that could not be read."""
        self.table.unread += sum(map(self._looks_like_a_row, self._doubtful))
        return self.table

    def _looks_like_a_row(self, line: str) -> bool:
        """Whether a line has as many cells as a row, or one less."""
        table = self.table
        if table.sign:
            signs = line.translate(HEAVY).count(table.sign)
            return signs >= max(1, table.width - 2)
        cells = table.cells(line)
        filled = [cell for cell in cells if cell.strip()]
        return len(filled) >= max(2, table.width - 1)

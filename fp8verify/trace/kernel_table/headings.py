"""Which line of a text is one of headings, and how the lines below it are taken apart."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.kernel_table.cells import GAP
from fp8verify.trace.kernel_table.empty_table import empty_table
from fp8verify.trace.kernel_table.table import Table

_MOST_TABLES: Final = 10_000
# A cell that begins with a word for names, as headings have one: to take every row apart for its
# headings would take longer than to read it. Of lower case, and letter first, it is much faster.
_AROUND: Final = "\\s\"'|,;\ufeff\u2502\u2503\u2551"
_HINT: Final = lazy_pattern(
    rf"[kno](?<![^{_AROUND}].)"
    r"(?:ernel(?:s|_?name)?|ame|ey|perat(?:or|ion)|p)"
    rf"(?![^{_AROUND}])"
)
_RULE: Final = lazy_pattern(r"(?<![-+|:])-{3,}(?: {1,3}-{3,})+")
_DASHES: Final = lazy_pattern(r"-+")
_DELIMITERS: Final = ("\u2502", "\t", "|", ",", ";")
HEAVY: Final = {
    0x2503: 0x2502,
    0x2551: 0x2502,
}  # rich draws headings with other lines than rows


class Headings:
    """Looks for headings, which are above a rule of dashes or below one, or need none."""

    def __init__(self) -> None:
        self._previous = ""
        self._spans: list[slice] = []
        self._left = _MOST_TABLES

    def take(self, line: str) -> Table | None:
        """Return the table that begins with this line, if one of kernels does."""
        previous = self._previous
        self._previous = line
        table = None
        if not self._left:
            return None  # a row of the last table, which cannot be read
        rule = rule_in(line)
        if rule is not None:
            self._spans = []
            for dashes in _DASHES.finditer(line, rule.start()):
                self._spans.append(slice(*dashes.span()))
            table = _by_spans(previous, self._spans)
        elif _HINT.search(line[:4096].lower()):
            if self._spans:
                table = _by_spans(line, self._spans)
            table = table or _by_delimiter(line)
        if table is not None:
            self._left -= 1
            self._spans = []
        return table


def rule_in(line: str) -> re.Match[str] | None:
    """Return the rule of dashes in a line, one run of them a column."""
    if "---" in line:
        return _RULE.search(line)
    return None


def _by_spans(header: str, spans: Sequence[slice]) -> Table | None:
    """Return the table whose columns a rule of dashes marks, None if it is another one."""
    if not spans:
        return None
    # "CUDA time avg" is wider than its column, and moves what follows it in this line alone.
    below_first = header[spans[0].start :]
    names = GAP.split(below_first.strip())
    if len(names) != len(spans):
        return None
    *inner, last = spans
    columns = [*inner, slice(last.start, None)]
    gaps = []
    for span, after in pairwise(spans):
        gaps.append(slice(span.stop, after.start))

    def cells(line: str) -> list[str]:
        has_text_between = any(line[gap].strip() for gap in gaps)
        if not has_text_between:
            return [line[span].strip() for span in columns]
        # A value that is wider than its column, or moved: it must not lose a digit.
        apart = GAP.split(line.strip())
        if len(apart) == len(spans):
            return apart
        return []

    return empty_table(names, cells)


def _by_delimiter(header: str) -> Table | None:
    """Return the table below headings between delimiters, or two spaces or more."""
    plain = header.translate(HEAVY)
    for sign in _DELIMITERS:
        if sign in plain:
            headings = _split(header, sign)
            table = empty_table(headings, partial(_split, sign=sign))
            if table is not None:
                table.sign = sign
                return table
    return empty_table(_split_by_spaces(header), _split_by_spaces)


def _split_by_spaces(line: str) -> list[str]:
    return GAP.split(line.strip())


def _split(line: str, sign: str) -> list[str]:
    if sign in ",;\t":
        rows = csv.reader([line.lstrip("\ufeff")], delimiter=sign)
        try:
            return next(rows, [])
        except csv.Error:
            return []
    plain = line.translate(HEAVY).strip()
    cells = plain.strip(sign).split(sign)
    return [cell.strip() for cell in cells]

"""Log lines about single layers: rows of frameworks, and lists of filters in dumps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from fp8verify.frameworks.known import Framework, frameworks
from fp8verify.logs.formats import format_of, format_or_high
from fp8verify.logs.lines import Line
from fp8verify.logs.messages import indent_of
from fp8verify.logs.settings import headings, own_lines
from fp8verify.logs.statements import HIGH_PRECISION, LayerClaim
from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean

MAX_LAYERS = 10_000  # that are named
_MAX_LINE = 1 << 16
_MAX_LIST = 200  # lines
_MAX_TEXT = 300
_QUOTED = lazy_pattern(r"['\"]([^'\"]{1,300})['\"]")
# The section of a list of filters, which counts only where its converter is in use.
_SECTION = lazy_pattern(
    r"(?<![a-z])(?P<name>float8|fp8|mxfp8|mx|nvfp4)(?![a-z])", re.IGNORECASE
)
# torchtitan's word for a filter by size is no name of a layer.
_NO_NAMES = frozenset({"auto_filter_small_kn"})


class _Row(NamedTuple):
    """Whose line about layers it is, how its names select modules, and the line."""

    framework: str
    select: str
    pattern: re.Pattern[str]


@lru_cache(maxsize=2)
def _rows(known: tuple[Framework, ...]) -> tuple[_Row, ...]:
    found: list[_Row] = []
    for framework in known:
        found += [
            _Row(framework.name, row.select, re.compile(row.line))
            for row in framework.layers
        ]
    return tuple(found)


def layer_of(line: Line, prefix: str) -> LayerClaim | None:
    """Return what a line says of single layers."""
    text = _whole_list(line, prefix)
    for row in _rows(frameworks()):
        if found := row.pattern.search(text):
            return _layer_claim(row, found, line, prefix)
    return None


def _whole_list(line: Line, prefix: str) -> str:
    """Return the text of a line; a list that a dump spreads over lines is read as one."""
    text = line.text[:_MAX_LINE]
    if "filter_fqns" not in text or not text.rstrip().endswith(("[", "(")):
        return text
    for below in islice(own_lines(line.below(), prefix), _MAX_LIST):
        text += below
        if "]" in below or ")" in below:
            break
    return text


def _layer_claim(
    row: _Row,
    found: re.Match[str],
    line: Line,
    prefix: str,
) -> LayerClaim | None:
    said = found.groupdict()
    if "path" in said:
        named = [said["path"]]
    else:
        named = _QUOTED.findall(said["names"])
    names = tuple(name for name in named if name not in _NO_NAMES)
    format_ = _format(said)
    if not names or format_ is None:
        return None
    section = ""
    if row.select == "part":
        section = _section(found.string[: found.start()], line, prefix)
    return LayerClaim(
        select=row.select,
        names=names,
        format=format_,
        framework=row.framework,
        line=line.number,
        text=clean(found[0][:_MAX_TEXT]),
        section=section,
    )


def _format(said: Mapping[str, str]) -> str | None:
    """Return the format of a line's layers; a list names those left in high precision."""
    if "new" in said:
        low = format_of(said["new"])
        if low is not None:
            return low
        # An override by another class of high precision, as a fused one, claims nothing.
        if format_of(said["old"]):
            return HIGH_PRECISION
        return None
    # The name of a configuration has its format: "mxfp8", "bf16_layers".
    key = said.get("key") or said.get("type")
    if key is None:
        return HIGH_PRECISION
    return format_or_high(key)


def _section(
    before: str,
    line: Line,
    prefix: str,
) -> str:
    """Return the format of the section that a list of filters is in, if its name tells it."""
    if before.strip(" '\""):
        above = iter([before[-200:]])
    else:
        above = headings(line, prefix, indent_of(line.text[len(prefix) :]))
    for text in above:
        if names := _SECTION.findall(text):
            return format_of(names[-1]) or "mxfp8"
    return ""

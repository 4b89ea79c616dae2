"""Where a text speaks of FP8: what is said of a file whose meaning no rule knows."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from fp8verify.preflight.documents import Document
from fp8verify.preflight.facts import Values, truth
from fp8verify.text import abridged

_FP8 = re.compile(r"fp8|float8|nvfp4|fp4[_-]|e4m3|e5m2|mxfp", re.IGNORECASE)
# Names, places and remarks: what they are called says nothing about precision.
_LABELS = re.compile(
    r"(?:^|[._-])(?:\w*dir|\w*folder|\w*path(?<!name_or_path)|config_?file|url|image|project|group"
    r"|tags?|notes?|description|comment|(?:(?:run|exp|experiment|project|job|wandb)_)?name(?<!recipe_name)(?<!model_name))$",
    re.IGNORECASE,
)
# What asks for FP8 in code and does not name it: Lightning's precisions, an import.
_IN_CODE = re.compile(r"""["'](?:8-mixed|transformer-engine\S{0,20})["']|\btransformer_engine\b""")
_GENERATION = re.compile(
    r"rollout(?!_ref)|generat|vllm|sglang|infer|serving|sampler|kv_cache", re.IGNORECASE
)
_SHOWN, _WIDTH = 3, 60


class Mention(NamedTuple):
    """A line that speaks of FP8: its number if known, its text, whether it is about generation."""

    line: int | None
    text: str
    of_generation: bool = False


def mentions(document: Document) -> Iterator[Mention]:
    """Yield the settings, or the lines of code, that speak of FP8; comments and labels do not."""
    if document.kind != "python":
        yield from mentions_of_values(document.values, document.lines)
        return
    for number, line in enumerate(code_lines(document.text), start=1):
        if _FP8.search(line) or _IN_CODE.search(line):
            yield Mention(number, line.strip(), _GENERATION.search(line) is not None)


def mentions_of_values(values: Values, lines: Mapping[str, int]) -> Iterator[Mention]:
    """Yield the settings that speak of FP8, but for those that say no."""
    for key, value in values.items():
        if value == {} or truth(value) is False or value in (None, "", "null"):
            continue
        said = isinstance(value, (str, list)) and _FP8.search(str(value))
        if (
            _FP8.search(key)
            or re.search(r"(?:^|\.)fp4$", key)
            or (said and not _LABELS.search(key))
        ):
            of_generation = _GENERATION.search(key) is not None
            yield Mention(lines.get(key), f"{key}: {value}", of_generation)


def spoken(found: Iterable[Mention]) -> str:
    """Return which of the formats mentions name: FP4 if none of them is about FP8."""
    fp4 = re.compile("fp4", re.IGNORECASE)
    return "FP4" if all(fp4.search(row.text) for row in found) else "FP8"


def told(found: Iterable[Mention]) -> str:
    """Return mentions in words, the first ones with their text."""
    rows = list(found)
    shown = [f"line {row.line}: {_part(row.text)}" if row.line else _part(row.text) for row in rows]
    return abridged(shown, _SHOWN)


def _part(text: str) -> str:
    """Return a text, of a long one the part around the word."""
    match = _FP8.search(text)
    first = max(0, match.start() - _WIDTH // 2) if match and len(text) > _WIDTH else 0
    part = text[first : first + _WIDTH]
    return f"{'…' if first else ''}{part}{'…' if len(text) > first + _WIDTH else ''}"


@lru_cache(maxsize=4)  # each rule on sources reads it
def code_lines(text: str) -> tuple[str, ...]:
    """Return the lines of a Python source without its comments and docstrings."""
    lines = text.splitlines()
    for (row, column), (last, end) in _remarks(text):
        for number in range(row, min(last, len(lines)) + 1):
            line = lines[number - 1]
            first = column if number == row else 0
            lines[number - 1] = line[:first] + (line[end:] if number == last else "")
    return tuple(lines)


_Place = tuple[int, int]
_STARTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def _remarks(text: str) -> list[tuple[_Place, _Place]]:
    """Return the places of comments and of strings that are statements, the last one first."""
    found: list[tuple[_Place, _Place]] = []
    before = tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_statement = token.type == tokenize.STRING and before in _STARTS
            if token.type == tokenize.COMMENT or is_statement:
                found.append((token.start, token.end))
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type
    except (tokenize.TokenError, SyntaxError, ValueError):  # as far as it can be read
        pass
    return found[::-1]

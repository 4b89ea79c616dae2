"""What a Python source asks for, by lines that are known; nothing of it is run or imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fp8verify.preflight.tables import table


class CodeRequest(NamedTuple):
    """A line of code that asks for low precision, or names a recipe of it.

    Attributes:
        line: its number, 1-based.
        wanted: what it asks for, such as "FP8 by torchao"; or the recipe.
    """

    line: int
    wanted: str

    def __str__(self) -> str:
        """Return what is wanted, with its line."""
        return f"{self.wanted}, line {self.line}"


def requests_in(code: str) -> list[CodeRequest]:
    """Return what code asks for, each wish once, in the order of its lines.

    Args:
        code: a Python source without comments and docstrings.
    """
    return _found("requests_in_code", code)


def recipes_in(code: str) -> list[CodeRequest]:
    """Return the recipes that code names, each once; whether they belong to a request is open."""
    return _found("recipes_in_code", code)


_TE_IMPORT = re.compile(r"\b(?:import|from)\s+transformer_engine\b")


def uses_transformer_engine(code: str) -> bool:
    """Whether code imports Transformer Engine, whose layers multiply in FP8 in its autocast alone."""
    return _TE_IMPORT.search(code) is not None


def _found(name: str, code: str) -> list[CodeRequest]:
    first_lines: dict[str, int] = {}
    for pattern, named in _patterns(name):
        match = _first_in_code(pattern, code)
        if match is None:
            continue
        wanted = named or match[1]
        lines_before = code.count("\n", 0, match.start())
        line = lines_before + 1
        known = first_lines.get(wanted, line)
        first_lines[wanted] = min(line, known)
    requests = []
    for wanted, line in first_lines.items():
        requests.append(CodeRequest(line, wanted))
    requests.sort()
    return requests


@cache
def _patterns(name: str) -> Sequence[tuple[re.Pattern[str], str]]:
    """Return the patterns of a table of rules, each with what it is a request of, if it says so."""
    patterns = []
    for pattern, named in table("rules")[name]:
        compiled = re.compile(pattern)
        patterns.append((compiled, named))
    return patterns


def _first_in_code(pattern: re.Pattern[str], code: str) -> re.Match[str] | None:
    """Return where a pattern first is outside of strings, as far as its own line tells."""
    for match in pattern.finditer(code):
        start = match.start()
        start_of_line = code.rfind("\n", 0, start) + 1
        before = code[start_of_line:start]
        is_in_string = _is_odd(before, '"') or _is_odd(before, "'")
        if not is_in_string:
            return match
    return None


def _is_odd(text: str, quote: str) -> bool:
    """Whether a quote is left open."""
    return text.count(quote) % 2 == 1

"""What a Python source asks for, by lines that are known; nothing of it is run or imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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


_OF_TRANSFORMER_ENGINE = re.compile(r"\b(?:import|from)\s+transformer_engine\b")


def uses_transformer_engine(code: str) -> bool:
    """Whether code imports Transformer Engine, whose layers multiply in FP8 in its autocast alone."""
    return _OF_TRANSFORMER_ENGINE.search(code) is not None


def _found(name: str, code: str) -> list[CodeRequest]:
    first: dict[str, int] = {}
    for pattern, wanted in _patterns(name):
        for match in _in_code(pattern, code):
            told = wanted or match[1]
            line = 1 + code.count("\n", 0, match.start())
            first[told] = min(line, first.get(told, line))
            break
    requests = [CodeRequest(line, told) for told, line in first.items()]
    return sorted(requests)


@cache
def _patterns(name: str) -> Sequence[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), wanted) for pattern, wanted in table("rules")[name]]


def _in_code(pattern: re.Pattern[str], code: str) -> Iterator[re.Match[str]]:
    """Yield where a pattern is outside of strings, as far as its own line tells."""
    for match in pattern.finditer(code):
        start_of_line = code.rfind("\n", 0, match.start()) + 1
        before = code[start_of_line : match.start()]
        is_in_string = before.count('"') % 2 or before.count("'") % 2
        if not is_in_string:
            yield match

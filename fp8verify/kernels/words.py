"""Tables of words, which a run without a trace needs without the grammars of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import TypeVar

_Kind = TypeVar("_Kind")


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text, for tables of words."""
    return frozenset(text.split())


def word_rows(kind: Callable[[str], _Kind], text: str) -> list[tuple[_Kind, set[str]]]:
    """Return the rows of a table of words: "transpose: transpose transposed reduction: …"."""
    rows: list[tuple[_Kind, set[str]]] = []
    for word in text.split():
        if word.endswith(":"):
            rows.append((kind(word[:-1]), set()))
        else:
            rows[-1][1].add(word)
    return rows


def first_of(rows: Iterable[tuple[_Kind, Set[str]]], words: Set[str]) -> _Kind | None:
    """Return what the first row stands for that has one of the words."""
    return next((kind for kind, row in rows if words & row), None)

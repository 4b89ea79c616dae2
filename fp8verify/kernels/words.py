"""Tables of words, which a run without a trace needs without the grammars of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import TypeAlias, TypeVar

_Kind = TypeVar("_Kind")
_Row: TypeAlias = "tuple[_Kind, Set[str]]"


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text, for tables of words."""
    return frozenset(text.split())


def word_rows(kind: Callable[[str], _Kind], text: str) -> list[_Row[_Kind]]:
    """Return the rows of a table of words: "transpose: transpose transposed reduction: …"."""
    rows: list[_Row[_Kind]] = []
    words: set[str] = set()
    for word in text.split():
        if word.endswith(":"):
            name = word.removesuffix(":")
            words = set()
            rows.append((kind(name), words))
        else:
            words.add(word)
    return rows


def first_of(rows: Iterable[_Row[_Kind]], words: Set[str]) -> _Kind | None:
    """Return what the first row stands for that has one of the words."""
    for kind, words_of_kind in rows:
        if words & words_of_kind:
            return kind
    return None

"""Users' regular expressions: what is wrong with one, and a word that its lines have.

A log is untrusted, so an expression whose repetitions may share a text in many ways is refused
before it meets one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import import_module
from itertools import pairwise
from typing import Any

_MANY = 100  # repetitions from this number on count as without end
_SOME = 10  # and from this number on for what is repeated in turn
_MOST = 2  # a text of 1,000 characters is then tried in at most a million ways
_MAX_LENGTH = 1000
_LETTERS = frozenset(map(chr, range(128)))
_SHORTEST = 3
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


def fault_of(expression: str) -> str | None:
    """Say what is wrong with an expression; None if it can be used."""
    if len(expression) > _MAX_LENGTH:
        return f"is longer than {_MAX_LENGTH} characters"
    try:
        re.compile(expression)
        tree = _parsed(expression)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression ({error})"
    if _nests(tree):
        return "repeats what is repeated already, which may take forever"
    if _overlaps(tree, _MANY) >= _MOST or _overlaps(tree, 1) >= _SOME:
        return "has repetitions that match the same text, which may take forever"
    return None if fixed_word(expression) else "has no fixed word of three letters to look for"


def fixed_word(expression: str) -> str:
    """Return the longest lower-case word that all lines of an expression have; "" without one."""
    words, word = [], ""
    for name, value in [*_flat(_parsed(expression)), ("END", None)]:
        if name == "LITERAL" and value < 128:
            word += chr(value).lower()
        else:
            words.append(word)
            word = ""
    longest = max(words, key=len)
    return longest if len(longest) >= _SHORTEST else ""


def _parsed(expression: str) -> Any:
    parser = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return parser.parse(expression, re.IGNORECASE)


def _flat(tree: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    """Yield the parts of a tree that every match has, in order."""
    for code, value in tree:
        name = str(code)
        if name in ("SUBPATTERN", "ATOMIC_GROUP"):
            yield from _flat(value[-1] if name == "SUBPATTERN" else value)
        else:
            yield name, value


def _repeats(name: str, value: Any, least: int = _MANY) -> bool:
    """Whether a part repeats something up to `least` times or more, and may stop before."""
    return name in _REPEATS and value[1] >= least and value[0] != value[1]


def _inner(name: str, value: Any) -> Iterable[Any]:
    """Yield the trees within a part."""
    if name == "BRANCH":
        yield from value[1]
    elif name in (*_REPEATS, "POSSESSIVE_REPEAT"):
        yield value[2]
    elif name in ("ASSERT", "ASSERT_NOT"):
        yield value[1]
    elif name == "GROUPREF_EXISTS":
        yield from filter(None, value[1:])


def _nests(tree: Iterable[Any], within: int = 1) -> bool:
    """Whether something repeated holds another repetition, or a choice, and both may be long."""
    for name, value in _flat(tree):
        if within > 1 and _repeats(name, value):
            return True
        if within >= _SOME and (name == "BRANCH" or _repeats(name, value, 1)):
            return True
        times = within * value[1] if name in _REPEATS else within
        if any(_nests(inner, times) for inner in _inner(name, value)):
            return True
    return False


def _overlaps(tree: Iterable[Any], least: int) -> int:
    """Count the repetitions that may give a character to a later one."""
    parts = list(_flat(tree))
    sets = [
        (index, _letters(value[2])) for index, (name, value) in enumerate(parts)
        if _repeats(name, value, least)
    ]  # fmt: skip
    if sets and sets[-1][0] == len(parts) - 1:
        sets.pop()  # nothing after it can fail
    count = sum(bool(one & later) for (_, one), (_, later) in pairwise(sets))
    return count + max(
        (_overlaps(inner, least) for name, value in parts for inner in _inner(name, value)),
        default=0,
    )


def _letters(tree: Any) -> frozenset[str]:
    """Return the ASCII characters that a repeated part can begin with; all if that is not plain."""
    found: set[str] = set()
    for name, value in _flat(tree):
        if name == "LITERAL":
            found.add(chr(value))
        elif name == "IN" and str(value[0][0]) != "NEGATE":
            found |= _of_class(value)
        else:
            return _LETTERS
    return frozenset(found)


_CATEGORIES = {
    "CATEGORY_DIGIT": frozenset("0123456789"),
    "CATEGORY_SPACE": frozenset(" \t\n\r\f\v"),
    "CATEGORY_WORD": frozenset(char for char in _LETTERS if char.isalnum() or char == "_"),
}


def _of_class(items: Iterable[Any]) -> frozenset[str]:
    found: set[str] = set()
    for code, value in items:
        name = str(code)
        if name == "LITERAL":
            found.add(chr(value))
        elif name == "RANGE":
            found |= set(map(chr, range(value[0], value[1] + 1)))
        else:
            found |= _CATEGORIES.get(str(value), _LETTERS)
    return frozenset(found)

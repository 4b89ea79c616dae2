"""Users' regular expressions: what is wrong with one, and a word that its lines have.

A log is untrusted, so an expression whose repetitions may share a text in many ways is refused
before it meets one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from math import log
from typing import Any

MAX_TEXT = 1000  # characters of a message or a line that a user's expression meets
_MOST_WAYS = 10**7  # in which the repetitions may share these
_MAX_LENGTH = 1000
_ASCII = frozenset(map(chr, range(128)))
_SHORTEST = 3
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def fault_of(expression: str) -> str | None:
    """Say what is wrong with an expression; None if it can be used."""
    if len(expression) > _MAX_LENGTH:
        return f"is longer than {_MAX_LENGTH} characters"
    try:
        re.compile(expression)
        ways = _ways(_parsed(expression), is_whole=True)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression ({error})"
    if ways > log(_MOST_WAYS):
        return "has repetitions that match the same text, which may take forever"
    if fixed_word(expression):
        return None
    return "has no fixed word of three letters to look for"


def fixed_word(expression: str) -> str:
    """Return the longest lower-case word that all lines of an expression have; "" without one."""
    letters = ""
    for name, number, _ in _flat(_parsed(expression)):
        if name == "LITERAL" and number < 128:
            letters += chr(number)
        else:
            letters += "\n"
    longest = max(letters.lower().split("\n"), key=len)
    if len(longest) >= _SHORTEST:
        return longest
    return ""


def _internal(name: str, name_to_3_10: str) -> Any:
    """Return a module of `re`, which was renamed in Python 3.11."""
    if sys.version_info >= (3, 11):
        return import_module(f"re.{name}")
    return import_module(name_to_3_10)


def _parsed(expression: str) -> Any:
    return _internal("_parser", "sre_parse").parse(expression, re.IGNORECASE)


def _flat(tree: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and tree of the parts that every match has, in order."""
    for place, (code, value) in enumerate(tree):
        name = str(code)
        if name == "SUBPATTERN":
            yield from _flat(value[-1])
        elif name == "ATOMIC_GROUP":
            yield from _flat(value)
        else:
            yield name, value, tree[place : place + 1]


def _ways(tree: Any, *, is_whole: bool = False) -> float:
    """Return the logarithm of the number of ways in which the repetitions of a tree share a text.

    Args:
        tree: the expression, or what is repeated in it, whose end meets its beginning.
        is_whole: whether it is the expression, after which nothing can fail.
    """
    parts = list(_flat(tree))
    total = 0.0
    for place, (name, value, _) in enumerate(parts):
        if name in _REPEATS:
            least, most, repeated = value
            most = min(most, MAX_TEXT)
            total += most * _ways(repeated)
            following = parts[place + 1 :]
            if not is_whole:
                following += parts[: place + 1]
            if least < most and _gives(repeated, [part for *_, part in following]):
                total += log(most - least + 1)
        elif name == "BRANCH":
            total += log(len(value[1])) + max(map(_ways, value[1]))
        elif isinstance(value, tuple):
            # An assertion, or a choice by whether a group matched.
            for inner in value:
                if isinstance(inner, type(tree)):
                    total += _ways(inner)
    return total


def _gives(repeated: Any, following: list[Any]) -> bool:
    """Whether what is repeated may leave a character to what follows."""
    letters = _letters(repeated)
    for part in following:
        least, most = part.getwidth()
        if most == 0 or letters & _letters(part):
            return True
        if least:
            return False
    return False


def _letters(part: Any) -> frozenset[str]:
    """Return the ASCII characters that a part or what it repeats is one of; all if it is longer."""
    code, value = part[0]
    unit = part
    if str(code) in _REPEATS:
        unit = value[2]
    if unit.getwidth() != (1, 1):
        return _ASCII
    one = _internal("_compiler", "sre_compile").compile(unit, re.IGNORECASE)
    return frozenset(filter(one.match, _ASCII))

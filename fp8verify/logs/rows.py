"""Exact rows: the lines by which frameworks, and a user's own code, speak of low precision.

They are rows of `fp8verify/frameworks/NAME.toml`, each with the source line that prints it, and are
matched at the start of a message. A user's own rows are searched for, and mean what the user says.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from fp8verify.frameworks.expressions import MAX_TEXT
from fp8verify.frameworks.known import Framework, frameworks
from fp8verify.patterns import lazy_pattern

FORMAT = r"(?:(?:MX|NV)[- ]?FP[48]|FP[- ]?[48]|float[- ]?[48])"
_SAYS = {
    "not_fp8": "denials",
    "fp8": "claims",
    "scope": "limits",
}


class Row(NamedTuple):
    """A row: whose it is, what it says (fp8, not_fp8 or scope), and whether a user declared it."""

    framework: str
    says: str
    pattern: re.Pattern[str]
    declared: bool


Match = tuple[Row, re.Match[str]]


def rows() -> tuple[Row, ...]:
    """Return the rows of all frameworks, those of the user first."""
    return _rows(frameworks())


@lru_cache(maxsize=2)
def _rows(known: tuple[Framework, ...]) -> tuple[Row, ...]:
    found = []
    for framework in known:
        for says, key in _SAYS.items():
            for expression in getattr(framework, key):
                pattern = _compiled(expression)
                found.append(Row(framework.name, says, pattern, framework.declared))
    return tuple(found)


def _compiled(expression: str) -> re.Pattern[str]:
    whole = expression.replace("<FORMAT>", FORMAT)
    return re.compile(whole, re.IGNORECASE | re.DOTALL)


def match(text: str, named: str = "") -> Match | None:
    """Return the row that a message is, and the match.

    Args:
        text: the message.
        named: the same with names before a colon, in which a user's own rows are looked for.
    """
    for row in rows():
        if row.declared:
            found = row.pattern.search(named, 0, MAX_TEXT)
        else:
            found = row.pattern.match(text)
        if found:
            return row, found
    return None


# What may follow a claim: an end, a stop, a bracket or a preposition; no part of a name.
_FOLLOWS = lazy_pattern(
    r"\s*(?:$|[,;!()\[\]\u2013\u2014\u2026\u2713\u2714\u2705-]|[.:](?!\w)"
    r"|(?:with|for|to|on|in|via)\b)|\s{2,}",
    re.IGNORECASE,
)


def goes_on(text: str, end: int) -> bool:
    """Whether a message goes on behind its row with another word of the same clause."""
    return _FOLLOWS.match(text, end) is None


# A line without any of these words, in lower case, is not looked at.
_WORDS = ("fp8", "float8", "fp4", "float4", "bf16", "bfloat16")


class Words(NamedTuple):
    """Lower-case words of the lines that are read.

    Attributes:
        all: a line without any of them says nothing.
        closely: of lines about single layers and of those that a user declared.
    """

    all: tuple[str, ...]
    closely: tuple[str, ...]


def words() -> Words:
    """Return the words of all frameworks."""
    return _words(frameworks())


@lru_cache(maxsize=2)
def _words(known: tuple[Framework, ...]) -> Words:
    closely = []
    own: list[str] = []
    for framework in known:
        closely += [row.word for row in framework.layers]
        own += framework.words
        if framework.declared:
            closely += framework.words
    # What has a shorter one of them need not be looked for: each takes as long as the rest.
    found = list(_WORDS)
    for word in sorted([*closely, *own], key=len):
        if not any(shorter in word for shorter in found):
            found.append(word)
    return Words(tuple(found), tuple(closely))


# An ellipsis ends no sentence: "Enabling FP8 training... failed".
_SENTENCE = lazy_pattern(
    r".*?(?:(?<!\.)[.!](?=\s|$)(?!\s*[(\[]default)|(?<![:=\s])\s{3,}|[\r\n]|$)",
    re.DOTALL,
)


def sentence_of(text: str, end: int) -> str:
    """Return the sentence in which a match ended at `end` is, from the message's start."""
    found = _SENTENCE.match(text, end)
    return text[: found.end() if found else end].strip()

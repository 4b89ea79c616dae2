"""Make text from outside safe to show: kernel names and log lines may hold anything."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*_\[\]|~])")
_TICKS = re.compile(r"`+")
# Characters by which spreadsheets know a formula (OWASP, "CSV Injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    """Replace control characters, line ends and lone surrogates, which steer terminals and XML."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def markdown(text: str) -> str:
    """Escape text for a paragraph or table cell of GitHub-flavoured Markdown."""
    safe = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", safe).replace("@", "&#64;").replace("#", "&#35;")


def code(text: str) -> str:
    """Return a Markdown code span that may stand in a table cell."""
    safe = printable(text).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in _TICKS.findall(safe)), default=0))
    pad = " " if safe.startswith("`") or safe.endswith("`") else ""
    return f"{fence}{pad}{safe}{pad}{fence}"


def cell(text: str) -> str:
    """Return text that a spreadsheet takes for text, not for a formula."""
    safe = printable(text)
    return f"'{safe}" if safe.startswith(_FORMULA) else safe


def shorten(text: str, width: int) -> str:
    """Cut the middle out of text longer than `width`; both ends of a kernel name tell most."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"

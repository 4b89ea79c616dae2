"""Read the `--arguments` of a launch script, without running it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

MAX_TEXT = 1 << 14
MAX_VALUE = 1 << 12
MAX_GROWTH = 1 << 21  # of a whole script, by the values of its variables
_ASSIGNMENT = re.compile(
    r"""\s*(?:export\s+)?([A-Za-z_]\w*)=("[^"]*"|'[^']*'|(?:\$\{[^}]*\}|[^\s()#])*)"""
)
# $NAME, ${NAME}, and with another word: ${NAME:-word}, ${NAME:=word}, ${NAME:+word}.
_VARIABLE = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)"
    r"|\{(?P<braced>[A-Za-z_]\w*)(?::?(?P<sign>[-=+])(?P<word>(?:[^{}]|\$\{[^{}]*\})*))?\})"
)
_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}")


def read_launch_script(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return arguments by name and their lines; variables are those that it assigns plainly."""
    variables: dict[str, str] = {}
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    room = MAX_GROWTH
    for number, line in enumerate(text.splitlines(), start=1):
        assigned = _ASSIGNMENT.match(line)
        if assigned:
            value = _resolved(assigned[2].strip("\"'"), variables)
            variables[assigned[1]] = value.strip("\"'")[:MAX_VALUE]
        plain = re.sub(r"(^|\s)#.*", "", line).rstrip("\\ ")
        resolved = _resolved(plain, variables) if room > 0 else plain
        room -= max(0, len(resolved) - len(plain))
        for key, value in arguments(_words(resolved)).items():
            # Branches of a script may differ: which of them runs is not known.
            values[key] = value if values.get(key, value) == value else None
            lines.setdefault(key, number)
    values = {key: value for key, value in values.items() if value is not None}
    values.update((f"ENV_VARS.{name}", value) for name, value in variables.items())
    return values, lines


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line) if len(line) <= MAX_TEXT else None
    except ValueError:
        words = None
    if words is None:  # too long for shlex, whose time grows with the square, or half of a string
        words = line.replace('"', " ").replace("'", " ").split()
    # The lines of an array are read where it is assigned.
    return [
        part for word in words for part in word.strip("()").split() if not _ARRAY.fullmatch(part)
    ]


def _resolved(text: str, variables: Mapping[str, str]) -> str:
    """Replace variables by their values; a text that doubles itself line by line stays bounded."""
    if "$" not in text or len(text) > MAX_TEXT:
        return text
    return _VARIABLE.sub(lambda match: _value(match, variables), text)[:MAX_TEXT]


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return what a variable stands for; one that is set elsewhere is taken for set and unset."""
    value = variables.get(match["name"] or match["braced"])
    word = match["word"]
    if word is None:
        return match[0] if value is None else value
    if match["sign"] == "+":
        return "" if value == "" else _resolved(word, variables)
    return value or _resolved(word, variables)


_OVERRIDE = re.compile(r"\+{0,2}([a-z][\w.]*)=(\S*)")  # Hydra's, OmegaConf's and torchtune's


def arguments(words: list[str]) -> dict[str, Any]:
    """Return `--name value`, `--name=value`, `name=value` and flags as values by name."""
    values: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, has_value, value = word[2:].partition("=")
            values[name] = value.strip("\"'") if has_value else True
            name = None if has_value else name
        elif override := _OVERRIDE.fullmatch(word):
            values[override[1]] = override[2].strip("\"'")
            name = None
        elif name is not None:
            values[name] = word
            name = None
    return values

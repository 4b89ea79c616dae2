"""Read the `--arguments` of a launch script, without running it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

MAX_TEXT = 1 << 14
MAX_VALUE = 1 << 12
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()#]*)")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?[-=]([^}]*))?\}?")


def read_launch_script(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return arguments by name and their lines; variables are those that it assigns plainly."""
    variables: dict[str, str] = {}
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        assigned = _ASSIGNMENT.match(line)
        if assigned:
            variables[assigned[1]] = _resolved(assigned[2].strip("\"'"), variables)[:MAX_VALUE]
        for key, value in arguments(_words(line, variables)).items():
            # Branches of a script may differ: which of them runs is not known.
            values[key] = value if values.get(key, value) == value else None
            lines.setdefault(key, number)
    values = {key: value for key, value in values.items() if value is not None}
    values.update((f"ENV_VARS.{name}", value) for name, value in variables.items())
    return values, lines


def _words(line: str, variables: Mapping[str, str]) -> list[str]:
    line = re.sub(r"(^|\s)#.*", "", line).rstrip("\\ ")
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.replace('"', " ").replace("'", " ").split()
    return [_resolved(part, variables) for word in words for part in word.strip("()").split()]


def _resolved(text: str, variables: Mapping[str, str]) -> str:
    """Replace variables by their values; a text that doubles itself line by line stays bounded."""
    if "$" not in text or len(text) > MAX_TEXT:
        return text
    return _VARIABLE.sub(lambda m: variables.get(m[1], m[2] or m[0]), text)[:MAX_TEXT]


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

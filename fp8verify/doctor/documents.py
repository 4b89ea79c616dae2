"""Read a configuration file into values by dotted key, and the line of each key.

Files are untrusted: their size, the number of values and the depth are bounded.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.errors import InputError, UsageError
from fp8verify.trace.places import empty_path

MAX_BYTES = 4 << 20
MAX_VALUES = 20_000
MAX_DEPTH = 24
MAX_BITS = 1024
_KINDS = {
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".sh": "shell",
    ".bash": "shell",
    ".slurm": "shell",
    ".sbatch": "shell",
    ".py": "python",
}


class Document(NamedTuple):
    """A file as read: its kind, values by dotted key, their lines, and its text."""

    path: str
    kind: str
    values: dict[str, Any]
    lines: dict[str, int]
    text: str = ""


def kind_of(path: str) -> str | None:
    """Return "toml", "yaml", "json", "shell" or "python" by the file's name, None for others."""
    return _KINDS.get(Path(path).suffix.lower())


def read_document(path: str) -> Document:
    """Read one configuration file.

    Raises:
        InputError: it cannot be read, or is not what its name says.
        UsageError: the library for its format is not installed.
    """
    kind = kind_of(path) or "yaml"
    text = _text(path)
    try:
        return _PARSERS[kind](path, text)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(
            f"{path} cannot be read as {kind.upper()}: {reason}.",
            "Pass the file that the training reads; the name's ending tells its format.",
        ) from None


def _text(path: str) -> str:
    if not path:
        raise empty_path()
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"Cannot read {path}: {error.strerror}.", "Name a configuration file with --config."
        ) from None
    if len(data) > MAX_BYTES:
        raise InputError(
            f"{path} is larger than the {MAX_BYTES >> 20} MB of any configuration.",
            "Name the file that the training reads.",
        )
    return data.decode("utf-8", "replace")


def flatten(data: Any) -> dict[str, Any]:
    """Return values by dotted key; a mapping also stands under its own key, as an empty dict."""
    values: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", data, 0)]
    while stack and len(values) < MAX_VALUES:
        prefix, node, depth = stack.pop()
        if isinstance(node, Mapping) and depth < MAX_DEPTH:
            if prefix:
                values[prefix] = {}
            inner = [(f"{prefix}.{key}" if prefix else str(key), node[key]) for key in node]
            stack += [(key, value, depth + 1) for key, value in reversed(inner)]
        elif prefix:
            _refuse_huge(prefix, node)
            values[prefix] = node
    return values


def _refuse_huge(key: str, value: Any) -> None:
    """Refuse what Python does not write as text, for the checks tell numbers in their messages."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, int) and item.bit_length() > MAX_BITS for item in items):
        raise ValueError(f"the number {key} has more than {MAX_BITS} bits")


def _yaml(path: str, text: str) -> Document:
    from fp8verify.doctor.yaml_text import read_yaml

    data, lines = read_yaml(path, text)
    return Document(path, "yaml", flatten(data), lines, text)


def _toml(path: str, text: str) -> Document:
    try:
        library = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise UsageError(
            f"{path} is TOML, and tomli is not installed.", "pip install 'fp8verify[doctor]'"
        ) from None
    return Document(
        path, "toml", flatten(library.loads(_without_mark(text, "TOML"))), _toml_lines(text), text
    )


def _toml_lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([^\]#]+?)\s*\]", line)
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if header:
            section = header[1].replace('"', "").replace("'", "").replace(" ", "")
            lines.setdefault(section, number)
        elif key:
            name = key[1].replace('"', "").replace("'", "")
            lines.setdefault(f"{section}.{name}" if section else name, number)
    return lines


def _json(path: str, text: str) -> Document:
    values = flatten(json.loads(_without_mark(text, "JSON")))
    named = _json_lines(text)
    lines = {key: named[name] for key in values if (name := key.rpartition(".")[2]) in named}
    return Document(path, "json", values, lines, text)


_JSON_NAME = re.compile(r'"((?:[^"\\\n]|\\.)*)"\s*:')


def _json_lines(text: str) -> dict[str, int]:
    """Return the line of each name where it stands first."""
    lines: dict[str, int] = {}
    line, counted = 1, 0
    for match in _JSON_NAME.finditer(text):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        lines.setdefault(match[1], line)
    return lines


def _without_mark(text: str, kind: str) -> str:
    """Refuse a byte order mark, as the trainings' own readers do."""
    if text.startswith("\ufeff"):
        raise ValueError(f"it begins with a byte order mark, which readers of {kind} refuse")
    return text


def _shell(path: str, text: str) -> Document:
    from fp8verify.doctor.launch_script import read_launch_script

    values, lines = read_launch_script(text)
    return Document(path, "shell", values, lines, text)


def _python(path: str, text: str) -> Document:
    return Document(path, "python", {}, {}, text)


_PARSERS = {"yaml": _yaml, "toml": _toml, "json": _json, "shell": _shell, "python": _python}

"""Read a configuration file into values by dotted key, and the line of each key.

Files are untrusted: bytes, keys, values, depth and digits are bounded. Values are parsed as the
frameworks parse them (tomllib, json, PyYAML). Of a Python source there is only its code.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import yaml

from fp8verify.errors import InputError, UsageError
from fp8verify.files import open_regular, parse_toml, reading_file
from fp8verify.preflight.launch_script import read_launch_script

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000
MAX_DEPTH = 24
MAX_KEY = 256
MAX_NODES = 1 << 20
MAX_ALIASED = 100_000  # nodes that the aliases of a YAML file may add to its own
# More digits than Python prints in decimal, or YAML's integers to the base 60: quadratic time.
_HUGE = re.compile(r"[\d_]{301}|0[xob][\da-fA-F_]{301}|(?:\d{1,2}:){150}")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ENDINGS = {
    "toml": (".toml",), "yaml": (".yaml", ".yml"), "json": (".json",), "python": (".py",),
    "shell": (".sh", ".bash", ".slurm", ".sbatch", ".bat", ".cmd", ".ps1"),
}  # fmt: skip


class Document(NamedTuple):
    """A file as read: its kind, values by dotted key, their lines, and its text.

    Attributes:
        text: as it is in the file; of a Python source without comments and docstrings.
        elsewhere: what may add settings to those of the file, such as the file that it extends;
            while there is something, a key that is not given may be set.
        branches: the keys that only a branch of a script gives, with a number for each branch.
    """

    path: str
    kind: str
    values: dict[str, Any]
    lines: Mapping[str, int] = {}
    text: str = ""
    elsewhere: str = ""
    branches: Mapping[str, int] = {}

    @property
    def is_launch(self) -> bool:
        """Whether its values are the arguments of a command, in a script or by itself."""
        return self.kind in ("shell", "arguments")


def kind_of(path: str) -> str | None:
    """Return "toml", "yaml", "json", "shell" or "python" by the file's name, None for others."""
    name = path.lower()
    for kind, endings in _ENDINGS.items():
        if name.endswith(endings):
            return kind
    return None


def read_document(path: str) -> Document:
    """Read one configuration file.

    Raises:
        InputError: it cannot be read, or is not what its name says.
        UsageError: the library for its format is not installed.
    """
    kind = kind_of(path) or "yaml"
    text = _text(path)
    if kind == "python":
        return Document(path, kind, {}, text=_without_remarks(text))
    try:
        if _HUGE.search(text):
            raise ValueError("a number has more than 300 digits")
        if kind == "shell":
            return _launch_script(path, text)
        values, lines = _READERS[kind](text)
    except ImportError as error:
        raise UsageError(
            f"{path} is a launch script, and {error.name} is not installed, which reads it.",
            "pip install tree-sitter tree-sitter-bash",
        ) from None
    except (ValueError, RecursionError) as error:
        if str(error):
            reason = str(error).splitlines()[0][:200]
        else:
            reason = type(error).__name__
        raise InputError(
            f"{path} cannot be read as {kind.upper()}: {reason}.",
            "Pass the file that the run reads; the ending of its name gives the format.",
        ) from None
    _add_lines_of_tables(lines, values)
    return Document(
        path=path,
        kind=kind,
        values=values,
        lines=lines,
        text=text,
        elsewhere=_extended(values),
    )


def _launch_script(path: str, text: str) -> Document:
    bash = _in_bash(path, text)
    script = read_launch_script(bash)
    _add_lines_of_tables(script.lines, script.values)
    return Document(
        path=path,
        kind="shell",
        values=script.values,
        lines=script.lines,
        text=bash,
        elsewhere=script.set_elsewhere,
        branches=script.branches,
    )


def _add_lines_of_tables(lines: dict[str, int], keys: Iterable[str]) -> None:
    """Put what has no line of its own in that of its table."""
    for key in keys:
        table = key.rpartition(".")[0]
        if table in lines:
            lines.setdefault(key, lines[table])


# Where a line goes on in the next one, and a remark: of cmd.exe and of PowerShell.
_CARET = re.compile(r"\^[ \t]*$", re.MULTILINE)
_BACKTICK = re.compile(r"`[ \t]*$", re.MULTILINE)
_GOES_ON = {".bat": _CARET, ".cmd": _CARET, ".ps1": _BACKTICK}
_REMARK = re.compile(r"^[ \t]*@?(?:rem\b|::|echo\b)", re.IGNORECASE | re.MULTILINE)


def _in_bash(path: str, text: str) -> str:
    """Return a script of Windows with lines and remarks as bash has them; others as they are."""
    goes_on = _GOES_ON.get(Path(path).suffix.lower())
    if goes_on is None:
        return text
    return _REMARK.sub("# ", goes_on.sub(r"\\", text))


# Keys by which configurations name those that they extend: of Hydra, mmengine, Primus and others.
_EXTENDS = re.compile(
    r"(?:.*\.)?(?:defaults|_base_|base_config|extends|includes?|inherits?|parent_config)"
)


def _extended(values: Mapping[str, Any]) -> str:
    """Return the key by which a configuration extends another, "" if it has none."""
    for key, value in values.items():
        if value and _EXTENDS.fullmatch(key):
            return key
    return ""


def _text(path: str) -> str:
    hint = "Name a configuration file with --config."
    with reading_file(path, hint), _opened(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(
            f"{path} is larger than {MAX_BYTES >> 20} MB, the limit for configurations.",
            "Name the file that the run reads.",
        )
    return data.decode("utf-8", "replace")


def _opened(path: str) -> IO[bytes]:
    # A shell's `<(…)` is a pipe that the user made; a FIFO that a file names may never be written.
    if path.startswith(("/dev/fd/", "/proc/self/fd/")):
        return Path(path).open("rb")
    return open_regular(Path(path))


def flatten(data: Any) -> dict[str, Any]:
    """Return values by dotted key; a mapping also has its own key, with an empty dict."""
    values: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", data, 0)]
    while stack and len(values) < MAX_VALUES:
        prefix, node, depth = stack.pop()
        if isinstance(node, Mapping):
            if prefix:
                values[prefix] = {}
            if depth == MAX_DEPTH:
                continue
            inner = []
            for key, value in node.items():
                inner.append((_joined(prefix, str(key)), value, depth + 1))
            stack += reversed(inner)
        elif prefix:
            values[prefix] = node
    return values


def _joined(prefix: str, key: str) -> str:
    if len(key) > MAX_KEY:
        raise ValueError(f"a key has more than {MAX_KEY} characters")
    if prefix:
        return f"{prefix}.{key}"
    return key


def _yaml(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        loader = _LOADER(text)
        node = None
        if loader.check_node():
            node = loader.get_node()
        _refuse_expansion(node)
        data = {}
        if node is not None:
            data = loader.construct_document(node)
    except yaml.YAMLError as error:
        words = str(error).split()
        raise ValueError(" ".join(words)) from None
    return flatten(data), _node_lines(node)


def _refuse_expansion(root: Any) -> None:
    """Refuse a graph of nodes whose aliases make it much larger than the file, or endless.

    Raises:
        ValueError: it is so.
    """
    sizes: dict[int, int] = {}  # with all that is in a node, as often as it is
    inside: set[int] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        children = _children(node)
        waiting = [child for child in children if id(child) not in sizes]
        if id(node) not in inside and waiting:
            inside.add(id(node))
            if any(id(child) in inside for child in waiting):
                raise ValueError("an alias is within what it stands for")
            stack += waiting
            continue
        if id(node) not in sizes:
            size = 1 + sum(sizes[id(child)] for child in children)
            # Exact while it is allowed: each alias may double it.
            sizes[id(node)] = min(size, 2 * MAX_NODES)
        stack.pop()
    largest = min(MAX_NODES, len(sizes) + MAX_ALIASED)
    if sizes[id(root)] > largest:
        raise ValueError("its aliases make it many times larger than the file")


def _children(node: Any) -> list[Any]:
    """Return the nodes of a sequence or a mapping, whose keys may be nodes of any kind."""
    kind = getattr(node, "id", "")
    if kind == "mapping":
        return list(chain.from_iterable(node.value))
    nodes: list[Any] = []
    if kind == "sequence":
        nodes = node.value
    return nodes


def _node_lines(root: Any) -> dict[str, int]:
    lines: dict[str, int] = {}
    stack: list[tuple[str, Any]] = [("", root)]
    while stack and len(lines) < MAX_VALUES:  # aliases may make them endless
        prefix, node = stack.pop()
        is_mapping = getattr(node, "id", "") == "mapping"
        if not is_mapping or len(prefix) > MAX_KEY * MAX_DEPTH:
            continue
        for key, value in node.value:
            name = str(key.value)
            if prefix:
                name = f"{prefix}.{key.value}"
            lines[name] = key.start_mark.line + 1
            stack.append((name, value))
    return lines


def _json(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    values = flatten(json.loads(text))
    with suppress(yaml.YAMLError):  # JSON is YAML, but for tabs
        node = yaml.compose(text.replace("\t", " "), _LOADER)
        return values, _node_lines(node)
    return values, {}


def _toml(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    values = flatten(parse_toml(text))
    lines: dict[str, int] = {}
    for name, line in _toml_lines(text):
        if name in values:
            lines.setdefault(name, line)
    return values, lines


def _toml_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield what may be a key, by the `[` or `=` of its line, with its line."""
    table = ""
    closing = ""  # the quotes that end a string of several lines
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if closing:
            if closing in line:
                closing = ""
        elif line.startswith("["):
            name, _, _ = line.strip("[").partition("]")
            table = _bare(name)
            yield table, number
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            yield _joined(table, _bare(key)[:MAX_KEY]), number
            closing = _opened_string(value)


def _opened_string(value: str) -> str:
    """Return the quotes of a string that goes on in the next line, "" if none does."""
    for quotes in ('"""', "'''"):
        if value.count(quotes) % 2:
            return quotes
    return ""


def _bare(key: str) -> str:
    return "".join(char for char in key if char not in "\"' ")


_READERS: Mapping[str, Callable[[str], tuple[dict[str, Any], dict[str, int]]]] = {
    "yaml": _yaml,
    "toml": _toml,
    "json": _json,
}


def _without_remarks(text: str) -> str:
    """Return a Python source without comments and docstrings, as far as it can be read."""
    lines = text.splitlines()
    before = tokenize.NEWLINE
    with suppress(tokenize.TokenError, SyntaxError, ValueError, IndexError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_comment = token.type == tokenize.COMMENT
            is_docstring = token.type == tokenize.STRING and before in _STARTS
            if is_comment or is_docstring:
                _blank_out(lines, token)
            if not is_comment and token.type != tokenize.NL:
                before = token.type
    stripped = [line.rstrip() for line in lines]
    return "\n".join(stripped)


def _blank_out(lines: list[str], token: tokenize.TokenInfo) -> None:
    """Put spaces in the place of a token, which may span lines."""
    first_line, first_column = token.start
    last_line, last_column = token.end
    for number in range(first_line, last_line + 1):
        line = lines[number - 1]
        left = 0
        right = len(line)
        if number == first_line:
            left = first_column
        if number == last_line:
            right = last_column
        spaces = " " * (right - left)
        lines[number - 1] = line[:left] + spaces + line[right:]


_STARTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)

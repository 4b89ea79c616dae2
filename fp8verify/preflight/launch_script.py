"""Read the `--arguments` of a launch script from its syntax tree, without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from typing import Any

MAX_TEXT = 1 << 14
MAX_VALUE = 1 << 12
MAX_GROWTH = 1 << 21  # of a whole script, by the values of its variables
MAX_DEPTH = 200
MAX_SHELLS = 4  # here-documents within here-documents
# $NAME, ${NAME}, and with another word: ${NAME:-word}, ${NAME:=word}, ${NAME:+word}.
_VARIABLE = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)"
    r"|\{(?P<braced>[A-Za-z_]\w*)(?::?(?P<sign>[-=+])(?P<word>(?:[^{}]|\$\{[^{}]*\})*))?\})"
)
# A word that is nothing but a variable: $ARGS, ${ARGS}, ${ARGS[@]}, $@, ${@:2}.
_WHOLE = re.compile(r"\$\{?(?P<name>[A-Za-z_]\w*|[@*])(?:\[[@*]\]|:\d+)?\}?")
_HOLDS_ARGUMENTS = re.compile(r"[@*]|.*(?:ARG|OPT|FLAG|EXTRA|OVERRIDE)", re.IGNORECASE)
_BRANCHES = ("if_statement", "elif_clause", "else_clause", "case_item")
_SHELLS = re.compile(
    r"^\s*(?:ba|z|k)?sh\b|^\s*(?:srun|sbatch|ssh)\b|>\s*\S+\.(?:sh|sbatch|slurm)"
)


def read_launch_script(
    text: str,
) -> tuple[dict[str, Any], dict[str, int], str, dict[str, int]]:
    """Return arguments by name and their lines; variables are those that it assigns plainly.

    The words of arrays are read where the array is assigned. A here-document is data, unless a
    shell reads it. Third come the words that hold arguments and are set elsewhere, then the
    arguments that only a branch of the script has, with where it begins. A value in which branches
    differ is "$".

    Raises:
        ImportError: tree-sitter or its grammar of bash is not installed.
    """
    script = _Script()
    script.read(text, 0, 0)
    set_here = {*script.variables, *script.arrays}
    unset = [word for word, name in script.expanded.items() if name not in set_here]
    variables = {f"ENV_VARS.{name}": value for name, value in script.variables.items()}
    branches = {key: branch for key, branch in script.branches.items() if branch}
    return {**script.values, **variables}, script.lines, ", ".join(unset[:3]), branches


def _tree(text: str) -> Any:
    library = import_module("tree_sitter")
    language = import_module("tree_sitter_bash")
    parser = library.Parser(library.Language(language.language()))
    return parser.parse(text.encode()).root_node


class _Script:
    """What was read of a script so far."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.arrays: set[str] = set()
        self.expanded: dict[
            str, str
        ] = {}  # the names of variables by the words that they are
        self.branches: dict[
            str, int
        ] = {}  # of arguments, by where they begin; 0 is outside
        self._room = MAX_GROWTH

    def read(self, text: str, first_line: int, shells: int) -> None:
        """Read a text whose first line is that of the script after `first_line`."""
        stack = [(_tree(text), 0, 0)]
        while stack:
            node, depth, branch = stack.pop()
            if node.type == "variable_assignment":
                self._assign(node)
            if node.type in ("command", "array", "variable_assignment", "ERROR"):
                self._words(node, first_line, branch)
            if node.type == "redirected_statement" and shells < MAX_SHELLS:
                self._here_document(node, first_line, shells + 1)
            if depth < MAX_DEPTH and node.type not in (
                "heredoc_body",
                "string",
                "raw_string",
            ):
                if node.type in _BRANCHES:
                    branch = node.start_byte + 1
                stack += [
                    (child, depth + 1, branch) for child in reversed(node.children)
                ]

    def _assign(self, node: Any) -> None:
        name, value = (node.child_by_field_name(field) for field in ("name", "value"))
        if name is not None and value is not None and value.type == "array":
            self.arrays.add(_text(name))
        elif name is not None and name.type == "variable_name":
            text = ""
            if value is not None:
                text = self._resolved(_unquoted(value))
            self.variables[_text(name)] = text.strip("\"'")[:MAX_VALUE]

    def _words(self, node: Any, first_line: int, branch: int) -> None:
        """Read the words of a command or an array, or of a string that holds arguments."""
        words: list[tuple[str, int]] = []
        for child in node.named_children:
            if child.type in (
                "comment",
                "variable_assignment",
                "array",
                "variable_name",
            ):
                continue
            for number, line in enumerate(_unquoted(child).splitlines()):
                parts = (
                    self._resolved(line.replace("\\", " ")).replace('"', " ").split()
                )
                row = first_line + child.start_point[0] + number + 1
                words += [(part.strip("'"), row) for part in parts]
        plain = self._without_variables(words)
        for key, value, place in _arguments([word for word, _ in plain]):
            # Branches of a script may differ: which of them runs is not known.
            self.values[key] = value if self.values.get(key, value) == value else "$"
            self.lines.setdefault(key, plain[place][1])
            self.branches[key] = branch and self.branches.get(key, branch)

    def _without_variables(self, words: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return words without variables that hold arguments, which are kept in `expanded`."""
        plain: list[tuple[str, int]] = []
        for word, row in words:
            found = _WHOLE.fullmatch(word)
            after_value = bool(plain) and not plain[-1][0].startswith("--")
            has_flag = any(other.startswith("--") for other, _ in plain)
            if found and (
                _HOLDS_ARGUMENTS.match(found["name"]) or (has_flag and after_value)
            ):
                self.expanded.setdefault(word, found["name"])
            elif not (found and "[" in word):
                plain.append((word, row))
        return plain

    def _here_document(self, node: Any, first_line: int, shells: int) -> None:
        if not _SHELLS.search(_text(node).partition("\n")[0]):
            return
        for redirect in node.named_children:
            for body in (
                redirect.named_children if redirect.type == "heredoc_redirect" else ()
            ):
                if body.type == "heredoc_body":
                    self.read(_text(body), first_line + body.start_point[0], shells)

    def _resolved(self, text: str) -> str:
        if self._room > 0:
            resolved = _resolved(text, self.variables)
        else:
            resolved = text
        self._room -= max(0, len(resolved) - len(text))
        return resolved


def _text(node: Any) -> str:
    return str(node.text.decode("utf-8", "replace"))


def _unquoted(node: Any) -> str:
    text = _text(node)
    if node.type in ("string", "raw_string"):
        return text[1:-1]
    return text


def _resolved(text: str, variables: Mapping[str, str]) -> str:
    """Replace variables by their values; a text that doubles itself line by line stays bounded."""
    if "$" not in text or len(text) > MAX_TEXT:
        return text
    return _VARIABLE.sub(lambda match: _value(match, variables), text)[:MAX_TEXT]


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return a variable's values; one that is set elsewhere counts as both set and unset."""
    value = variables.get(match["name"] or match["braced"])
    word = match["word"]
    if word is None:
        if value is None:
            return match[0]
        return value
    if match["sign"] == "+":
        if value == "":
            return ""
        return _resolved(word, variables)
    return value or _resolved(word, variables)


_OVERRIDE = re.compile(
    r"\+{0,2}([a-z][\w.]*)=(\S*)"
)  # Hydra's, OmegaConf's and torchtune's


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return `--name value`, `--name=value`, `name=value` and flags as values by name."""
    return {name: value for name, value, _ in _arguments(words)}


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, Any, int]]:
    """Yield each argument with its value and the place of its name."""
    for place, (word, following) in enumerate(
        zip_longest(words, words[1:], fillvalue="--end")
    ):
        if override := _OVERRIDE.fullmatch(word):
            yield override[1], override[2].strip("\"'"), place
        elif _is_name(word):
            name, has_value, value = word[2:].partition("=")
            has_none = _is_name(following) or _OVERRIDE.fullmatch(following)
            yield (
                name,
                value.strip("\"'") if has_value else bool(has_none) or following,
                place,
            )


def _is_name(word: str) -> bool:
    return word.startswith("--") and len(word) > 2

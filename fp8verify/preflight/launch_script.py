"""Read the `--arguments` of a launch script from its syntax tree, without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

MAX_TEXT = 1 << 14
MAX_VALUE = 1 << 12
MAX_GROWTH = 1 << 21  # of a whole script, by the values of its variables
MAX_DEPTH = 200
MAX_SHELLS = 4  # here-documents within here-documents
# $NAME, ${NAME}, and with another word: ${NAME:-word}, ${NAME:=word}, ${NAME:+word}.
_NAME = r"[A-Za-z_]\w*"
_WORD = r"(?:[^{}]|\$\{[^{}]*\})*"
_PLAIN = rf"\$(?P<name>{_NAME})"
_BRACED = rf"\$\{{(?P<braced>{_NAME})(?::?(?P<sign>[-=+])(?P<word>{_WORD}))?\}}"
_VARIABLE = re.compile(f"{_PLAIN}|{_BRACED}")
# A word that is nothing but a variable: $ARGS, ${ARGS}, ${ARGS[@]}, $@, ${@:2}.
_WHOLE = re.compile(r"\$\{?(?P<name>[A-Za-z_]\w*|[@*])(?:\[[@*]\]|:\d+)?\}?")
_HOLDS_ARGUMENTS = re.compile(r"[@*]|.*(?:ARG|OPT|FLAG|EXTRA|OVERRIDE)", re.IGNORECASE)
_BRANCHES = ("if_statement", "elif_clause", "else_clause", "case_item")
_HOLDS_WORDS = ("command", "array", "variable_assignment", "ERROR")
_NOT_WORDS = ("comment", "variable_assignment", "array", "variable_name")
_CLOSED = ("heredoc_body", "string", "raw_string")
_SHELLS = re.compile(
    r"^\s*(?:ba|z|k)?sh\b|^\s*(?:srun|sbatch|ssh)\b|>\s*\S+\.(?:sh|sbatch|slurm)"
)


class LaunchScript(NamedTuple):
    """What a launch script says.

    Attributes:
        values: of its arguments by name, and of the variables that it assigns plainly; a value in
            which branches of the script differ is "$".
        lines: of its arguments by name.
        set_elsewhere: the words that hold arguments and are not set in it; "" if there are none.
        branches: the arguments that only a branch of it has, with where the branch begins.
    """

    values: dict[str, Any]
    lines: dict[str, int]
    set_elsewhere: str
    branches: dict[str, int]


def read_launch_script(text: str) -> LaunchScript:
    """Read a script of bash.

    The words of arrays are read where the array is assigned. A here-document is data, unless a
    shell reads it.

    Raises:
        ImportError: tree-sitter or its grammar of bash is not installed.
    """
    script = _Script()
    script.read(text, 0, 0)
    values = dict(script.values)
    for name, value in script.variables.items():
        values[f"ENV_VARS.{name}"] = value
    branches = {}
    for name, branch in script.branches.items():
        if branch:
            branches[name] = branch
    return LaunchScript(
        values=values,
        lines=script.lines,
        set_elsewhere=", ".join(script.unset()[:3]),
        branches=branches,
    )


def _tree(text: str) -> Any:
    library = import_module("tree_sitter")
    grammar = import_module("tree_sitter_bash")
    language = library.Language(grammar.language())
    parser = library.Parser(language)
    tree = parser.parse(text.encode())
    return tree.root_node


class _Script:
    """What was read of a script so far.

    Attributes:
        variables: values by name.
        values: of arguments by name.
        lines: of arguments by name.
        arrays: the names of arrays.
        expanded: the names of variables by the words that they are.
        branches: of arguments, by where they begin; 0 is outside.
    """

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.arrays: set[str] = set()
        self.expanded: dict[str, str] = {}
        self.branches: dict[str, int] = {}
        self._room = MAX_GROWTH

    def read(
        self,
        text: str,
        first_line: int,
        shells: int,
    ) -> None:
        """Read a text whose first line is that of the script after `first_line`."""
        stack = [(_tree(text), 0, 0)]
        while stack:
            node, depth, branch = stack.pop()
            if node.type == "variable_assignment":
                self._assign(node)
            if node.type in _HOLDS_WORDS:
                self._words(node, first_line, branch)
            if node.type == "redirected_statement" and shells < MAX_SHELLS:
                self._here_document(node, first_line, shells + 1)
            if depth >= MAX_DEPTH or node.type in _CLOSED:
                continue
            if node.type in _BRANCHES:
                branch = node.start_byte + 1
            for child in reversed(node.children):
                stack.append((child, depth + 1, branch))

    def unset(self) -> list[str]:
        """Return the words that are variables which the script does not set."""
        words = []
        for word, name in self.expanded.items():
            if name not in self.variables and name not in self.arrays:
                words.append(word)
        return words

    def _assign(self, node: Any) -> None:
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if name is None:
            return
        if value is not None and value.type == "array":
            self.arrays.add(_text(name))
        elif name.type == "variable_name":
            text = ""
            if value is not None:
                text = self._resolved(_unquoted(value))
            plain = text.strip("\"'")
            self.variables[_text(name)] = plain[:MAX_VALUE]

    def _words(
        self,
        node: Any,
        first_line: int,
        branch: int,
    ) -> None:
        """Read the words of a command or an array, or of a string that holds arguments."""
        words: list[tuple[str, int]] = []
        for child in node.named_children:
            if child.type in _NOT_WORDS:
                continue
            first_row = first_line + child.start_point[0] + 1
            lines = _unquoted(child).splitlines()
            for row, line in enumerate(lines, first_row):
                for word in self._words_of(line):
                    words.append((word, row))
        plain = self._without_variables(words)
        plain_words = [word for word, _ in plain]
        for key, value, index in _arguments(plain_words):
            # Branches of a script may differ: which of them runs is not known.
            if self.values.get(key, value) != value:
                value = "$"
            self.values[key] = value
            self.lines.setdefault(key, plain[index][1])
            self.branches[key] = branch and self.branches.get(key, branch)

    def _words_of(self, line: str) -> Iterator[str]:
        """Yield the words of a line with the values of its variables and without quotes."""
        resolved = self._resolved(line.replace("\\", " "))
        values_unquoted = resolved.replace('="', "=")
        unquoted = values_unquoted.replace('"', " ")
        for word in unquoted.split():
            yield word.strip("'")

    def _without_variables(self, words: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return words without variables that hold arguments, which are kept in `expanded`."""
        plain: list[tuple[str, int]] = []
        for word, row in words:
            variable = _WHOLE.fullmatch(word)
            if variable and self._holds_arguments(variable["name"], plain):
                self.expanded.setdefault(word, variable["name"])
                continue
            is_array = variable is not None and "[" in word
            if not is_array:
                plain.append((word, row))
        return plain

    @staticmethod
    def _holds_arguments(
        variable: str,
        before: list[tuple[str, int]],
    ) -> bool:
        """Whether a variable stands for arguments, by its name or behind a flag's value."""
        if _HOLDS_ARGUMENTS.match(variable):
            return True
        has_flag = any(word.startswith("--") for word, _ in before)
        return has_flag and not before[-1][0].startswith("--")

    def _here_document(
        self,
        node: Any,
        first_line: int,
        shells: int,
    ) -> None:
        if not _SHELLS.search(_text(node).partition("\n")[0]):
            return
        for redirect in node.named_children:
            if redirect.type != "heredoc_redirect":
                continue
            for body in redirect.named_children:
                if body.type == "heredoc_body":
                    self.read(_text(body), first_line + body.start_point[0], shells)

    def _resolved(self, text: str) -> str:
        if self._room <= 0:
            return text
        resolved = _resolved(text, self.variables)
        growth = len(resolved) - len(text)
        self._room -= max(0, growth)
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

    def value_of(match: re.Match[str]) -> str:
        return _value(match, variables)

    return _VARIABLE.sub(value_of, text)[:MAX_TEXT]


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return a variable's values; one that is set elsewhere counts as both set and unset."""
    name = match["name"] or match["braced"]
    value = variables.get(name)
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


# Hydra's, OmegaConf's and torchtune's
_OVERRIDE = re.compile(r"\+{0,2}([a-z][\w.]*)=(\S*)")


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return `--name value`, `--name=value`, `name=value` and flags as values by name."""
    values = {}
    for name, value, _ in _arguments(words):
        values[name] = value
    return values


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, Any, int]]:
    """Yield each argument with its value and the index of its name."""
    followings = [*words[1:], "--end"]
    for index, word in enumerate(words):
        override = _OVERRIDE.fullmatch(word)
        if override:
            name, value = override.groups()
            yield name, value.strip("\"'"), index
            continue
        if not _is_name(word):
            continue
        name, equals, value = word[2:].partition("=")
        following = followings[index]
        if equals:
            yield name, value.strip("\"'"), index
        elif _is_name(following) or _OVERRIDE.fullmatch(following):
            yield name, True, index
        else:
            yield name, following, index


def _is_name(word: str) -> bool:
    return word.startswith("--") and len(word) > 2

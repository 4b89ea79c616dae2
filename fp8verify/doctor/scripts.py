"""What a Python source says about FP8, read without running it.

torchtitan's configurations are Python since March 2026; other scripts show what they convert, how
they scale, and a `torch.autocast` that cannot train in FP8.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fp8verify.doctor.conditions import all_hold
from fp8verify.doctor.tables import table
from fp8verify.doctor.training import Ask

_UNKNOWN = object()


class Symbol(str):
    """The last part of a dotted name used as a value."""


class Variable(NamedTuple):
    """A bare name used as a value: a variable, or a function."""

    name: str

    def __str__(self) -> str:
        return self.name


class Call(NamedTuple):
    """A call of interest: its name without the module, its literal arguments, and its line.

    `function` has the first and the last line of the function that it is in, if it is in one.
    """

    name: str
    arguments: Mapping[str, Any]
    line: int
    function: tuple[int, int] | None = None


class Script(NamedTuple):
    """A Python source.

    Attributes:
        path: as the user named it.
        text: the source.
        calls: the calls that concern precision.
        asks: the low precision that it may request; a branch may prevent it.
        why_unread: why it cannot be parsed as Python; "" if it can.
    """

    path: str
    text: str
    calls: tuple[Call, ...] = ()
    asks: tuple[Ask, ...] = ()
    why_unread: str = ""

    def named(self, *names: str) -> tuple[Call, ...]:
        """Return the calls of any of these names."""
        return tuple(call for call in self.calls if call.name in names)


def read_script(path: str, text: str) -> Script:
    """Read a source; one that cannot be parsed has no calls."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return Script(path, text, why_unread=f"{type(error).__name__}{line}")
    calls = tuple(_calls(tree))
    return Script(path, text, calls, tuple(dict.fromkeys(_asks(calls))))


def _calls(tree: ast.AST) -> Iterator[Call]:
    stack: list[tuple[ast.AST, tuple[int, int] | None]] = [(tree, None)]
    while stack:
        node, function = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = (node.lineno, node.end_lineno or node.lineno)
        stack += [(child, function) for child in reversed(list(ast.iter_child_nodes(node)))]
        name = _name(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and name is not None:
            literals = {key.arg: _literal(key.value) for key in node.keywords if key.arg}
            positional = {str(i): _literal(arg) for i, arg in enumerate(node.args)}
            arguments = {**positional, **literals}
            recipe = _recipe(arguments)
            known = {"recipe": recipe} if recipe is not None else {}
            yield Call(name, {**arguments, **known}, node.lineno, function)


def _name(function: ast.expr) -> str | None:
    """Return the name that is called; of torchtitan's `Converter.Config(…)`, the converter's."""
    if isinstance(function, ast.Attribute):
        if function.attr in ("Config", "from_recipe_name"):
            owner = _name(function.value)
            return owner if function.attr == "Config" else f"{owner}.from_recipe_name"
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _literal(node: ast.expr) -> Any:
    """Return a literal, the symbol of a name such as `torch.float8_e4m3fn`, or a variable."""
    if isinstance(node, ast.Attribute):
        return Symbol(node.attr)
    if isinstance(node, ast.Name):
        return Variable(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN


def _asks(calls: tuple[Call, ...]) -> Iterator[Ask]:
    known = table("scripts")["calls"]
    for call in calls:
        row = known.get(call.name)
        if row is not None and not ("unless" in row and all_hold(row["unless"], call.arguments)):
            given = call.arguments.get("recipe") if row["format"] == "fp8" else None
            fixed = None if "recipe_name" in call.arguments else row.get("recipe")
            yield Ask(row["format"], given or fixed, row.get("backend"), call.name)
        elif call.arguments.get("mixed_precision") == "fp8":
            yield Ask("fp8", None, None, "mixed_precision")
        elif str(call.arguments.get("precision", "")).startswith("transformer-engine"):
            yield Ask("fp8", "delayed", "te", "precision")


def _recipe(arguments: Mapping[str, Any]) -> str | None:
    """Return the recipe of a call: a string, or a member of an enumeration; None for a variable."""
    recipe = arguments.get("recipe_name", arguments.get("0"))
    if isinstance(recipe, Symbol):
        return recipe.lower() if recipe.isupper() else None
    return recipe if isinstance(recipe, str) else None

"""Tables of the documentation that are read off the code."""

from __future__ import annotations

import ast
import inspect as python_inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import fp8verify
from fp8verify.cli.group import COMMANDS
from fp8verify.report.model import Verdict
from fp8verify.report.model.meanings import MEANINGS
from fp8verify.verdict.verdict import EXIT_CODES
from scripts.docs import support
from scripts.docs.shell import ROOT, printed

_JUDGING = ROOT / "fp8verify" / "judging"
# Held by tests/unit/test_verdict.py.
_RAISED = (
    "; 1 where a finding is an error, where `--min-share` was given and is not met, or with "
    "`--strict`"
)
_GRAVITY = ("error", "warning", "info")


def verdicts() -> str:
    """Make the table of verdicts, with the exit code that each gets."""
    lines = ["| verdict | means | exit code |", "|---|---|---|"]
    for verdict in Verdict:
        code = f"{EXIT_CODES[verdict]}{_RAISED if verdict is Verdict.PARTIAL else ''}"
        lines.append(f"| {verdict.value} | {MEANINGS[verdict]} | {code} |")
    return "\n".join(lines)


class Rule(NamedTuple):
    """One place in the code that makes a finding.

    Attributes:
        code: the finding's.
        severities: those that it can have.
        verdicts: those that it makes of its ranks, if any.
        means: what the rule's docstring says.
        hints: what the reader is advised.
    """

    code: str
    severities: tuple[str, ...]
    verdicts: tuple[str, ...]
    means: str
    hints: tuple[str, ...]


def findings() -> str:
    """List every finding: how grave it is, what it means, what to do."""
    by_code: dict[str, list[Rule]] = defaultdict(list)
    for rule in rules():
        by_code[rule.code].append(rule)
    ordered = sorted(by_code, key=lambda code: (_gravest(by_code[code]), code))
    return "\n\n".join(_entry(code, by_code[code]) for code in ordered)


def _gravest(found: list[Rule]) -> int:
    return min(_GRAVITY.index(name) for rule in found for name in rule.severities)


def _entry(code: str, found: list[Rule]) -> str:
    severities = [name for name in _GRAVITY if any(name in rule.severities for rule in found)]
    verdicts = dict.fromkeys(name for rule in found for name in rule.verdicts)
    makes = f"; makes the verdict {' or '.join(verdicts)}" if verdicts else ""
    lines = [f"### {code}", "", f"*{' or '.join(severities)}{makes}*", ""]
    for rule in found:
        hints = " Or: ".join(rule.hints)
        lines.append(f"- {rule.means}{f'  {chr(10)}  → {hints}' if hints else ''}")
    return "\n".join(lines)


def rules() -> Iterator[Rule]:
    """Read every place that makes a finding, without running it."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(_JUDGING.rglob("*.py"))]
    # Those that other files may import.
    public = {
        function.name: function
        for tree in trees
        for function in _functions(tree)
        if not function.name.startswith("_")
    }
    texts = {
        name: text
        for tree in trees
        for name, text in _constants(tree).items()
        if not name.startswith("_")
    }
    for tree in trees:
        own = {function.name: function for function in _functions(tree)}
        yield from _rules_of(tree, Names({**texts, **_constants(tree)}, {**public, **own}))


class Names(NamedTuple):
    """What the names in a file stand for: texts, and functions of it or of other files."""

    texts: Mapping[str, str]
    functions: Mapping[str, ast.FunctionDef]

    def without(self, name: str) -> Names:
        """Return the same without a function, whose own calls of itself tell nothing."""
        others = {key: value for key, value in self.functions.items() if key != name}
        return self._replace(functions=others)


def _rules_of(tree: ast.Module, known: Names) -> Iterator[Rule]:
    makers = {name: made for name, made in known.functions.items() if _passes_a_code_on(made)}
    for function in _functions(tree):
        for call in ast.walk(function):
            name = getattr(getattr(call, "func", None), "id", "")
            if isinstance(call, ast.Call) and name in {"Finding", *makers}:
                given = _arguments(call, makers.get(name))
                if function.name not in makers:
                    yield _rule(given, function, known)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _passes_a_code_on(function: ast.FunctionDef) -> bool:
    """Whether a function makes a finding whose code it was given."""
    own = {argument.arg for argument in function.args.args}
    return any(
        isinstance(node, ast.keyword)
        and node.arg == "code"
        and getattr(node.value, "id", "") in own
        for node in ast.walk(function)
    )


def _arguments(call: ast.Call, function: ast.FunctionDef | None) -> dict[str | None, ast.expr]:
    """Return the arguments of a call by name."""
    names = [argument.arg for argument in function.args.args] if function is not None else []
    return {
        **dict(zip(names, call.args, strict=False)),
        **{word.arg: word.value for word in call.keywords},
    }


def _rule(given: Mapping[str | None, ast.expr], function: ast.FunctionDef, known: Names) -> Rule:
    means = " ".join((ast.get_docstring(function) or "").split("\n\n")[0].split())
    hints = _texts(given["hint"], known) if "hint" in given else ()
    return Rule(
        code=next(iter(_texts(given["code"], known))),
        severities=tuple(name.lower() for name in _members(given["severity"], "Severity"))
        or _GRAVITY[:2],
        verdicts=tuple(_members(given["verdict"], "Verdict")) if "verdict" in given else (),
        means=escaped(means),
        hints=tuple(escaped(hint) for hint in hints if any(map(str.isalpha, hint))),
    )


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts that a module gives names to."""
    return {
        node.targets[0].id: str(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def _members(node: ast.expr, enum: str) -> list[str]:
    """Return the members of an enum that an expression names."""
    return [
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == enum
    ]


def _texts(node: ast.expr, known: Names) -> Iterator[str]:
    """Yield the texts that an expression can be; what only a run knows is an ellipsis."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body, known)
        yield from _texts(node.orelse, known)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Name) and node.id in known.texts:
        yield known.texts[node.id]
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    elif isinstance(node, ast.BinOp):
        left, right = (next(_texts(side, known), "") for side in (node.left, node.right))
        yield left + right
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in known.functions:
        yield from _returned(known.functions[getattr(node.func, "id", "")], known)


def _returned(function: ast.FunctionDef, known: Names) -> Iterator[str]:
    """Yield the texts that a function can return."""
    found = [part for part in ast.walk(function) if isinstance(part, ast.Return)]
    for part in sorted(found, key=lambda part: part.lineno):
        if part.value is not None:
            yield from _texts(part.value, known.without(function.name))


def escaped(text: str) -> str:
    """Keep Markdown from reading tags and stars in plain text."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*")
        for part in parts
    )


def commands() -> str:
    """Give the help of every command."""
    parts = []
    for name in COMMANDS:
        shown, _ = printed(f"fp8verify {name} --help")
        parts.append(f"## fp8verify {name}\n\n```text\n{shown}\n```")
    return "\n\n".join(parts)


def python() -> str:
    """Give signature and docstring of every public name."""
    return "\n\n".join(_public(name) for name in fp8verify.__all__ if not name.startswith("_"))


def _public(name: str) -> str:
    value = getattr(fp8verify, name)
    documented = python_inspect.cleandoc(value.__doc__ or "")
    parts = [f"## {name}", f"```python\n{_signature(name, value)}\n```"]
    return "\n\n".join([*parts, f"```text\n{documented}\n```"])


def _signature(name: str, value: object) -> str:
    if isinstance(value, type):
        return f"class fp8verify.{name}"
    shown = str(python_inspect.signature(value)) if callable(value) else ""
    return f"fp8verify.{name}{shown.replace(chr(39), '')}"


def captures() -> list[Path]:
    """Return the captures that ship with the project."""
    return sorted(path.parent for path in (ROOT / "traces").glob("*/expected.json"))


def doctor_measured() -> str:
    """Lay what the doctor measured beside what trainings did."""
    return _doctor_measured(lambda row: list(row))


def doctor_measured_short() -> str:
    """Give the same in three columns, for the README."""
    return _doctor_measured(lambda _: ["model", "the doctor says", "training says"])


def _doctor_measured(heads_of: Callable[[Mapping[str, str]], list[str]]) -> str:
    path = ROOT / "benchmarks" / "results" / "doctor_measure.json"
    if not path.exists():
        return "Not measured yet: `benchmarks/doctor_measure.sh` on a GPU makes the table."
    found = json.loads(path.read_text(encoding="utf-8"))
    heads = heads_of(found["rows"][0])
    lines = [heads, ["---"] * len(heads), *([row[head] for head in heads] for row in found["rows"])]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{found['where']}, {found['date']}:\n\n{table}"


TABLES: Mapping[str, Callable[[], str]] = {
    "doctor measured": doctor_measured,
    "doctor measured short": doctor_measured_short,
    "verdicts": verdicts,
    "findings": findings,
    "commands": commands,
    "python": python,
    **{name: lambda text=text: text for name, text in support.tables()},
}

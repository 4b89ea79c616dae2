"""No code compares with a sentence: a reworded note would change a verdict, unnoticed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fp8verify

PACKAGE = Path(fp8verify.__file__).parent
READ_MESSAGES_OF_OTHERS = ("frameworks", "logs")
WORDS = 4  # names of frameworks have three
COMPARING = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "index",
    "find",
    "count",
}


def test_nothing_is_compared_with_a_sentence() -> None:
    files = [
        file
        for file in PACKAGE.rglob("*.py")
        if file.relative_to(PACKAGE).parts[0] not in READ_MESSAGES_OF_OTHERS
    ]
    assert [
        f"{file.name}: {text}" for file in files for text in compared(file.read_text())
    ] == []


@pytest.mark.parametrize(
    "code",
    [
        "'this is a note' in notes",
        "note == f'ended after step {n}'",
        "note.startswith(('no', 'the command ended with'))",
        "PREFIX = 'the command ended with'\nfound = note.startswith(PREFIX)",
        "match note:\n    case 'this is a note':\n        pass",
    ],
)
def test_each_way_to_compare_is_seen(code: str) -> None:
    assert len(list(compared(code))) == 1


def compared(code: str) -> Iterator[str]:
    """Yield the sentences that the code of a module compares with, those in constants too."""
    tree = ast.parse(code)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in COMPARING:
            sides = node.args[:1]
        for side in sides:
            value = constants.get(side.id, side) if isinstance(side, ast.Name) else side
            parts = (
                value.elts
                if isinstance(value, (ast.Tuple, ast.List, ast.Set))
                else [value]
            )
            yield from (
                text for text in map(text_of, parts) if len(text.split()) >= WORDS
            )


def text_of(node: ast.expr) -> str:
    """Return the text of a string, with a word for each field of an f-string; "" of all else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return (
        node.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else ""
    )

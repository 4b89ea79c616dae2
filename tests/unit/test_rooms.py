"""Which file of the package may import which.

All imports count, also those inside functions and those for the type checker alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fp8verify

PACKAGE = Path(fp8verify.__file__).parent
FACADE = PACKAGE / "__init__.py"
MAX_LOOSE_MODULES = 8


def test_no_cycle_between_files() -> None:
    try:
        TopologicalSorter(import_graph(PACKAGE)).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(f"{file.relative_to(PACKAGE)}" for file in error.args[1]))


def test_the_agent_imports_nothing_of_the_rest_and_the_rest_nothing_of_the_agent() -> None:
    agent = PACKAGE / "agent"
    crossing = [
        f"{importer.relative_to(PACKAGE)} imports {imported.relative_to(PACKAGE)}"
        for importer, files in import_graph(PACKAGE).items()
        for imported in files
        if (agent in importer.parents) != (agent in imported.parents)
    ]
    assert crossing == []


def test_few_modules_lie_loose() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_LOOSE_MODULES


@pytest.mark.parametrize(
    "source",
    [
        "import fp8verify.b.deep",
        "from fp8verify.b import deep",
        "from fp8verify.b.deep import name",
        "from ..b import deep",
        "from ..b.deep import name",
        "def f():\n    from fp8verify.b.deep import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fp8verify.b.deep",
        "from importlib import import_module\nimport_module('fp8verify.b.deep')",
    ],
)
def test_the_graph_has_every_kind_of_import(source: str, tmp_path: Path) -> None:
    package = tmp_path / "fp8verify"
    for folder in ("a", "b"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "b" / "deep.py").touch()
    (package / "a" / "file.py").write_text(source)
    assert package / "b" / "deep.py" in import_graph(package)[package / "a" / "file.py"]


def import_graph(package: Path) -> dict[Path, set[Path]]:
    """Return for each file of a package the files of it that it imports.

    The facade, `__init__.py` of the package itself, imports lazily and is left out.
    """
    graph: dict[Path, set[Path]] = {}
    for file in sorted(package.rglob("*.py")):
        if file == package / "__init__.py":
            continue
        here = (package.name, *file.relative_to(package).parent.parts)
        names = [n for node in ast.walk(ast.parse(file.read_text())) for n in imported(node, here)]
        graph[file] = set(filter(None, (file_of(name, package) for name in names))) - {file}
    return graph


def imported(node: ast.AST, here: tuple[str, ...]) -> Iterator[str]:
    """Yield the dotted names that a statement of a file in the folder `here` imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = here[: len(here) - node.level + 1] if node.level else ()
        base = ".".join([*above, *filter(None, [node.module])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        argument = node.args[0] if node.args else None
        if name == "import_module" and isinstance(argument, ast.Constant):
            yield str(argument.value)


def file_of(name: str, package: Path) -> Path | None:
    """Return the file that a dotted name is, or is defined in; None outside the package."""
    parts = name.split(".")
    if parts[0] != package.name:
        return None
    for length in range(len(parts), 1, -1):
        path = package.joinpath(*parts[1:length])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    return None

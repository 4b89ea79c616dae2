"""Which file of the package may import which: imports only point down.

All imports count, also those inside functions and those for the type checker alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fp8verify

PACKAGE = Path(fp8verify.__file__).parent
FACADE = PACKAGE / "__init__.py"
MAX_LOOSE_MODULES = 9
MAX_FUNCTION_LINES = 80
# From the lowest one up: a file imports its own room and those before it.
ROOMS = (
    "frameworks", "capture", "trace", "kernels", "model", "logs", "analysis", "verdict",
    "report", "pipeline", "record", "integrations", "comparison", "preflight", "annotate", "prove",
    "pytest_plugin", "cli",
)  # fmt: skip
SATELLITES = {"annotate", "comparison", "integrations", "preflight", "prove"}
FRONTS = {"cli", "pytest_plugin"}
PAGE = Path(__file__).parents[2] / "docs/how-it-works.md"


def test_no_cycle_between_files() -> None:
    try:
        TopologicalSorter(import_graph(PACKAGE)).prepare()
    except CycleError as error:
        pytest.fail(
            " <- ".join(f"{file.relative_to(PACKAGE)}" for file in error.args[1])
        )


def test_the_agent_imports_nothing_of_the_rest_and_the_rest_nothing_of_the_agent() -> (
    None
):
    agent = PACKAGE / "agent"
    crossing = [
        f"{importer.relative_to(PACKAGE)} imports {imported.relative_to(PACKAGE)}"
        for importer, files in import_graph(PACKAGE).items()
        for imported in files
        if (agent in importer.parents) != (agent in imported.parents)
    ]
    assert crossing == []


def test_imports_only_point_down() -> None:
    upward = [
        f"{importer.relative_to(PACKAGE)} imports {imported.relative_to(PACKAGE)}"
        for importer, files in import_graph(PACKAGE).items()
        for imported in files
        if height_of(imported) > height_of(importer)
    ]
    assert upward == []


def test_only_what_faces_the_user_imports_a_satellite() -> None:
    crossing = [
        f"{importer.relative_to(PACKAGE)} imports {imported.relative_to(PACKAGE)}"
        for importer, files in import_graph(PACKAGE).items()
        for imported in files
        if room_of(imported) in SATELLITES - {room_of(importer)}
        and room_of(importer) not in FRONTS
    ]
    assert crossing == []


def test_the_page_on_the_code_lists_the_rooms_in_their_order() -> None:
    listed = re.findall(r"^\| `([a-z_/]+)/` \|", PAGE.read_text(), re.MULTILINE)
    assert [room for room in listed if room != "agent"] == list(ROOMS)


def test_a_report_without_a_log_compiles_none_of_its_patterns() -> None:
    code = "import fp8verify.pipeline.inspection, sys; print('fp8verify.logs.rows' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_few_modules_lie_loose() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_LOOSE_MODULES


def test_no_function_is_too_long_to_be_read_at_once() -> None:
    long = []
    for file in PACKAGE.rglob("*.py"):
        for node in nodes(file):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            lines = 1 + (node.end_lineno or 0) - node.lineno
            if lines > MAX_FUNCTION_LINES:
                long.append((file.name, node.name, lines))
    assert long == []


@pytest.mark.parametrize(
    "source",
    [
        "import fp8verify.b.deep", "from fp8verify.b import deep",
        "from fp8verify.b.deep import name", "from ..b import deep", "from ..b.deep import name",
        "def f():\n    from fp8verify.b.deep import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fp8verify.b.deep",
        "from importlib import import_module\nimport_module('fp8verify.b.deep')",
    ],
)  # fmt: skip
def test_the_graph_has_every_kind_of_import(source: str, tmp_path: Path) -> None:
    package = tmp_path / "fp8verify"
    for folder in ("a", "b"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "b" / "deep.py").touch()
    (package / "a" / "file.py").write_text(source)
    assert package / "b" / "deep.py" in import_graph(package)[package / "a" / "file.py"]


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text()))


@cache
def import_graph(package: Path) -> dict[Path, set[Path]]:
    """Return for each file of a package the files of it that it imports.

    The facade, `__init__.py` of the package itself, imports lazily and is left out.
    """
    graph: dict[Path, set[Path]] = {}
    for file in sorted(package.rglob("*.py")):
        if file == package / "__init__.py":
            continue
        here = (package.name, *file.relative_to(package).parent.parts)
        names = [n for node in nodes(file) for n in imported(node, here)]
        graph[file] = set(filter(None, (file_of(name, package) for name in names))) - {
            file
        }
    return graph


def room_of(file: Path) -> str:
    """Return the innermost room that a file is in; "" if it lies loose, or is the agent's."""
    inside = file.relative_to(PACKAGE).as_posix()
    return max(
        (room for room in ROOMS if inside.startswith(f"{room}/")), key=len, default=""
    )


def height_of(file: Path) -> int:
    """Return the height of a file: loose modules lie lowest, the facade is below its fronts."""
    if file == FACADE:
        return min(ROOMS.index(room) for room in FRONTS)
    room = "cli" if file.name == "__main__.py" else room_of(file)
    return ROOMS.index(room) if room else -1


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
    """Return the file that a dotted name is, or is defined in; None outside the package.

    A name of no file is one of the facade.
    """
    parts = name.split(".")
    if parts[0] != package.name:
        return None
    for length in range(len(parts), 1, -1):
        path = package.joinpath(*parts[1:length])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    return package / "__init__.py"

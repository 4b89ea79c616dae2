"""What is released: the wheel and the sdist hold what they should, and the wheel works alone."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import fp8verify
from scripts.schemas import DOCUMENTS
from tests.command_line import PATIENCE_S

ROOT = Path(__file__).parents[2]
pytest.importorskip("hatchling", reason="hatchling is not installed (the test extra)")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built as `scripts/release.sh` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"fp8verify-{fp8verify.__version__}.dist-info/"
    assert {name.split("/")[0] + "/" for name in names} == {"fp8verify/", info}
    package = ROOT / "fp8verify"
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    schemas = {f"fp8verify/report/{document}.schema.json" for document in DOCUMENTS}
    assert {name for name in names if not name.startswith(info)} == ours | schemas
    assert "fp8verify/py.typed" in names
    assert f"{info}licenses/LICENSE" in names


def test_the_metadata_say_what_it_is_and_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"fp8verify-{fp8verify.__version__}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        points = archive.read(f"{info}/entry_points.txt").decode()
    assert metadata["Version"] == fp8verify.__version__
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    needed = [
        name for name in metadata.get_all("Requires-Dist") if "extra ==" not in name
    ]
    names = {re.split(r"[<>=;]", name)[0] for name in needed}
    assert names == {
        "click",
        "isal",
        "jinja2",
        "msgspec",
        "packaging",
        "pyyaml",
        "rich",
        "tomli",
    }
    assert "fp8verify = fp8verify.cli:main" in points
    assert "fp8verify = fp8verify.pytest_plugin" in points


def test_the_sdist_holds_what_builds_and_tests_it(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for place in (
        "*.md",
        "LICENSE",
        "*.toml",
        "*.yml",
        "scripts/*.sh",
        "tests/*.py",
        "docs/*.md",
    ):
        wanted = {found.relative_to(ROOT).as_posix() for found in ROOT.glob(place)}
        assert wanted <= names, place
    assert {"traces/fp8_compiled/rank0.json.gz", "examples/torchao/README.md"} <= names
    assert not [name for name in names if re.search(r"\.venv|__pycache__|\.pyc$", name)]


def test_the_changelog_has_a_section_for_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(fp8verify.__version__)}\b", text, re.MULTILINE)

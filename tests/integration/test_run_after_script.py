"""`fp8verify run train.py --steps 10-12`: options after the script, as a user types them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.command_line import fp8verify

SCRIPT = "import json, sys\nprint('ran with', json.dumps(sys.argv[1:]))\n"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return fp8verify("run", *line.split(), cwd=folder)


@pytest.mark.parametrize(
    ("line", "seen", "first_step"),
    [
        ("train.py --steps 10-12", [], 10),
        ("train.py --lr 3 --steps 10-12", ["--lr", "3"], 10),
        ("train.py --steps 3-4 -- --steps 9", ["--", "--steps", "9"], 3),
        ("-m package --steps 10-12", [], 10),
        ("train.py --steps=10-12,20 x", ["x"], 10),
        ("python train.py --lr 3 --steps 10-12", ["--lr", "3"], 10),
    ],
)
def test_a_window_after_the_script_is_ours(
    line: str, seen: list[str], first_step: int, folder: Path
) -> None:
    done = run(folder, line)

    assert done.returncode == 3, done.stderr  # nothing trains here
    assert json.loads(done.stdout.removeprefix("ran with ")) == seen
    told, report = done.stderr.split("\n", 1)
    assert "INCONCLUSIVE" in report
    assert told.startswith("fp8verify: takes --steps")
    assert f"{first_step}-" in told
    assert len(list(folder.glob("fp8verify-capture-*"))) == 1


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("train.py --steps 200", ["--steps", "200"]),
        ("train.py -- --steps 10-12", ["--", "--steps", "10-12"]),
        ("-- train.py --steps 10-12", ["--steps", "10-12"]),
        ("train.py --layers --min-share 0.9", ["--layers", "--min-share", "0.9"]),
    ],
)
def test_everything_else_is_the_script_s(line: str, seen: list[str], folder: Path) -> None:
    done = run(folder, line)
    assert json.loads(done.stdout.removeprefix("ran with ")) == seen
    assert "takes" not in done.stderr


def test_a_window_before_the_script_leaves_the_script_its_own(folder: Path) -> None:
    done = run(folder, "--steps 10-12 train.py --steps 200 --layers -- x")
    assert 'ran with ["--steps", "200", "--layers", "--", "x"]\n' in done.stdout
    assert "takes" not in done.stderr


def test_an_option_of_ours_that_the_script_refuses_is_named(folder: Path) -> None:
    (folder / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = run(folder, "train.py --min-share 0.9")
    assert done.returncode == 2
    assert "--min-share is an option of fp8verify: put it before the script." in " ".join(
        done.stderr.split()
    )

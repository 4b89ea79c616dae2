"""Options of `fp8verify run` that decide what is recorded, on the command line itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def fp8verify(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("print('must not run')\n")
    command = [sys.executable, "-m", "fp8verify", "run", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    done = fp8verify(
        tmp_path,
        "--dry-run",
        "--after-seconds",
        "600",
        "--ranks",
        "all",
        "--debug",
        "train.py",
        "--lr",
        "1",
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{sys.executable} train.py --lr 1\n" in done.stdout
    assert "3 steps, 600 seconds into the run" in done.stdout
    assert "/debug.<node>-<pid>.log\n" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("-o", "nowhere/report.txt"), "cannot write the report to nowhere/report.txt"),
        (("--after-seconds", "600", "--steps", "10-12"), "'10-12' is not a number of steps"),
        (("--steps", "10-12", "--ranks", "some"), "'some' does not name ranks"),
    ],
)
def test_options_that_do_not_fit_are_told_before_the_run(
    tmp_path: Path, arguments: tuple[str, ...], fact: str
) -> None:
    done = fp8verify(tmp_path, *arguments, "train.py")

    assert (done.returncode, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"error: {fact}")
    assert hint.startswith("hint: ")

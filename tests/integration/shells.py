"""Runs started by a shell, with and without us, in a folder that holds `train.py`."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.attached import environment
from tests.command_line import PATIENCE_S

PLAIN = shlex.quote(sys.executable)
OURS = f"{PLAIN} -m fp8verify run --steps 3-4 --exit-zero"


class Result(NamedTuple):
    """How a run ended, and what it left behind."""

    code: int
    stdout: str
    stderr: str
    files: dict[str, str]


def start(
    folder: Path, line: str, script: str | None = None, **options: object
) -> subprocess.Popen[bytes]:
    """Start a shell line in a folder; `script` becomes its train.py."""
    folder.mkdir(exist_ok=True)
    if script is not None:
        (folder / "train.py").write_text(script)
    return subprocess.Popen(
        ["sh", "-c", line], cwd=folder, env=environment(), **options
    )  # type: ignore[call-overload,no-any-return]


def execute(folder: Path, line: str, training: str, script: str) -> Result:
    """Run a shell line in which {} stands for the start of the training."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = start(folder, line.format(training), script, **pipes)
    printed = [text.decode("latin-1") for text in child.communicate(timeout=PATIENCE_S)]
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    out, err = (text.replace(str(folder), "FOLDER") for text in printed)
    return Result(code, out, err, files(folder))


def files(folder: Path) -> dict[str, str]:
    """Return what a run left behind, but for captures and reports of ours."""
    return {
        path.name: path.read_text()
        for path in folder.iterdir()
        if path.is_file() and path.name != "report"
    }


def compare(tmp_path: Path, script: str, line: str = "{} train.py") -> Result:
    """Run a script with and without us and return the first, having compared the two."""
    plain = execute(tmp_path / "plain", line, PLAIN, script)
    ours = execute(
        tmp_path / "ours", line, f"{OURS} --trace-dir capture -o report", script
    )
    assert ours == plain
    return ours


def text_of(path: Path) -> str:
    """Return what a file holds by now, nothing if there is none yet."""
    return path.read_text() if path.exists() else ""


def wait_until(holds: Callable[[], object], every: float = 0.02) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(every)

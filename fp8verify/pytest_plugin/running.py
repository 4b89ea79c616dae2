"""Run a training for a test: `fp8verify run` in a process group of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import pytest

from fp8verify.report.model.report import Report

# The control device of NVIDIA's driver, and the GPU of the Windows Subsystem for Linux.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
_LAST_LINES = 30
_GRACE_SECONDS = 10.0


def why_not() -> str | None:
    """Say why no training can run here, None if one can."""
    if not any(map(os.path.exists, _GPU_DEVICES)):
        return "no NVIDIA GPU here"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def run(
    command: Sequence[str | Path], folder: Path, steps: str, timeout: float, min_share: float
) -> Report:
    """Run a training under a window of steps and return the report on it.

    The capture stays in a subfolder of `folder`. Fails the test if the training fails, or takes
    more than `timeout` seconds.
    """
    __tracebackhide__ = True
    place = Path(mkdtemp(prefix="fp8-run-", dir=folder))
    report = place / "report.json"
    arguments = [sys.executable, "-m", "fp8verify", "run", "--steps", steps, "--ranks", "all"]
    arguments += ["--trace-dir", str(place / "capture"), "--min-share", str(min_share)]
    arguments += ["--exit-zero", "--format", "json", "-o", str(report), *map(str, command)]
    output = place / "output.txt"
    code = _run(arguments, output, timeout)
    if code is None:
        pytest.fail(f"the training took more than {timeout:g} s:\n{_tail(output)}", pytrace=False)
    if code or not report.exists():
        pytest.fail(f"the training exited with {code}:\n{_tail(output)}", pytrace=False)
    return msgspec.json.decode(report.read_bytes(), type=Report)


def _run(arguments: list[str], output: Path, timeout: float) -> int | None:
    """Return the exit code, None when time ran out; leave no process of it behind."""
    with output.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - the test's own command
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to terminate, then make it."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - (1 << 16)))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_LAST_LINES:])

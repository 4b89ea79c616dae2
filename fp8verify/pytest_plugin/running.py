"""Run a script for a test: `fp8verify run` in a process group of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import pytest

from fp8verify.preflight.dry_start import wait_and_end
from fp8verify.report.model.report import Report

# The control device of NVIDIA's driver, and the GPU of the Windows Subsystem for Linux.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
_LAST_LINES = 30


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
    """Run a script under a window of steps and return the report on it.

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
    mark = f"FP8VERIFY_TEST={place}"
    with output.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - the test's own command
            arguments,
            env={**os.environ, "FP8VERIFY_TEST": str(place)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    code = wait_and_end(process, mark, timeout)
    if code is None:
        pytest.fail(f"the training took more than {timeout:g} s:\n{_tail(output)}", pytrace=False)
    if code or not report.exists():
        pytest.fail(f"the training exited with {code}:\n{_tail(output)}", pytrace=False)
    return msgspec.json.decode(report.read_bytes(), type=Report)


def _tail(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - (1 << 16)))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_LAST_LINES:])

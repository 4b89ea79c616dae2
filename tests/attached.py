"""Run training scripts attached, and without us, and look at what they did and left."""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

import fp8verify
from fp8verify.capture.files import read_meta
from fp8verify.capture.schema import RankMeta, WindowRecord
from fp8verify.report.forms import render
from tests.command_line import PATIENCE_S
from tests.shared_torch import python_of_our_commands, python_with_torch

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "integration" / "scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")


class Run(NamedTuple):
    """How a process ended; its code is 128 and the signal's number where a signal ended it."""

    code: int
    stdout: str
    stderr: str


class Attached(NamedTuple):
    """A run with us, and the capture that it left."""

    run: Run
    capture: Path

    def meta(self, rank: int = 0) -> RankMeta:
        return read_meta(self.capture / f"rank{rank}.meta.json")

    @property
    def states(self) -> list[str]:
        return [window.state for window in self.meta().windows]

    @property
    def window(self) -> WindowRecord:
        (found,) = self.meta().windows
        return found

    def steps(self, trace: str | None = "rank0.json.gz") -> list[int]:
        """Return the numbers of the steps that a trace holds."""
        return [
            int(name)
            for name in annotations(self.capture / str(trace), "ProfilerStep#")
        ]

    def text(self) -> str:
        """Return the whole report with its lines unbroken."""
        found = fp8verify.inspect(self.capture)
        return " ".join(render(found, "text", verbose=True).split())

    def debug_log(self) -> str:
        (found,) = self.capture.glob("debug.*.log")
        return found.read_text()


def events(trace: Path) -> list[dict[str, object]]:
    with gzip.open(trace) as file:
        found: list[dict[str, object]] = json.load(file)["traceEvents"]
    return found


def annotations(trace: Path, prefix: str) -> list[str]:
    """Return the annotations with a prefix, without it, in their order."""
    names = [str(e["name"]) for e in events(trace) if e.get("cat") == "user_annotation"]
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def operators(trace: Path) -> Counter[object]:
    return Counter(event["name"] for event in events(trace))


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def execute(*command: object, cwd: Path) -> Run:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=environment(), capture_output=True, timeout=PATIENCE_S
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Run(code, done.stdout.decode(), scrub(done.stderr.decode()))


def scrub(text: str) -> str:
    """Take out what differs between any two runs: times, process ids, addresses."""
    kineto, dynamo = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+", r"W\d{4} [\d:.]+ \d+"
    return re.sub(rf"{kineto}|{dynamo}|0x[0-9a-f]+", "…", text)


def attach(
    tmp_path: Path,
    windows: str,
    *command: object,
    ranks: str = "0",
    options: tuple[object, ...] = (),
    fresh: bool = False,
) -> Attached:
    """Run a script attached; `fresh` imports torch anew, else see `tests.shared_torch`."""
    capture = tmp_path / "capture"
    driver = [
        python_of_our_commands(),
        SCRIPTS / "attach.py",
        *options,
        "--python",
        python(fresh),
    ]
    run = execute(*driver, windows, ranks, capture, *command, cwd=tmp_path)
    return Attached(run, capture)


def compare(
    tmp_path: Path,
    windows: str,
    *arguments: object,
    options: tuple[object, ...] = (),
    fresh: bool = False,
) -> Attached:
    """Run a script with and without us and return the attached run, having compared the two."""
    script, *others = arguments
    if (
        isinstance(script, Path)
        and script.parent == SCRIPTS
        and Path not in map(type, others)
    ):
        plain = without_us(fresh, *arguments)
    else:
        plain = execute(python(fresh), *arguments, cwd=tmp_path)
    attached = attach(tmp_path, windows, *arguments, options=options, fresh=fresh)
    assert attached.run == plain
    return attached


@functools.cache
def without_us(fresh: bool, *arguments: object) -> Run:
    """Run a script of ours alone; many tests compare with the same run."""
    with tempfile.TemporaryDirectory() as folder:
        return execute(python(fresh), *arguments, cwd=Path(folder))


def python(fresh: bool = False) -> str | Path:
    return sys.executable if fresh else python_with_torch()


def script(folder: Path, text: str) -> Path:
    """Write a script that is indented as the test is."""
    path = folder / "script.py"
    path.write_text(dedent(text))
    return path


def importable(name: str) -> None:
    """Skip where a package cannot be imported; not here, where it would hook torch."""
    if find_spec(name) is None:
        pytest.skip(f"needs {name}, which is not installed")


_LIBRARY = """
#include <stdio.h>
static FILE *file; static int mask;
int cublasLtLoggerOpenFile(const char *path) {
  if (file) fclose(file); file = fopen(path, "w"); return file ? 0 : 7; }
int cublasLtLoggerSetMask(int wanted) { mask = wanted; return 0; }
int multiply(void) { if (mask & 2) { fputs("product\\n", file); fflush(file); } return mask; }
"""


def library_that_logs(folder: Path) -> Path:
    """Return a stand-in for cuBLASLt with its logger; skip where nothing compiles C."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    path = folder / "libcublasLt.so.13"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", path, "-"]
    subprocess.run(command, input=_LIBRARY.encode(), check=True)
    return path

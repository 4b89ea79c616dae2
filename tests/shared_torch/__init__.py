"""Run training scripts without importing torch for each: forks of a process that has done so.

Importing torch and what an optimizer or a compiled model needs takes three to eight seconds of CPU,
and most training scripts of the tests take a tenth of one. `python_with_torch()` is a program to use
in place of `python`: it has `serve.py` fork, and the fork runs the script with the program's
arguments, environment, working directory and standard streams. It runs `sitecustomize` and
`import torch` as a new interpreter would, so that our agent attaches to it as to any run; only the
code of torch's own modules has been executed before, and of packages that know nothing of it. Tests
of what that would hide use `sys.executable`: signals, how an interpreter starts, what torch reads
from the environment while it is imported.
"""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FORKS_RUN = {"FP8VERIFY_TESTS_FORK_RUN": "1"}


def _older_than(release: str) -> bool:
    try:
        return Version(metadata.version("torch")) < Version(release)
    except metadata.PackageNotFoundError:
        return False  # the mark `train` skips these


runs_compiled_code_eagerly = pytest.mark.skipif(
    _older_than("2.6"), reason="needs torch 2.6 (torch.compiler.set_stance)"
)


@functools.cache
def python_with_torch() -> Path:
    """Return the program; its server runs until the tests end, and then removes both."""
    return _python("torchs_imports")


@functools.cache
def python_of_our_commands() -> Path:
    """Return a program for `-m fp8verify …`, whose forks have all imports of our commands.

    It becomes a new interpreter for `run`, on a terminal or another device, and where the
    environment has settings of the interpreter, of which a fork would know nothing. `run` is a fork
    too where `FORKS_RUN` is in the environment: in tests of the training, not of what surrounds it.
    """
    return _python("our_imports")


def _python(imports: str) -> Path:
    """Return the program of a kind.

    The processes of pytest-xdist share one: their parent is the one that runs the tests.
    """
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if session is None:
        folder = Path(tempfile.mkdtemp(prefix="tests-"))
        return _served(folder, os.getpid(), imports)
    folder = Path(tempfile.gettempdir(), f"{imports}-{session}")
    folder.mkdir(0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the others wait for the first one's server
        return _served(folder, os.getppid(), imports)


def _served(folder: Path, tests: int, imports: str) -> Path:
    """Return the program of a folder; start its server if that has not been done."""
    python = folder / "python"
    if python.exists():
        return python
    socket = folder / "socket"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    if imports == "our_imports":
        environment["PYTHONPATH"] = str(ROOT)
    server = subprocess.Popen(
        [sys.executable, HERE / "serve.py", folder, str(tests), imports],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    source = (HERE / "python.py").read_text(encoding="utf-8")
    constants = f"SOCKET = {str(socket)!r}\nOF_OURS = {imports == 'our_imports'}\n"
    python.write_text(f"#!{sys.executable} -IS\n{constants}{source}")
    python.chmod(0o700)
    return python

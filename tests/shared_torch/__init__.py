"""Run training scripts without importing torch for each: forks of a process that has done so.

Importing torch and what an optimizer needs takes three seconds of CPU, and most training scripts
of the tests take a tenth of one. `python_with_torch()` is a program to use in place of `python`: it
has `serve.py` fork, and the fork runs the script with the program's arguments, environment, working
directory and standard streams. It runs `sitecustomize` and `import torch` as a new interpreter
would, so that our agent attaches to it as to any run; only the code of torch's own modules has been
executed before. Tests of what that would hide use `sys.executable`: signals, how an interpreter
starts, what torch reads from the environment while it is imported.
"""

from __future__ import annotations

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
    """Return the program; its server runs until this process ends, and then removes both."""
    folder = Path(tempfile.mkdtemp(prefix="torch-"))
    python, socket = folder / "python", folder / "socket"
    source = (HERE / "python.py").read_text(encoding="utf-8")
    python.write_text(f"#!{sys.executable} -IS\nSOCKET = {str(socket)!r}\n{source}")
    python.chmod(0o700)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    server = subprocess.Popen(
        [sys.executable, HERE / "serve.py", folder],
        env=environment,
        stdin=subprocess.PIPE,  # whose end tells the server that we are gone
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return python

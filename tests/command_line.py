"""The command line as a user meets it: a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.shared_torch import python_of_our_commands

ROOT = Path(__file__).parents[1]
# How long a test waits for anything: it ends a hang, and a busy machine may take minutes.
PATIENCE_S = 300.0


def fp8verify(
    *args: str | Path, cwd: Path | None = None, timeout: float = PATIENCE_S, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m fp8verify` without standard input; `env` is added to the environment.

    All but `run` is a fork of a process that has imported what our commands need: see
    `tests.shared_torch`.
    """
    return subprocess.run(
        [python_of_our_commands(), "-m", "fp8verify", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )


def refused(done: subprocess.CompletedProcess[str], code: int = 2) -> tuple[str, str]:
    """Return the fact and the hint of a command that ended with an error of two lines alone."""
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert first.startswith("error: ")
    assert second.startswith("hint: ")
    return first.removeprefix("error: "), second.removeprefix("hint: ")


def heed_signals() -> None:
    """Make a process about to start heed what one started by `nohup … &` ignores.

    For `preexec_fn`: the tests may run that way, and children inherit what is ignored.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

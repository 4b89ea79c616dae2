"""Commands that pages show, run as they stand there.

A test that a marker `<!-- test: PATH::NAME -->` names takes the fixture `shown`, which holds the
commands of all blocks below such markers. When the test ends, each of them must have been run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.docs.blocks import console_blocks, pages
from scripts.docs.shell import ROOT
from tests.command_line import PATIENCE_S
from tests.shared_torch import python_of_our_commands


def run(
    command: str, folder: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in bash, in a folder, with this Python and this `fp8verify` on the PATH."""
    return subprocess.run(
        ["bash", *options, "-c", command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=folder,
        env={**os.environ, **our_environment(folder), **environment},
        stdin=subprocess.DEVNULL,
    )


# As runners of GitHub start bash.
OF_GITHUB = ("--noprofile", "--norc", "-eo", "pipefail")


def our_environment(folder: Path) -> dict[str, str]:
    """Return an environment whose PATH begins with programs that lie in a folder's `bin`."""
    put(
        folder,
        "fp8verify",
        f'#!/bin/sh\nexec "{python_of_our_commands()}" -m fp8verify "$@"\n',
    )
    for name in ("python", "python3"):
        put(folder, name, f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }


def put(folder: Path, name: str, text: str) -> None:
    """Put a program into a folder's `bin`, unless one of that name is there."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    if not program.exists():
        program.write_text(text)
        program.chmod(0o755)


def without_pip(python: str) -> str:
    """Return a program in place of Python that unpacks no pip into environments, for seconds."""
    return f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] && set -- "$@" --without-pip\nexec "{python}" "$@"\n'


class Shown:
    """The commands that pages say a test runs.

    Attributes:
        commands: as the pages show them, each once.
        left: those that have not been run yet.
    """

    def __init__(self, test: str, folder: Path) -> None:
        found = [
            command
            for page in pages()
            for block in console_blocks(page.read_text(encoding="utf-8"))
            if block.test == test
            for command in block.commands
        ]
        self.commands = list(dict.fromkeys(found))
        self.left = list(self.commands)
        self._folder = folder

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of the commands in the test's folder."""
        self.left.remove(command)
        return run(command, self._folder, **environment)

"""Commands of the documentation, run as a reader would run them, and what they print."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS = 80
_TOOLS = ("bash", "cat", "cut", "grep", "head", "rm", "sed", "sort", "tail", "true")
_SECONDS = 120


@functools.cache
def path() -> str:
    """Return a PATH with `fp8verify` and plain tools alone, so no GPU or torch is found."""
    folder = Path(tempfile.mkdtemp(prefix="fp8verify-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "fp8verify"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fp8verify "$@"\n')
    program.chmod(0o755)
    for name in _TOOLS:
        found = shutil.which(name)
        if found is not None:
            (folder / name).symlink_to(found)
    return str(folder)


def environment() -> dict[str, str]:
    """Return what the commands see: 80 columns, no colors, this checkout."""
    return {
        "PATH": path(),
        "HOME": path(),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": str(COLUMNS),
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm-256color",
    }


@functools.cache
def printed(command: str) -> tuple[str, int]:
    """Run a command in the repository's root; return what it printed, and its exit code."""
    done = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
        cwd=ROOT,
        env=environment(),
    )
    return "\n".join(
        line.rstrip() for line in done.stdout.splitlines()
    ), done.returncode


def transcript(commands: list[str]) -> str:
    """Run commands one after the other; `$?` is what the one before left."""
    lines: list[str] = []
    code = 0
    for command in commands:
        output, code = printed(
            command if "$?" not in command else f"(exit {code}); {command}"
        )
        lines += [f"$ {command}", *output.splitlines()]
    return "\n".join(lines) + "\n"


def colored(command: str, columns: int = COLUMNS) -> str:
    """Run a command in a terminal and return what it wrote, colors included."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        cwd=ROOT,
        env={
            **environment(),
            "COLUMNS": str(columns),
            "FORCE_COLOR": "1",
        },  # also where the command ends in a pipe
    )
    os.close(its)
    text = b"".join(iter(functools.partial(_read, ours), b""))
    os.close(ours)
    process.wait(_SECONDS)
    return text.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux says so when the other end is closed
        return b""

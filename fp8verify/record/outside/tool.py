"""What a profiler around the process is to the runner, and which there are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fp8verify.errors import InputError
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.settings import KINETO

_HELP_S = 60


class Collected(NamedTuple):
    """What a profiler left.

    Attributes:
        exit_code: of the training, None where the profiler's own is it.
        notes: what the user should know of it.
        found: whether it recorded anything.
    """

    exit_code: int | None = None
    notes: tuple[str, ...] = ()
    found: bool = False


class OutsideTool(Protocol):
    """A profiler around the process, found and able to run."""

    def stem(self, capture: CaptureFolder) -> str:
        """Return how the names of its files begin."""

    def wrap(self, command: Sequence[str], capture: CaptureFolder, boot: Path) -> list[str]:
        """Return the command that runs another one under the profiler."""

    def collect(self, capture: CaptureFolder, boot: Path) -> Collected:
        """Make what the profiler wrote readable, once the run has ended."""


def outside_tool(name: str, windows: int) -> OutsideTool | None:
    """Return the profiler of that name, None for Kineto.

    Args:
        name: "kineto", "nsys" or "rocprofv3".
        windows: how many there are to record.

    Raises:
        InputError: it is not installed, or does not run.
    """
    if name == KINETO:
        return None
    from fp8verify.record.outside.nsys import Nsys
    from fp8verify.record.outside.rocprof import Rocprof

    return Nsys(windows) if name == "nsys" else Rocprof()


def stem_of(name: str, capture: CaptureFolder) -> str:
    """Return how the names of a profiler's files begin: runners that share a folder differ."""
    return name if capture.guest is None else f"{name}-{capture.guest}-{os.getpid()}"


def find_program(name: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        InputError: it is not on the PATH.
    """
    from shutil import which

    found = which(name)
    if found is None:
        raise InputError(
            f"{name} is not on the PATH, so the training was not started.",
            f"Install {package} or load its module, or run without --profiler: torch's own "
            "profiler needs nothing.",
        )
    return found


def help_of(*command: str) -> str:
    """Return what a program says of its options.

    Raises:
        InputError: it does not run.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the profiler that the user's PATH names
            [*command, "--help"], capture_output=True, text=True, errors="replace", check=False,
            timeout=_HELP_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        text = done.stdout + done.stderr
        reason = None if done.returncode == 0 else _last_line(text)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer within {_HELP_S} seconds"
    if reason is not None:
        raise InputError(
            f"{command[0]} does not run, so the training was not started: {reason}.",
            f"See what {' '.join(command)} --help says, or run without --profiler.",
        )
    return text


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:200].rstrip(".") or "it says nothing"

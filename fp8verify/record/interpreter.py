"""Choose the Python for a script: ours has no torch where fp8verify is a tool of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fp8verify.errors import InputError

ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
LOOKS_FOR_TORCH = "import importlib.util as i, sys; sys.exit(i.find_spec('torch') is None)"
PATIENCE_S = 20


class Python(NamedTuple):
    """A Python, and whose it is if it is not the one that runs fp8verify."""

    program: str
    whose: str | None = None


def choose_python(wanted: str | None, environment: Mapping[str, str]) -> Python:
    """Return the Python that is wanted; else ours, or the active one if ours has no torch.

    Raises:
        InputError: the wanted one does not exist.
    """
    if wanted is not None:
        from shutil import which

        found = which(wanted, path=environment.get("PATH"))
        if found is None:
            raise InputError(f"There is no program {wanted}.", "Give --python the path of one.")
        return Python(found)
    if find_spec("torch") is not None:
        return Python(sys.executable)
    active = (python for python in _active(environment) if _has_torch(python.program))
    return next(active, Python(sys.executable))


def _active(environment: Mapping[str, str]) -> Iterator[Python]:
    from shutil import which

    for variable in ENVIRONMENTS:
        program = Path(environment.get(variable) or "/nonexistent", "bin", "python")
        if program.exists():
            yield Python(str(program), f"of {variable}")
    for name in ("python", "python3"):
        found = which(name, path=environment.get("PATH"))
        if found is not None:
            yield Python(found, "on the PATH")


def _has_torch(program: str) -> bool:
    try:
        asked = subprocess.run(  # noqa: S603 - a Python that the user's own environment names
            [program, "-c", LOOKS_FOR_TORCH], capture_output=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0

"""Turn what the user typed after `run` into the command to spawn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fp8verify.errors import InputError, UsageError


def resolve_command(command: Sequence[str], python: str = sys.executable) -> list[str]:
    """Return the argument vector of `SCRIPT.py …`, `-m MODULE …` or any other command.

    Scripts and modules run under `python`; anything else is run as it stands.

    Raises:
        UsageError: if there is no command, or no module after `-m`.
        InputError: if the script or the program does not exist.
    """
    words = list(command)
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise UsageError("There is nothing to run.", "Name a script: fp8verify run train.py")
    if words[0] == "-m":
        if len(words) < 2:
            raise UsageError("-m names no module.", "Name one: fp8verify run -m package.train")
        return [python, *words]
    if words[0].endswith(".py"):
        _check_script(Path(words[0]))
        return [python, *words]
    _check_program(words[0])
    return words


def needs_python(command: Sequence[str]) -> bool:
    """Whether `resolve_command` puts a Python in front."""
    first = next((word for word in command if word != "--"), "")
    return first == "-m" or first.endswith(".py")


def _check_script(script: Path) -> None:
    if script.is_dir():
        raise InputError(f"{script} is a folder, not a script.", "Name the script in it.")
    if not script.is_file():
        raise InputError(f"There is no script {script}.", f"The current folder is {Path.cwd()}.")


def _check_program(name: str) -> None:
    from shutil import which  # slow to import, and a script does not need it

    if which(name) is not None:
        return
    if name.endswith(".ipynb"):
        raise InputError(
            f"{name} is a notebook.",
            f"Run it as a program: fp8verify run --steps 10-12 -- jupyter execute {name}, or "
            f"convert it: jupyter nbconvert --to script {name}",
        )
    if Path(name).is_file():
        raise InputError(
            f"{name} is not executable.", f"To run it with Python: fp8verify run -- python {name}"
        )
    raise InputError(
        f"There is no program {name}.",
        "Give a script that ends in .py, -m MODULE, or a program on the PATH.",
    )

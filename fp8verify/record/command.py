"""The command to spawn for what the user typed after `run`, and the Python that runs a script.

Ours has no torch where fp8verify is installed as a tool of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fp8verify.errors import InputError, UsageError

ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
LOOKS_FOR_TORCH = (
    "import importlib.util as i, sys; sys.exit(i.find_spec('torch') is None)"
)
PATIENCE_S = 20
MOST_LETTERS = 40  # of a script's name
# What makes a Python print, ask or end in another way.
SWITCHES = (
    "PYTHONINSPECT", "PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME", "PYTHONDEVMODE", "PYTHONWARNINGS",
    "PYTHONDEBUG", "PYTHONFAULTHANDLER", "PYTHONTRACEMALLOC", "PYTHONMALLOCSTATS", "PYTHONDUMPREFS",
    "PYTHONASYNCIODEBUG",
)  # fmt: skip
KEPT = "_FP8VERIFY_SWITCHES"
ARG_START = (
    45  # `arg_start` of proc(5), among the fields that follow the program's name
)
OWN_WORD = b"\0run\0"


def resolve_command(command: Sequence[str], python: str = sys.executable) -> list[str]:
    """Return the argument vector of `SCRIPT.py …`, `-m MODULE …` or any other command.

    Scripts and modules run under `python`; anything else is run unchanged.

    Raises:
        UsageError: if there is no command, or no module after `-m`.
        InputError: if the script or the program does not exist.
    """
    words = list(command)
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise UsageError(
            "There is nothing to run.", "Name a script: fp8verify run train.py"
        )
    if words[0] == "-m":
        if len(words) < 2:
            raise UsageError(
                "-m names no module.", "Name one: fp8verify run -m package.train"
            )
        return [python, *words]
    if words[0].endswith(".py"):
        script = Path(words[0])
        if script.is_dir():
            raise InputError(
                f"{script} is a folder, not a script.", "Name the script in it."
            )
        if not script.is_file():
            raise InputError(
                f"There is no script {script}.", f"The current folder is {Path.cwd()}."
            )
        return [python, *words]
    _check_program(words[0])
    return words


def script_place(words: Sequence[str]) -> int:
    """Return where the script of a command is: the first .py file or module, else the program."""
    module = list(words).index("-m") + 1 if "-m" in words else 0
    return next((at for at, word in enumerate(words) if word.endswith(".py")), module)


def script_name(words: Sequence[str]) -> str:
    """Return what captures and reports call a command: "train" of train.py or of -m package.train.

    The letters are those that any file system takes.
    """
    command = [word for word in words if word != "--"]
    at = script_place(command)
    name = os.path.basename(command[at]) if at < len(command) else ""  # noqa: PTH119 - pathlib is slow
    is_module = at > 0 and command[at - 1] == "-m"
    if is_module:
        name = name.rpartition(".")[2]
    else:
        name = name.removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).strip(".-")[:MOST_LETTERS]


def _check_program(name: str) -> None:
    from shutil import which  # slow to import, and a script does not need it

    if which(name) is not None:
        return
    fact = f"There is no program {name}."
    hint = "Give SCRIPT.py, -m MODULE, or a program on PATH."
    if name.endswith(".ipynb"):
        fact = f"{name} is a notebook."
        hint = f"Run it as a program: fp8verify run --steps 10-12 -- jupyter execute {name}"
    elif Path(name).is_file():
        fact = f"{name} is not executable."
        hint = f"To run it with Python: fp8verify run -- python {name}"
    raise InputError(fact, hint)


class Python(NamedTuple):
    """A Python, and whose it is if it is not the one that runs fp8verify."""

    program: str
    whose: str | None = None


def python_for(command: Sequence[str], wanted: str | None) -> Python:
    """Return the Python for a command; ours for one that needs none.

    Raises:
        InputError: the wanted one does not exist.
    """
    first = next((word for word in command if word != "--"), "")
    if first == "-m" or first.endswith(".py"):
        return choose_python(wanted, os.environ)
    return Python(sys.executable)


def choose_python(wanted: str | None, environment: Mapping[str, str]) -> Python:
    """Return the Python that is wanted; else ours, or the active one if ours has no torch.

    Raises:
        InputError: the wanted one does not exist.
    """
    if wanted is not None:
        from shutil import which

        program = which(wanted, path=environment.get("PATH"))
        if program is None:
            raise InputError(
                f"There is no program {wanted}.", "Give --python the path of one."
            )
        return Python(program)
    if find_spec("torch") is not None:
        return Python(sys.executable)
    active = (
        python for python in active_pythons(environment) if _has_torch(python.program)
    )
    return next(active, Python(sys.executable))


def active_pythons(environment: Mapping[str, str]) -> Iterator[Python]:
    """Yield the Pythons of the active environments and of the PATH."""
    from shutil import which

    for variable in ENVIRONMENTS:
        program = Path(environment.get(variable) or "/nonexistent", "bin", "python")
        if program.exists():
            yield Python(str(program), f"of {variable}")
    for name in ("python", "python3"):
        on_path = which(name, path=environment.get("PATH"))
        if on_path is not None:
            yield Python(on_path, "on the PATH")


def _has_torch(program: str) -> bool:
    try:
        asked = subprocess.run(  # noqa: S603 - a Python that the user's own environment names
            [program, "-c", LOOKS_FOR_TORCH],
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


# --- the process list, where scripts look for other instances of themselves ---


def leave_process_list() -> None:
    """Take the words after our `run` out of our command line, as `setproctitle` does.

    Python has copies of them. Where the kernel does not allow it, they stay.
    """
    with suppress(OSError, ValueError):
        status = Path("/proc/self/stat").read_bytes()
        fields = status.rpartition(b") ")[2].split()
        first = int(fields[ARG_START])
        length = int(fields[ARG_START + 1]) - first
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 - pathlib is slow
            memory.seek(first)
            words = memory.read(length)
            kept = words.index(OWN_WORD) + len(OWN_WORD)
            memory.seek(first + kept)
            memory.write(bytes(length - kept))


# --- the environment's switches of Python, which are for the run and not for the runner ---


def leave_switches() -> None:
    """Start this process again without them, if the environment has any."""
    switches = {name: os.environ[name] for name in SWITCHES if os.environ.get(name)}
    if switches:
        others = {
            name: value for name, value in os.environ.items() if name not in switches
        }
        words = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, words, {**others, KEPT: json.dumps(switches)})  # noqa: S606


def with_switches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it was given to us."""
    variables = dict(environment)
    switches = json.loads(variables.pop(KEPT, "{}"))
    return {
        **variables,
        **{name: switches[name] for name in SWITCHES if name in switches},
    }

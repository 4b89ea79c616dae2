"""Find the settings: the nearest fp8verify.toml, or pyproject.toml with `[tool.fp8verify]`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.errors import InputError
from fp8verify.record.settings_files.toml import read_toml

OWN_FILE = "fp8verify.toml"
PROJECT_FILE = "pyproject.toml"
TABLE = "fp8verify"
# Every way to write the table's name: in a header, as a dotted key, or inside of `tool`.
TABLE_NAMED = (
    rb"tool[\"']?\s*\.\s*[\"']?fp8verify|^\s*(?:\[\s*[\"']?tool[\"']?\s*\]|[\"']?tool[\"']?\s*=)"
)
# What runs a command is taken only from a file of the user's own.
COMMANDS = ("on-change",)


class SettingsFile(NamedTuple):
    """A settings file and its values by option, written with hyphens: "min-share"."""

    path: Path
    values: dict[str, Any]


def find_settings(folder: Path) -> SettingsFile | None:
    """Return the settings that hold in a folder: its own, or those of the nearest one above.

    Raises:
        InputError: the file cannot be read, or is not for this user to trust.
    """
    folder = folder.absolute()
    for place in (folder, *folder.parents):
        own, project = place / OWN_FILE, place / PROJECT_FILE
        if own.is_file():
            return _checked(own, _read(own))
        if project.is_file() and _has_table(project):
            return _checked(project, _read(project).get("tool", {}).get(TABLE, {}))
    return None


def _has_table(project: Path) -> bool:
    # Most projects have none, and are not parsed: what only depends on fp8verify has its name too.
    try:
        text = project.read_bytes()
        named = TABLE.encode() in text and re.search(TABLE_NAMED, text, re.MULTILINE)
        return bool(named) and TABLE in _read(project).get("tool", {})
    except OSError:
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as error:
        raise InputError(
            f"Cannot read the settings {path}: {error.strerror}.", "Check its permissions."
        ) from None
    except ValueError as error:
        raise InputError(
            f"The settings {path} are no TOML: {str(error)[:200]}.", "Mend the file, or remove it."
        ) from None


def _checked(path: Path, table: dict[str, Any]) -> SettingsFile:
    values = {name.replace("_", "-"): value for name, value in table.items()}
    values = {**_habit(path, values.pop("profiling", None)), **values}
    if any(name in values for name in COMMANDS) and path.stat().st_uid not in (os.getuid(), 0):
        raise InputError(
            f"The settings {path} name a command to run, and the file is another user's.",
            "Give --on-change on the command line, or keep settings of your own.",
        )
    return SettingsFile(path, values)


def _habit(path: Path, profiling: Any) -> dict[str, Any]:
    """Return the options that a `[profiling]` table in the way of trainings means.

    Raises:
        InputError: it is no such table.
    """
    if profiling is None:
        return {}
    steps = steps_of_profiling(profiling)
    if steps is None and not (isinstance(profiling, dict) and profiling.get("enable") is False):
        raise InputError(
            f"The [profiling] of {path} names no steps.",
            "Give start_step and end_step, such as 5 and 8 for the steps 6-8, or enable = false.",
        )
    folder = profiling.get("trace_dir") if steps else None
    return {**({"steps": steps} if steps else {}), **({"trace-dir": folder} if folder else {})}


def steps_of_profiling(profiling: Any) -> str | None:
    """Return the window that a `[profiling]` table of a training records, None if it does not.

    As in KempnerForge: `start_step` warms the profiler up, the steps after it are recorded up to
    `end_step`, inclusive.
    """
    if not isinstance(profiling, dict) or profiling.get("enable", True) is not True:
        return None
    first, last = profiling.get("start_step"), profiling.get("end_step")
    if type(first) is not int or type(last) is not int or not 0 <= first < last:
        return None
    return f"{first + 1}-{last}"

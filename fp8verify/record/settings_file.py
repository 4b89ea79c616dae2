"""The settings file: the nearest fp8verify.toml, or pyproject.toml with `[tool.fp8verify]`.

It names programs to run and files to write, so it is read only if no user but this one and root
may have written it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.errors import InputError
from fp8verify.files import parse_toml
from fp8verify.record.trust import TRUST, is_trusted, why_distrusted

OWN_FILE = "fp8verify.toml"
PROJECT_FILE = "pyproject.toml"
TABLE = "fp8verify"
MAX_BYTES = 1 << 20
# What runs a program, writes a file, opens a connection, or says what a log and a model mean: not
# from a file that a group may write.
OWN_ONLY = (
    "python", "output", "save-baseline", "scheduler", "on-change", "trace-dir", "metrics",
    "frameworks",
)  # fmt: skip


class SettingsFile(NamedTuple):
    """A settings file, its values by option ("min-share"), and what to say about trust."""

    path: Path | None
    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def find_settings(folder: Path) -> SettingsFile:
    """Return the settings for a folder: its own, or those of the nearest one above.

    The search ends at the root of a repository, at the home folder, and where the owner changes.

    Raises:
        InputError: the file cannot be read, or is not TOML.
    """
    notes: list[str] = []
    for directory in _places(folder.absolute()):
        for name in (OWN_FILE, PROJECT_FILE):
            path = directory / name
            content = _read_trusted(path, notes)
            if content is None:
                continue
            data, is_shared = content
            table = _table(path, data)
            if table is None:
                continue
            values = {key.replace("_", "-"): value for key, value in table.items()}
            dropped = [key for key in OWN_ONLY if is_shared and values.pop(key, None) is not None]
            if dropped:
                keys = ", ".join(dropped)
                notes.append(f"{path} may be written by its group, so {keys} of it is ignored")
            return SettingsFile(path, values, tuple(notes))
    return SettingsFile(None, {}, tuple(notes))


def _places(folder: Path) -> Iterator[Path]:
    """Yield the folders whose settings hold in a folder, the nearest first."""
    try:
        owner, home = folder.stat().st_uid, Path.home()
    except (OSError, RuntimeError):
        return
    for directory in (folder, *folder.parents):
        if directory.stat().st_uid != owner and not is_trusted(directory):
            return
        yield directory
        if directory == home or (directory / ".git").exists():
            return


def _read_trusted(path: Path, notes: list[str]) -> tuple[bytes, bool] | None:
    """Return what a file holds and whether its group may write it; None if it is not read."""
    try:
        # The descriptor is checked: the name may mean another file a moment later.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.name == PROJECT_FILE or isinstance(error, NotADirectoryError):
            return None
        raise InputError(
            f"Cannot read the settings {path}: {error.strerror}.", "Check its permissions."
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        if not is_trusted(path.parent):
            why = why_distrusted(path, file.fileno())
            if why is not None:
                if path.name == OWN_FILE or TABLE.encode() in file.read(MAX_BYTES):
                    notes.append(f"{path} is not read: {why}; {TRUST}={path.parent} trusts it")
                return None
        is_shared = bool(status.st_mode & stat.S_IWGRP) and not is_trusted(path.parent)
        return file.read(MAX_BYTES + 1), is_shared


def _table(path: Path, data: bytes) -> dict[str, Any] | None:
    """Return the settings in a file; None for a project that has none."""
    if path.name == PROJECT_FILE and TABLE.encode() not in data:
        return None  # as most, which are not parsed
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is longer than {MAX_BYTES} bytes")
        table: Any = parse_toml(data.decode())
    except (ValueError, RecursionError) as error:
        why = str(error)[:200] if isinstance(error, ValueError) else "it is nested too deeply"
        raise InputError(
            f"The settings {path} are not TOML: {why}.", "Fix the file, or remove it."
        ) from None
    if path.name == PROJECT_FILE:
        tools = table.get("tool")
        table = tools.get(TABLE) if isinstance(tools, dict) else None
    return table if isinstance(table, dict) else None

"""Files of other users: which capture folders and settings files are believed.

Believed are this user's and root's, where no others may write: a run executes what its capture
holds, and a settings file names programs to run and files to write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.errors import InputError
from fp8verify.files import parse_toml

TRUST = (
    "FP8VERIFY_TRUST"  # folders, as in PATH, that are trusted whoever may write there
)
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


def is_trusted(folder: Path) -> bool:
    """Return whether FP8VERIFY_TRUST names a folder, or one above it."""
    trusted = [entry for entry in os.environ.get(TRUST, "").split(os.pathsep) if entry]
    return any(
        folder.resolve().is_relative_to(Path(entry).resolve()) for entry in trusted
    )


def why_distrusted(path: Path, descriptor: int) -> str | None:
    """Return why an open file or folder is not believed, None if it is."""
    if path.is_symlink() and not _is_ours(path.lstat()):
        return "it is a link of another user"
    status = os.fstat(descriptor)
    if status.st_mode & stat.S_IWOTH:
        return "all users may write it"
    if _is_ours(status) or (
        stat.S_ISDIR(status.st_mode) and _owns_what_it_makes(descriptor)
    ):
        return None
    return "it belongs to another user"


def why_not_read(folder: Path) -> str | None:
    """Return why what a folder holds is not believed, None if it is; nothing is written into it.

    Raises:
        OSError: it cannot be looked at.
    """
    if is_trusted(folder):
        return None
    if folder.is_symlink() and not _is_ours(folder.lstat()):
        return "it is a link of another user"
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        return "all users may write it"
    if _is_ours(status):
        return None
    return "it belongs to another user"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (os.getuid(), 0)


def _owns_what_it_makes(descriptor: int) -> bool:
    """Whether files of ours get the owner of a folder: NFS and containers may map users."""
    name = f".owner-{os.urandom(6).hex()}"
    try:
        made = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=descriptor
        )
    except OSError:
        return False
    try:
        return os.fstat(made).st_uid == os.fstat(descriptor).st_uid
    finally:
        os.close(made)
        with suppress(OSError):
            os.unlink(name, dir_fd=descriptor)


# --- capture folders


def check_capture(folder: Path) -> tuple[str, ...]:
    """Refuse a folder into which other users may put what the script would run.

    Returns:
        A note if a group may do so, which is how many sites share their projects.

    Raises:
        InputError: it is another user's, or all users may write it.
        OSError: it cannot be opened.
    """
    if is_trusted(folder):
        return ()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        why = why_distrusted(folder, descriptor)
    finally:
        os.close(descriptor)
    if why is not None:
        raise InputError(
            f"The capture folder {folder} is not used: {why}.",
            f"Name a folder of your own with --trace-dir, or trust it: {TRUST}={folder}",
        )
    shared = next(
        (one for one in (folder, folder.parent) if _is_shared(one.stat())), None
    )
    why = "may be written by other users: they could exchange the files of a run"
    if shared is None:
        return ()
    return (f"{shared} {why}",)


def _is_shared(status: os.stat_result) -> bool:
    """Whether other users may rename what is in a folder; a group of this user alone is none."""
    if not _is_ours(status):
        return True
    if status.st_mode & stat.S_ISVTX or not status.st_mode & (
        stat.S_IWGRP | stat.S_IWOTH
    ):
        return False
    if status.st_mode & stat.S_IWOTH:
        return True
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    return user.pw_gid != status.st_gid or bool(set(group.gr_mem) - {user.pw_name})


def make_private(folder: str) -> int:
    """Make a folder of mode 0700 and return a descriptor of it, for `dir_fd`.

    Raises:
        OSError: it cannot be made, or is not ours alone once it is.
    """
    os.mkdir(folder, 0o700)  # noqa: PTH102 - every run waits for this
    descriptor = os.open(
        folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    )
    status = os.fstat(descriptor)
    owned = status.st_uid == os.getuid() or _owns_what_it_makes(descriptor)
    if (owned and not status.st_mode & 0o077) or is_trusted(Path(folder)):
        return descriptor
    os.close(descriptor)
    raise PermissionError(
        1, f"other users may write it (if they are trusted: {TRUST}={folder})"
    )


# --- settings files: the nearest fp8verify.toml, or pyproject.toml with `[tool.fp8verify]`


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
    for path in _places(folder.absolute()):
        data, is_shared = _read_trusted(path, notes)
        values = None if data is None else _values(path, data)
        if values is None:
            continue
        dropped = [
            key for key in OWN_ONLY if is_shared and values.pop(key, None) is not None
        ]
        if dropped:
            keys = ", ".join(dropped)
            notes.append(
                f"{path} may be written by its group, so {keys} of it is ignored"
            )
        return SettingsFile(path, values, tuple(notes))
    return SettingsFile(None, {}, tuple(notes))


def _places(folder: Path) -> Iterator[Path]:
    """Yield the files whose settings may hold in a folder, the nearest first."""
    try:
        owner = folder.stat().st_uid
        home = Path.home()
    except (OSError, RuntimeError):
        return
    for directory in (folder, *folder.parents):
        if directory.stat().st_uid != owner and not is_trusted(directory):
            return
        yield directory / OWN_FILE
        yield directory / PROJECT_FILE
        if directory == home or (directory / ".git").exists():
            return


def _read_trusted(path: Path, notes: list[str]) -> tuple[bytes | None, bool]:
    """Return what a file holds, None if it is not read, and whether its group may write it."""
    try:
        # The descriptor is checked: the name may mean another file a moment later.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.name == PROJECT_FILE or isinstance(
            error, (FileNotFoundError, NotADirectoryError)
        ):
            return None, False
        raise InputError(
            f"Cannot read the settings {path}: {error.strerror}.",
            "Check its permissions.",
        ) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        if path.name == OWN_FILE:
            notes.append(f"{path} is not read: it is not a regular file")
        return None, False
    with os.fdopen(descriptor, "rb") as file:
        trusted = is_trusted(path.parent)
        why = None if trusted else why_distrusted(path, descriptor)
        data = file.read(MAX_BYTES + 1)
    if why is None:
        return data, not trusted and bool(status.st_mode & stat.S_IWGRP)
    if path.name == OWN_FILE or TABLE.encode() in data:
        notes.append(f"{path} is not read: {why}; {TRUST}={path.parent} trusts it")
    return None, False


def _values(path: Path, data: bytes) -> dict[str, Any] | None:
    """Return the settings in a file; None for a project that has none."""
    if path.name == PROJECT_FILE and TABLE.encode() not in data:
        return None  # as most, which are not parsed
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is longer than {MAX_BYTES} bytes")
        table: Any = parse_toml(data.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, ValueError):
            why = str(error)[:200]
        else:
            why = "it is nested too deeply"
        raise InputError(
            f"The settings {path} are not TOML: {why}.", "Fix the file, or remove it."
        ) from None
    if path.name == PROJECT_FILE:
        tools = table.get("tool")
        table = None
        if isinstance(tools, dict):
            table = tools.get(TABLE)
    if not isinstance(table, dict):
        return None
    return {key.replace("_", "-"): value for key, value in table.items()}

"""Whose files and folders are believed: this user's and root's, where no others may write."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from fp8verify.errors import InputError

TRUST = "FP8VERIFY_TRUST"  # folders, as in PATH, that are trusted whoever may write there


def is_trusted(folder: Path) -> bool:
    """Return whether FP8VERIFY_TRUST names a folder, or one above it."""
    trusted = [entry for entry in os.environ.get(TRUST, "").split(os.pathsep) if entry]
    return any(folder.resolve().is_relative_to(Path(entry).resolve()) for entry in trusted)


def why_distrusted(path: Path, descriptor: int) -> str | None:
    """Return why an open file or folder is not believed, None if it is."""
    if path.is_symlink() and not _is_ours(path.lstat()):
        return "it is a link of another user"
    status = os.fstat(descriptor)
    if status.st_mode & stat.S_IWOTH:
        return "all users may write it"
    if _is_ours(status) or (stat.S_ISDIR(status.st_mode) and _owns_what_it_makes(descriptor)):
        return None
    return "it belongs to another user"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (os.getuid(), 0)


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
    shared = [directory for directory in (folder, folder.parent) if _is_shared(directory.stat())]
    return tuple(
        f"{directory} may be written by other users: they could exchange the files of a run"
        for directory in shared[:1]
    )


def make_private(folder: str) -> int:
    """Make a folder of mode 0700 and return a descriptor of it, for `dir_fd`.

    Raises:
        OSError: it cannot be made, or is not ours alone once it is.
    """
    os.mkdir(folder, 0o700)  # noqa: PTH102 - every run waits for this
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    owned = status.st_uid == os.getuid() or _owns_what_it_makes(descriptor)
    if (owned and not status.st_mode & 0o077) or is_trusted(Path(folder)):
        return descriptor
    os.close(descriptor)
    raise PermissionError(1, f"other users may write it (if they are trusted: {TRUST}={folder})")


def _owns_what_it_makes(descriptor: int) -> bool:
    """Whether files of ours get the owner of a folder: NFS and containers may map users."""
    name = f".owner-{os.urandom(6).hex()}"
    try:
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=descriptor)
    except OSError:
        return False
    try:
        return os.fstat(made).st_uid == os.fstat(descriptor).st_uid
    finally:
        os.close(made)
        with suppress(OSError):
            os.unlink(name, dir_fd=descriptor)


def _is_shared(status: os.stat_result) -> bool:
    """Whether other users may rename what is in a folder; a group of this user alone is none."""
    if not _is_ours(status):
        return True
    if status.st_mode & stat.S_ISVTX or not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    if status.st_mode & stat.S_IWOTH:
        return True
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    return user.pw_gid != status.st_gid or bool(set(group.gr_mem) - {user.pw_name})

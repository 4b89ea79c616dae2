"""Open, write and replace files, and parse TOML, whatever is in their place."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from fp8verify.errors import InputError, UsageError

# Parts of keys that the TOML reader may walk over, each a microsecond and up to 8 bytes: it keeps
# every prefix of a dotted key, behind all parts of its table.
MAX_KEY_PARTS = 1 << 21
PRIVATE_FILE = 0o600


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read; a FIFO or a device may never end, nor give a first byte.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    if not hasattr(path, "__fspath__"):
        return path.open("rb")  # of object storage, which has no FIFOs
    # Non-blocking: a FIFO that nobody writes to would otherwise wait here.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_private(path: Path, *, new: bool = False) -> IO[bytes]:
    """Open a file to write that only its user may read, whatever the umask.

    Raises:
        FileExistsError: there is one, and it was to be `new`.
        OSError: it cannot be made.
    """
    how = os.O_EXCL if new else os.O_TRUNC
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, PRIVATE_FILE)
    return os.fdopen(descriptor, "wb")


@contextmanager
def reading_file(
    path: Path | str, hint: str = "Check the name and the permissions."
) -> Iterator[None]:
    """Turn a failure to read a small file of the user's into an error with a hint.

    `trace.places.reading` is for traces, which may lie behind URLs.

    Raises:
        InputError: it cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.", hint) from None


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Turn a failure to write a file of the user's into an error.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {what} to {path}: {error.strerror or error}.",
            "Name a file in a folder that exists, has room and may be written.",
        ) from None


@contextmanager
def replacing(path: Path, name: str) -> Iterator[Path]:
    """Yield the path of a draft, which takes the place of `path` if all goes well inside.

    Args:
        path: the file.
        name: of the draft, which lies next to it.

    Raises:
        OSError: it cannot be put there.
    """
    draft = path.with_name(name)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text holds.

    Raises:
        ValueError: it is not TOML, or its dotted keys would take too much memory.
        RecursionError: it is nested too deep.
    """
    _refuse_long_keys(text)
    library = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(library.loads(text))


def _refuse_long_keys(text: str) -> None:
    """Refuse text whose dotted keys the TOML reader would take apart in quadratic memory.

    No line has more parts in its key than dots, plus one, and no key is longer than a line.

    Raises:
        ValueError: too many parts.
    """
    if "." not in text:
        return
    dots = [line.count(".") for line in text.split("\n")]
    longest = max(dots)
    parts = sum((count + 1) * (count + longest + 1) for count in dots)
    if parts > MAX_KEY_PARTS:
        raise ValueError(
            f"it has lines of up to {longest} dots, too many for dotted keys"
        )

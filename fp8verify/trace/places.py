"""Where traces lie: paths, patterns and URLs, all with the methods of `pathlib.Path`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

from fp8verify.errors import InputError

_PATTERN = re.compile(r"[*?[]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
# Object stores read ahead by 50 MB if not told otherwise (s3fs 2026.9).
_READ_AHEAD = 4 << 20


def place(text: str | Path) -> Path:
    """Return the path that the user gave; a URL becomes one on fsspec's file system for it.

    Raises:
        InputError: a URL of an unknown kind, or whose packages are not installed.
    """
    # A URL that went through pathlib has lost a slash, so only text can be one.
    if not isinstance(text, str) or not _URL.match(text):
        return Path(text)
    try:
        from upath import UPath
    except ImportError:
        raise InputError(
            f"{text} is remote, and the packages to read it are not installed.",
            "pip install 'fp8verify[remote]', or download the traces.",
        ) from None
    with reading(text):
        path = UPath(text)
        _ = path.fs  # imports what the protocol needs
    return cast(Path, path)


def is_pattern(text: str) -> bool:
    """Whether a text stands for the paths that match it."""
    return _PATTERN.search(text) is not None


def is_remote(path: Path) -> bool:
    """Whether `path` came from a URL."""
    return not isinstance(path, Path)


def is_shared(path: Path) -> bool:
    """Whether another process can open `path` as well."""
    return getattr(path, "protocol", "") != "memory"


def expand(text: str | Path) -> list[Path]:
    """Return the path itself, or what matches it if it is a pattern such as `rank*.json.gz`.

    Raises:
        InputError: nothing matches, or the storage cannot be read.
    """
    given = str(text)
    pattern = _PATTERN.search(given)
    with reading(given):
        path = place(text)
        if not pattern or path.exists():
            return [path]
        head, slash, _ = given[: pattern.start()].rpartition("/")
        found = sorted(place(head + slash or ".").glob(given[len(head + slash) :]), key=str)
    if not found:
        raise InputError(f"{given} matches no file.", "Check the pattern; quote it in a shell.")
    return found


def open_binary(path: Path) -> IO[bytes]:
    """Open a local or remote file."""
    if not is_remote(path):
        return path.open("rb")
    remote: Any = path
    return BufferedReader(remote.open("rb", block_size=_READ_AHEAD))


@contextmanager
def reading(what: str | Path) -> Iterator[None]:
    """Turn what a file system raises while `what` is read into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{what} does not exist.", "Give a trace or a folder of traces.") from None
    except OSError as error:
        reason = error.strerror or str(error)[:200] or type(error).__name__
        denied = isinstance(error, PermissionError)
        hint = "Give this user the right to read it." if denied else "Check the path."
        raise InputError(f"{what} cannot be read: {reason}.", hint) from None
    except Exception as error:
        # Storage clients have exceptions of their own: no credentials, no route, no such bucket.
        if isinstance(what, Path) or not _URL.match(str(what)):
            raise
        reason = (str(error) or type(error).__name__)[:200].rstrip(".")
        raise InputError(
            f"{what} cannot be read: {reason}.", "Check the URL, credentials and packages."
        ) from None

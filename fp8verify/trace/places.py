"""Locations of traces: paths, patterns and URLs, all with the methods of `pathlib.Path`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

from fp8verify.errors import InputError, requires
from fp8verify.files import open_regular
from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean

STDIN = "-"
STANDARD_INPUT = (STDIN, "/dev/stdin")
_PATTERN = lazy_pattern(r"[*?[]")
_URL = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.\-]+://")
# Object stores read ahead by 50 MB by default (s3fs 2026.9).
_READ_AHEAD = 4 << 20
# For each answer of a web server.
MAX_SECONDS = 1800.0
# Listings and blocks of files, which are read at once; files themselves are read in blocks.
MAX_BODY = 64 << 20
_SILENCE_S = 60


def place(text: str | Path) -> Path:
    """Return the path that the user gave; a URL becomes one on fsspec's file system for it.

    Raises:
        InputError: no text at all, a URL of an unknown kind, or whose packages are not installed.
    """
    if text == "":  # pathlib would take it for the current folder
        raise empty_path()
    # A URL that went through pathlib has lost a slash, so only text can be one.
    if not isinstance(text, str) or not _URL.match(text):
        return Path(text)
    with requires("fsspec s3fs universal_pathlib", text):
        from upath import UPath
    with reading(text):
        path = UPath(text, **_options(text))
        _ = path.fs  # imports what the protocol needs
    return cast("Path", path)


def _options(url: str) -> dict[str, Any]:
    """Return the options of fsspec's file system: a web server may answer without end."""
    if not url.lower().startswith(("http://", "https://")):
        return {}
    from aiohttp import ClientPayloadError, ClientResponse, ClientTimeout

    class BoundedResponse(ClientResponse):
        """A response whose body is bounded if it is read as a whole."""

        async def read(self) -> bytes:
            if self._body is None:
                body = bytearray()
                async for piece in self.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > MAX_BODY:
                        self.close()
                        raise ClientPayloadError(
                            f"an answer of more than {MAX_BODY >> 20} MB"
                        )
                self._body = bytes(body)
            return self._body

    timeout = ClientTimeout(
        total=MAX_SECONDS,
        sock_connect=_SILENCE_S,
        sock_read=_SILENCE_S,
    )
    return {"client_kwargs": {"response_class": BoundedResponse, "timeout": timeout}}


def empty_path() -> InputError:
    """Return the error of a path that is the empty text."""
    return InputError("A path is empty.", "Is a variable in the command not set?")


def is_pipe(text: str | Path) -> bool:
    """Whether it is standard input, or a pipe such as a shell's `<(zcat trace.json.gz)`."""
    given = str(text)
    if given in STANDARD_INPUT:
        return True
    if _URL.match(given):
        return False
    return Path(given).is_fifo()


def comes_through_pipe(paths: Sequence[str | Path]) -> bool:
    """Whether the one path that was given is standard input or a pipe."""
    with reading(str(*paths[:1])):
        return len(paths) == 1 and is_pipe(paths[0])


def is_remote(path: Path) -> bool:
    """Whether `path` came from a URL."""
    return not isinstance(path, Path)


def is_shared(path: Path) -> bool:
    """Whether another process can open `path` as well."""
    return getattr(path, "protocol", "") != "memory"


def by_number(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them: `trace_2` before `trace_10`."""
    key = []
    for part in _NUMBERS.split(name):
        number = -1
        if part.isdecimal():
            number = int(part[:18])
        key.append((number, part))
    return key


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
        before = given[: pattern.start()]
        folder = before[: before.rfind("/") + 1]
        matches = place(folder or ".").glob(given.removeprefix(folder))
        paths = sorted(matches, key=lambda path: by_number(str(path)))
    if not paths:
        raise InputError(
            f"{given} matches no file.", "Check the pattern; quote it in a shell."
        )
    return paths


def open_binary(path: Path) -> IO[bytes]:
    """Open a local or remote file; a pipe must have been asked for with `is_pipe` before.

    Raises:
        OSError: it cannot be opened, or may have no end.
    """
    if not is_remote(path):
        return open_regular(path)
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
        raise InputError(
            f"{what} does not exist.", "Give a trace or a folder of traces."
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)[:200] or type(error).__name__
        denied = isinstance(error, PermissionError)
        address = "Check the path."
        if _URL.match(str(what)):
            address = "Check the address."
        if denied:
            hint = "Give this user the right to read it."
        else:
            hint = address
        raise InputError(f"{what} cannot be read: {reason}.", hint) from None
    except Exception as error:
        # Storage clients have exceptions of their own: no credentials, no route, no such bucket.
        if isinstance(what, Path) or not _URL.match(str(what)):
            raise
        text = str(error) or type(error).__name__
        reason = text[:200].rstrip(".")
        raise InputError(
            f"{what} cannot be read: {reason}.",
            "Check the URL, credentials and packages.",
        ) from None


_NUMBERS = lazy_pattern(r"(\d+)", re.ASCII)
_ENDING = lazy_pattern(
    r"(?:\.pt)?(?:\.trace)?\.(?:json|sqlite|csv)(?:\.(?:gz|zst))?$", re.IGNORECASE
)
_OPEN_FILE = lazy_pattern(
    r"/(?:dev|proc/self)/fd/\d+"
)  # as shells call `<(zcat trace.json.gz)`
# What a profiler or a launcher calls the file of every run.
_SAYS_NO_RUN = lazy_pattern(r"(?:rank[-_]?\d+(?:\.w\d+)?|trace)", re.IGNORECASE)


def run_name(paths: Sequence[str | Path]) -> str:
    """Return what a run is called by its paths: its folder, or its file without endings.

    Of a pattern, or of several paths, it is the folder of the first. A file called `rank0` or
    `trace`, as every run's is, has its folder before it.
    """
    text = str(paths[0])
    if text in STANDARD_INPUT:
        return "standard input"
    if _OPEN_FILE.fullmatch(text):
        return "pipe"
    path = Path(text)
    if _PATTERN.search(text) or len(paths) > 1:
        path = path.parent
    if path.name in ("", ".."):
        path = path.resolve()
    stem = _ENDING.sub("", path.name) or path.name or "run"
    if stem != path.name and _SAYS_NO_RUN.fullmatch(stem):
        folder = path.parent.name or path.resolve().parent.name
        if folder:
            return clean(f"{folder}/{stem}")
    return clean(stem)

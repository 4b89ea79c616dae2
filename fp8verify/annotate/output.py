"""Where an annotated trace goes: packed as its suffix says, and there only when it is whole."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from fp8verify.errors import UsageError

_LEVEL = 2
_packer: Any = gzip
with suppress(ImportError):  # isal has no wheel for some processors
    from isal import igzip

    _packer = igzip


@contextmanager
def open_sink(path: Path) -> Iterator[Callable[[bytes | bytearray], None]]:
    """Yield what writes to a file that takes its name when the block ends without an error.

    Raises:
        UsageError: it cannot be written, or its packing needs a package that is not installed.
    """
    unfinished = path.with_name(f"{path.name}.part")

    def write(data: bytes | bytearray) -> None:
        with _writing(path):
            file.write(data)

    try:
        with _writing(path):
            file = _open(unfinished, path.suffix)
        try:
            yield write
        finally:
            with _writing(path):
                file.close()
        with _writing(path):
            unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}.",
            "Pass -o a file in a folder that exists and has room.",
        ) from None


def _open(path: Path, suffix: str) -> IO[bytes]:
    if suffix == ".gz":
        return cast("IO[bytes]", _packer.open(path, "wb", compresslevel=_LEVEL))
    if suffix != ".zst":
        return path.open("wb")
    try:
        import zstandard
    except ImportError:
        raise UsageError(
            f"{path.stem} would be packed with zstd, whose package is not installed.",
            "pip install 'fp8verify[zstd]', or end the name in .json or .json.gz.",
        ) from None
    return cast("IO[bytes]", zstandard.open(path, "wb"))

"""Traces in a zip or tar: unpacked into a private folder for as long as they are read."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import commonpath
from pathlib import Path, PurePosixPath
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.archive_names import TAR, UNPACKED, ZIP
from fp8verify.trace.places import open_binary, reading
from fp8verify.trace.readers import suffixes

_ARCHIVES = (*ZIP, *TAR, ".tar.bz2", ".tar.xz", ".tar.zst", ".7z")
# The records and logs of a capture, which are read with its traces.
_RECORDS = (".json", ".jsonl", ".log", ".txt")
_MAX_MEMBERS = 10_000
_MAX_BYTES = 16 << 30
# What a format's own tables may take; no member is read in larger pieces.
_MAX_TABLE = 16 << 20
_PIECE = 1 << 20
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    gzip.BadGzipFile,
    NotImplementedError,  # a compression that zipfile lacks
    ValueError,
    struct.error,
)


class _Member(NamedTuple):
    """A file of an archive: its path there, and its content."""

    name: str
    content: IO[bytes]


class _Bounded(io.RawIOBase):
    """A file that gives only so much at once and in all: headers may claim any size."""

    def __init__(
        self,
        file: IO[bytes],
        most: int,
        archive: str,
    ) -> None:
        super().__init__()
        self._file = file
        self._left = most
        self._archive = archive

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes.

        Raises:
            InputError: they are more than any archive of traces has.
        """
        if size < 0 or size > _MAX_TABLE:
            size = _MAX_TABLE + 1
        data = self._file.read(size)
        self._left -= len(data)
        if len(data) > _MAX_TABLE or self._left < 0:
            raise _too_much(self._archive)
        return data

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say whether its file can be read from any place."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on from another place."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place that is read next."""
        return self._file.tell()


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """Unpack the traces of an archive, and give their folder until they have been read.

    Raises:
        InputError: it is damaged, encrypted or too large, has a path that leads out of it, or has
            an archive or no trace in it.
    """
    with TemporaryDirectory(prefix=UNPACKED) as private:
        folder = Path(private)
        limit = min(_MAX_BYTES, disk_usage(folder).free // 2)
        written: list[Path] = []
        try:
            with reading(archive), open_binary(archive) as file:
                if archive.name.lower().endswith(ZIP):
                    members = _of_zip(file, archive.name, limit)
                else:
                    members = _of_tar(file, archive.name, limit)
                for member in members:
                    written += _written(member, folder, archive.name)
        except _BROKEN as error:
            reason = clean(str(error))[:120] or type(error).__name__
            raise InputError(
                f"{archive.name} is damaged: {reason}.",
                "Pack it again, or unpack it and give the folder.",
            ) from None
        has_trace = any(path.name.endswith(suffixes()) for path in written)
        if not has_trace:
            raise InputError(
                f"{archive.name} has no trace: it is an archive of other files, such as a checkpoint.",
                f"Traces end in {', '.join(suffixes())}; give the folder that the profiler wrote to.",
            )
        yield Path(commonpath([path.parent for path in written]))


def _of_zip(
    file: IO[bytes],
    archive: str,
    limit: int,
) -> Iterator[_Member]:
    left = limit
    # Its table of contents is read at once; the members are read from the file itself.
    with zipfile.ZipFile(_Bounded(file, _MAX_BYTES, archive)) as packed:
        members = packed.infolist()
        if len(members) > _MAX_MEMBERS:
            raise _too_much(archive)
        for info in members:
            if info.is_dir() or not _is_wanted(info.filename, archive):
                continue
            if info.flag_bits & 1:
                raise InputError(
                    f"{archive} is encrypted.", "Unpack it, and give the folder."
                )
            left -= info.file_size
            if left < 0:
                raise _too_much(archive)
            with packed.open(info) as content:
                yield _Member(
                    info.filename,
                    _Bounded(content, info.file_size, archive),  # type: ignore[arg-type]
                )


def _of_tar(
    file: IO[bytes],
    archive: str,
    limit: int,
) -> Iterator[_Member]:
    start = file.read(2)
    file.seek(0)
    is_packed = start == b"\x1f\x8b"
    plain: IO[bytes] = gzip.GzipFile(fileobj=file) if is_packed else file  # type: ignore[assignment]
    bounded = _Bounded(plain, limit, archive)
    with tarfile.open(fileobj=bounded, mode="r|") as packed:
        for count, info in enumerate(packed):
            if count >= _MAX_MEMBERS:
                raise _too_much(archive)
            if not info.isfile() or not _is_wanted(info.name, archive):
                continue
            content = packed.extractfile(info)
            if content is not None:
                yield _Member(info.name, content)


def _is_wanted(name: str, archive: str) -> bool:
    """Whether a member is a trace, a record or a log.

    Raises:
        InputError: it is an archive itself.
    """
    if name.lower().endswith(_ARCHIVES):
        raise InputError(
            f"{archive} has another archive in it: {clean(name)[:120]}.",
            "Unpack it, and give the folder of the traces.",
        )
    return name.endswith((*suffixes(), *_RECORDS))


def _written(
    member: _Member,
    folder: Path,
    archive: str,
) -> Iterator[Path]:
    """Write a member below a folder, and yield where.

    Raises:
        InputError: its path leads elsewhere.
    """
    name = member.name
    parts = PurePosixPath(name).parts
    leads_out = ".." in parts or name.startswith("/")
    has_odd_sign = "\\" in name or "\0" in name
    if leads_out or has_odd_sign or ":" in parts[0]:
        raise InputError(
            f"{archive} has a path that leads out of it: {clean(member.name)[:120]}.",
            "Unpack it where that does no harm, and give the folder of the traces.",
        )
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while piece := member.content.read(_PIECE):
            file.write(piece)
    yield path


def _too_much(archive: str) -> InputError:
    return InputError(
        f"{archive} has too much in it, or too many files, to be unpacked here.",
        "Unpack the traces in it, and give their folder.",
    )

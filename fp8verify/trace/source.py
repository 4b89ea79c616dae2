"""Open a trace as a stream of decompressed bytes: plain, gzip or zstd, by their magic bytes."""

from __future__ import annotations

import zlib
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from fp8verify.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

inflate: Any
try:
    from isal import isal_zlib as inflate
except ImportError:  # no wheel for this processor
    inflate = zlib

READ_SIZE = 1 << 17
PIECE_SIZE = 1 << 16
# Traces shrink 10 to 40 times; DEFLATE's own limit is 1,032, which only padding comes near.
MAX_RATIO = 250
RATIO_FREE = 64 << 20
# Tools that pack in parallel or in blocks put 64 kB or more into a member.
MEMBERS_FREE, LEAST_MEMBER = 1000, 256

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class ByteStream(Protocol):
    """Decompressed bytes, in pieces."""

    @property
    def damage(self) -> str | None:
        """Why the stream ended early, if it did."""

    def __iter__(self) -> Iterator[bytes]: ...


def open_stream(file: IO[bytes], name: str) -> ByteStream:
    """Look at the first bytes of `file` and return the stream that decodes it.

    Raises:
        InputError: the file is empty, or zstd without the `zstandard` package.
    """
    head = file.read(READ_SIZE)
    if not head:
        raise InputError(f"{name} is empty.", "Give a trace that the profiler finished writing.")
    if head.startswith(GZIP_MAGIC):
        return GzipStream(head, file, name)
    if head.startswith(ZSTD_MAGIC):
        return ZstdStream(head, file, name)
    return PlainStream(head, file)


class PlainStream:
    """The file's own bytes."""

    def __init__(self, head: bytes, file: IO[bytes]) -> None:
        self.damage: str | None = None
        self._head, self._file = head, file

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        while data := self._file.read(READ_SIZE):
            yield data


class _Guard:
    """Stops a file whose expansion no trace reaches."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._read = self._written = 0

    def count(self, read: int, written: int) -> None:
        self._read += read
        self._written += written
        if self._written > RATIO_FREE and self._written > MAX_RATIO * self._read:
            raise InputError(
                f"{self._name} expands more than {MAX_RATIO} times: a decompression bomb.",
                "Unpack it yourself if you trust it, and give the .json.",
            )

    def count_members(self, members: int) -> None:
        if members > MEMBERS_FREE and members * LEAST_MEMBER > self._written:
            raise InputError(
                f"{self._name} consists of {members} gzip members with hardly a byte in each.",
                "This is not how traces are packed: unpack it yourself if you trust it.",
            )


class GzipStream:
    """Every member of a gzip file; what a cut or corrupt file still gives is given."""

    def __init__(self, head: bytes, file: IO[bytes], name: str) -> None:
        self.damage: str | None = None
        self._head, self._file = head, file
        self._guard = _Guard(name)

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._members()
        except inflate.error:
            self.damage = "the gzip data is corrupt"

    def _members(self) -> Iterator[bytes]:
        inflater = inflate.decompressobj(wbits=31)
        data, members = self._head, 0
        while data or (data := self._file.read(READ_SIZE)):
            if inflater.eof:
                if not data.lstrip(b"\0"):  # tar and tape padding
                    data = b""
                    continue
                inflater = inflate.decompressobj(wbits=31)
                members += 1
                self._guard.count_members(members)
            piece = inflater.decompress(data, PIECE_SIZE)
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            self._guard.count(len(data) - len(rest), len(piece))
            data = rest
            if piece:
                yield piece
        while not inflater.eof and (piece := inflater.decompress(b"", PIECE_SIZE)):
            self._guard.count(0, len(piece))
            yield piece
        if not inflater.eof:
            self.damage = "the gzip data ends early"


class ZstdStream:
    """Every frame of a zstd file."""

    def __init__(self, head: bytes, file: IO[bytes], name: str) -> None:
        self.damage: str | None = None
        self._head, self._file = head, file
        self._guard = _Guard(name)
        try:
            import zstandard
        except ImportError:
            raise InputError(
                f"{name} is compressed with zstd, which needs a package that is not installed.",
                "pip install 'fp8verify[zstd]', or unpack the file with `zstd -d`.",
            ) from None
        self._zstandard = zstandard

    def __iter__(self) -> Iterator[bytes]:
        counted = _Counted(self._head, self._file)
        reader = self._zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            cast("IO[bytes]", counted), read_across_frames=True, read_size=READ_SIZE
        )
        try:
            while piece := reader.read(PIECE_SIZE):
                self._guard.count(counted.take(), len(piece))
                yield piece
        except self._zstandard.ZstdError:
            self.damage = "the zstd data is corrupt"


class _Counted:
    """A file with its head put back, that knows how much was read since last asked."""

    def __init__(self, head: bytes, file: IO[bytes]) -> None:
        self._head, self._file = head, file
        self._taken = 0

    def read(self, size: int = -1) -> bytes:
        data, self._head = (self._head, b"") if self._head else (self._file.read(size), b"")
        self._taken += len(data)
        return data

    def take(self) -> int:
        taken, self._taken = self._taken, 0
        return taken

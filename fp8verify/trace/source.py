"""The unpacked bytes of a trace (plain, gzip or zstd), and what readers of all formats share."""

from __future__ import annotations

import math
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from fp8verify.errors import InputError, requires
from fp8verify.trace.places import is_remote

inflate: Any
try:
    from isal import isal_zlib as inflate
except ImportError:  # no wheel for this processor
    inflate = zlib

READ_SIZE = 1 << 17
PIECE_SIZE = 1 << 16
# Of a remote file, which may be endless.
MAX_BYTES = 64 << 30
MAX_LINE = 1 << 16
# Bytes that are decoded at once.
BLOCK_SIZE = 1 << 19
# A gzip member may hold a few bytes only; magic numbers and headers are shorter than this.
_HEAD_SIZE = 1 << 10
# Traces shrink 10 to 40 times; DEFLATE's own limit is 1,032, which only padding comes near.
MAX_RATIO = 250
RATIO_FREE = 64 << 20
# Tools that pack in parallel or in blocks put 64 kB or more into a member.
MEMBERS_FREE = 1000
LEAST_MEMBER = 256

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# Packed forms that are not read: their first bytes, and what unpacks them.
_NOT_READ = {b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz", b"7z\xbc\xaf\x27\x1c": "7z x"}


class Glance(NamedTuple):
    """What the start of a file shows; a damaged file may be a trace without looking like one.

    `is_blas_log` is whether a BLAS library logged it, which is also a witness for a trace.
    """

    is_trace: bool = False
    is_damaged: bool = False
    rank: int | None = None
    is_blas_log: bool = False


class Reading(NamedTuple):
    """How to read a file.

    Attributes:
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
        block_size: bytes to decode at once, if that can be chosen.
        split: give each rank of a file that holds several its own trace.
        launches: say when and on which thread kernels were launched.
        configs: say with how many threads, registers and bytes of shared memory.
    """

    layers: bool = False
    block_size: int = BLOCK_SIZE
    split: bool = False
    launches: bool = False
    configs: bool = False


class Source:
    """The unpacked bytes of an open file, to be iterated over once, with its first ones at hand.

    What a cut or corrupt file still gives is given.

    Attributes:
        name: what errors and reports call it.
        path: of the file, packed or not; None for a pipe.
        head: the first bytes, a few hundred or more unless the file is shorter.
        is_packed: whether the file itself is gzip or zstd.
        damage: why the bytes ended early, if they did.

    Raises:
        InputError: the file is empty, packed by other tools, zstd without the `zstandard` package,
            or a decompression bomb; the last also while iterating.
    """

    def __init__(
        self,
        file: IO[bytes],
        name: str,
        path: Path | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self.damage: str | None = None
        self._file = _Counted(
            file, name, is_bounded=path is not None and is_remote(path)
        )
        self._written = 0
        first = self._file.read(READ_SIZE)
        if not first:
            raise InputError(
                f"{name} is empty.", "Give a trace that the profiler finished writing."
            )
        for mark, tool in _NOT_READ.items():
            if first.startswith(mark):
                raise InputError(
                    f"{name} is packed in a form that is not read.",
                    f"Unpack it first ({tool}), and give what was in it.",
                )
        self._file.put_back(first)
        self.is_packed = first.startswith((GZIP_MAGIC, ZSTD_MAGIC))
        pieces = self._unpacked(first)
        start = next(pieces, b"")
        self._pieces: Iterator[bytes] = chain([start], pieces)
        # As PowerShell redirects text.
        is_utf16 = start.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        if is_utf16:
            self._pieces = _from_utf16(self._pieces)
        self.head = b""
        while len(self.head) < _HEAD_SIZE and (piece := next(self._pieces, b"")):
            self.head += piece

    def __iter__(self) -> Iterator[bytes]:
        if self.head:
            yield self.head
        yield from self._pieces

    def whole(self, limit: int) -> bytes:
        """Return all bytes.

        Raises:
            InputError: they are more than `limit`.
        """
        data = bytearray()
        for piece in self:
            data += piece
            if len(data) > limit:
                raise InputError(
                    f"{self.name} has more than {limit >> 20} MB, too many to be read at once.",
                    "Record fewer steps, or print a table as CSV in place of JSON.",
                )
        return bytes(data)

    def lines(self) -> Iterator[str]:
        """Yield the lines of a text with their ends; one of more than `MAX_LINE` bytes is cut."""
        rest = b""
        for piece in self:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line[:MAX_LINE].decode("utf-8", "replace") + "\n"
            rest = rest[:MAX_LINE]
        if rest:
            yield rest.decode("utf-8", "replace")

    def _unpacked(self, first: bytes) -> Iterator[bytes]:
        if first.startswith(GZIP_MAGIC):
            return self._gzip()
        if first.startswith(ZSTD_MAGIC):
            return self._zstd()
        return iter(lambda: self._file.read(READ_SIZE), b"")

    def _gzip(self) -> Iterator[bytes]:
        try:
            yield from self._members()
        except inflate.error:
            self.damage = "the gzip data is corrupt"

    def _members(self) -> Iterator[bytes]:
        """Yield what the members of a gzip file hold, one after another."""
        inflater = inflate.decompressobj(wbits=31)
        data = b""
        members = 0
        while data or (data := self._file.read(READ_SIZE)):
            if inflater.eof:
                if not data.lstrip(b"\0"):  # tar and tape padding
                    break
                inflater = inflate.decompressobj(wbits=31)
                members += 1
                # Members that hold next to nothing, each of which takes time.
                if (members - MEMBERS_FREE) * LEAST_MEMBER > self._written:
                    raise InputError(
                        f"{self.name} consists of {members} gzip members with hardly a byte in "
                        "each.",
                        "This is not how traces are packed: unpack it yourself if you trust it.",
                    )
            piece = inflater.decompress(data, PIECE_SIZE)
            if inflater.eof:
                data = inflater.unused_data
            else:
                data = inflater.unconsumed_tail
            if piece:
                yield self._counted(piece)
        while not inflater.eof and (piece := inflater.decompress(b"", PIECE_SIZE)):
            yield self._counted(piece)
        if not inflater.eof:
            self.damage = "the gzip data ends early"

    def _zstd(self) -> Iterator[bytes]:
        """Yield what the frames of a zstd file hold."""
        with requires("zstandard", f"{self.name}, which is packed with zstd,"):
            import zstandard
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            cast("IO[bytes]", self._file),
            read_across_frames=True,
            read_size=READ_SIZE,
        )
        try:
            while piece := reader.read(PIECE_SIZE):
                yield self._counted(piece)
        except zstandard.ZstdError:
            self.damage = "the zstd data is corrupt"

    def _counted(self, piece: bytes) -> bytes:
        """Return what was unpacked; stop a file whose expansion no trace reaches."""
        self._written += len(piece)
        if self._written > max(RATIO_FREE, MAX_RATIO * self._file.total):
            raise InputError(
                f"{self.name} expands more than {MAX_RATIO} times: a decompression bomb.",
                "Unpack it yourself if you trust it, and give the .json.",
            )
        return piece


def _from_utf16(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of pieces of UTF-16 as UTF-8."""
    decoder = getincrementaldecoder("utf-16")("replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")


class _Counted:
    """A file that counts the bytes read, and to which its first ones can be put back."""

    def __init__(
        self,
        file: IO[bytes],
        name: str,
        *,
        is_bounded: bool,
    ) -> None:
        self.total = 0
        self._file = file
        self._head = b""
        self._name = name
        self._limit = MAX_BYTES if is_bounded else math.inf

    def read(self, size: int) -> bytes:
        data = self._head or self._file.read(size)
        self._head = b""
        self.total += len(data)
        if self.total > self._limit:
            raise InputError(
                f"{self._name} has no end within {MAX_BYTES >> 30} GB.",
                "Download it, and give the file.",
            )
        return data

    def put_back(self, head: bytes) -> None:
        self._head = head
        self.total -= len(head)


def not_a_trace(source: Source, what: str) -> InputError:
    """Say what a file is not, or that it is damaged before its first event."""
    if source.damage is not None:
        return InputError(
            f"{source.name} is damaged before its first event: {source.damage}.",
            "The file is cut or corrupt: copy or export it again (`gzip -t` or `zstd -t` tests "
            "one).",
        )
    return InputError(
        f"{source.name} is not {what}.",
        "Give a trace that torch.profiler exported (export_chrome_trace), or a folder of them; "
        "a log goes to --log.",
    )

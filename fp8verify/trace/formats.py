"""What a trace's format is: how it is recognised, and who reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fp8verify.trace.source import ByteStream
    from fp8verify.trace.tables import Trace

# A gzip member may hold a few bytes only; magic numbers and headers are shorter than this.
_HEAD_SIZE = 1 << 10
BLOCK_SIZE = 1 << 19


class Source:
    """The unpacked bytes of a file, to be iterated over once, with its first ones at hand.

    Attributes:
        name: what errors and reports call it.
        path: of the file, packed or not; None for a pipe.
        head: the first bytes, a few hundred or more unless the file is shorter.
    """

    def __init__(self, stream: ByteStream, name: str, path: Path | None = None) -> None:
        self.name, self.path = name, path
        self._stream, self._pieces = stream, iter(stream)
        head = b""
        while len(head) < _HEAD_SIZE and (piece := next(self._pieces, None)) is not None:
            head += piece
        self.head = head

    @property
    def damage(self) -> str | None:
        """Why the bytes ended early, if they did."""
        return self._stream.damage

    def __iter__(self) -> Iterator[bytes]:
        if self.head:
            yield self.head
        yield from self._pieces


class Part(NamedTuple):
    """One of several processes in a file: its number there, and what reports call it."""

    number: int
    label: str


class Glance(NamedTuple):
    """What the start of a file shows; a damaged file may be a trace without looking like one.

    `parts` are the processes of a file that may hold several. `instead` is what to read for a
    file that another program had to unpack.
    """

    is_trace: bool = False
    is_damaged: bool = False
    rank: int | None = None
    parts: tuple[Part, ...] = ()
    instead: Path | None = None


class Reading(NamedTuple):
    """How to read a file.

    Attributes:
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
        block_size: bytes to decode at once, where that can be chosen.
        part: the process to read of a file that holds several.
    """

    layers: bool = False
    block_size: int = BLOCK_SIZE
    part: int | None = None


class Format(Protocol):
    """A format of traces."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The endings of the files that are traces of it in a folder."""

    def probe(self, head: bytes, name: str) -> bool:
        """Whether a file of this name that begins with `head`, unpacked, is in this format."""

    def glance(self, source: Source) -> Glance:
        """Look at the start of a file for whether it is a trace, and of which rank.

        Raises:
            InputError: it cannot be read.
        """

    def read(self, source: Source, how: Reading) -> Trace:
        """Read the columns of a trace and `build.fill` them into a `Trace`.

        Raises:
            InputError: it cannot be read, or is not a trace.
        """

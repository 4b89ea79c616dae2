"""The lines of a log, or only those with certain words, with their numbers.

A log is untrusted and may be large, packed, in UTF-16 or not text at all: it is unpacked and
decoded a few megabytes at a time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.trace.places import is_pipe, open_binary
from fp8verify.trace.source import Source

# A longer line comes in pieces, so memory is bounded.
MAX_LINE_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20
# A dump of settings is longer only where a list in it is.
_CONTEXT = 1 << 15
_COLOR = lazy_pattern(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)"
)


class Line(NamedTuple):
    """One line without its end, or a piece of a very long one.

    `number` counts from 1 as editors and Python do: a line feed, a carriage return or both end a
    line. Where only lines with certain words are read, `block` holds this line, from `start` to
    `end`, and those around it.
    """

    number: int
    text: str
    block: bytes = b""
    start: int = 0
    end: int = 0

    def above(self) -> Iterator[str]:
        """Yield the lines before this one, the nearest first, as far as a dump may reach."""
        lines = self.block[max(0, self.start - _CONTEXT) : self.start].split(b"\n")[:-1]
        yield from (line.decode("utf-8", "replace") for line in reversed(lines))

    def below(self) -> Iterator[str]:
        """Yield the lines after this one, as far as a dump may reach."""
        lines = self.block[self.end : self.end + _CONTEXT].split(b"\n")[1:]
        yield from (line.decode("utf-8", "replace") for line in lines)


def uncolored(text: str) -> str:
    """Return a line without the escape sequences that color it."""
    if "\x1b" in text:
        return _COLOR.sub("", text)
    return text


def read_lines(
    path: Path,
    notes: list[str] | None = None,
    *,
    words: Sequence[bytes] = (),
) -> Iterator[Line]:
    """Yield the lines of a log, plain, gzip or zstd, as UTF-8; bad bytes are replaced.

    NULs are left out: what is ASCII in a log in UTF-16 is read, too, and holes in logs that were
    truncated while open are not.

    Args:
        path: a local or remote file, or a pipe.
        notes: gets a sentence where a part of the log could not be read.
        words: lower-case words; only lines with one of them, in any case, are given.

    Raises:
        InputError: the file cannot be opened or read.
    """
    number = 1
    for block in _whole_lines(_unpacked(path, [] if notes is None else notes)):
        # To search for each word is six times as fast as one expression for all of them, and
        # mostly in vain.
        if not words:
            for place, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
                yield Line(number + place, line.decode("utf-8", "replace"))
        elif any(map(block.lower().__contains__, words)):
            yield from _lines_with(words, block, number)
        number += block.count(b"\n")


def read_between(
    path: Path,
    numbers: Sequence[int],
) -> Iterator[tuple[int, bytes]]:
    """Yield the text after each of some lines in lower case, in pieces, and the line's place.

    Args:
        path: the log.
        numbers: of the lines, from 0 on, which is before the first.
    """
    begin = 1
    for block in _whole_lines(_unpacked(path, [])):
        count = block.count(b"\n")
        inside = [number for number in numbers if begin <= number <= begin + count]
        if inside:
            lines = block.lower().split(b"\n")
        else:
            lines = [block.lower()]
        for start, end in pairwise([begin - 1, *inside, begin + len(lines)]):
            text = b"\n".join(lines[start + 1 - begin : end - begin])
            yield bisect_right(numbers, start) - 1, text
        begin += count


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Cut a log where lines end, all of them with a line feed.

    A last line without an end stays with the lines before it, which may say what it means.
    """
    block = rest = b""
    for piece in pieces:
        data = rest + piece
        # A final carriage return may be half of an end.
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        if not end and len(data) > MAX_LINE_BYTES:
            end = len(data)
        rest = data[end:]
        if end:
            if block:
                yield block
            block = _feeds_only(data[:end])
    if block or rest:
        yield block + _feeds_only(rest)


def _feeds_only(data: bytes) -> bytes:
    if b"\r" in data:
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data


def _lines_with(
    words: Sequence[bytes],
    data: bytes,
    number: int,
) -> Iterator[Line]:
    gate = re.compile(b"(?:%s)[^\n]*" % b"|".join(map(re.escape, words)))
    lower = data.lower()
    counted = at = 0
    while hit := gate.search(lower, at):
        start = lower.rfind(b"\n", at, hit.start()) + 1
        at = hit.end()
        number += data.count(b"\n", counted, start)
        counted = start
        yield Line(
            number=number,
            text=data[start:at].decode("utf-8", "replace"),
            block=data,
            start=start,
            end=at,
        )


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    """Open a log. Its pipe was named by the user; of a capture only files are."""
    if not is_pipe(path):
        return open_binary(path)
    kept = _content_of_pipe(path, path.stat().st_ino)
    kept.seek(0)
    return nullcontext(kept)


@lru_cache(maxsize=16)
def _content_of_pipe(path: Path, _: int) -> IO[bytes]:
    """Return what came through a pipe, which gives it once: a log is read several times."""
    # They take a while to import, which a run without a log does not wait for.
    from shutil import copyfileobj
    from tempfile import TemporaryFile

    kept = TemporaryFile()  # noqa: SIM115 - it lives as long as the process
    with path.open("rb") as pipe:
        copyfileobj(pipe, kept)
    return kept


def _unpacked(path: Path, notes: list[str]) -> Iterator[bytes]:
    """Yield an unpacked log in a few large pieces, without NULs."""
    try:
        with _opened(path) as file:
            if not cast("Any", file).peek(1):
                return
            source = Source(file, path.name, path)
            held = []
            size = 0
            for piece in source:
                held.append(piece.replace(b"\0", b""))
                size += len(piece)
                if size >= BLOCK_BYTES:
                    yield b"".join(held)
                    held = []
                    size = 0
            yield b"".join(held)
            if source.damage is not None and not source.head:
                raise _unreadable(path, EOFError(source.damage))
            if source.damage is not None:
                notes.append(
                    f"{path.name} was read up to where its packed data is cut or damaged"
                )
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: BaseException) -> InputError:
    return InputError(
        f"cannot read the log {path}: {getattr(error, 'strerror', None) or error}",
        "Pass the file that holds the run's output with --log.",
    )

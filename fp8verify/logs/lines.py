"""The lines of a log, or only those with certain words, with their numbers.

A log is untrusted and may be large, packed, in UTF-16 or not text at all: it is unpacked and
decoded a few megabytes at a time.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from fp8verify.errors import InputError
from fp8verify.trace.places import open_binary
from fp8verify.trace.source import Source

# A line that is longer comes in pieces that overlap, so that memory is bounded and nothing that
# is shorter than the overlap is cut in two.
MAX_LINE_BYTES = 1 << 20
OVERLAP_BYTES = 1 << 14
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_MAX_SHAPE = 2000
_MAX_LIST = 4096
BLOCK_BYTES = 4 << 20
# Far above any log that a training writes, so that a decompression bomb comes to an end.
MAX_LOG_BYTES = 16 << 30
_SAMPLE_BYTES = 4096
# UTF-32's little-endian mark begins with UTF-16's, so it is asked first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Line(NamedTuple):
    """One line without its end, or a piece of a very long one.

    `number` counts from 1 as editors and Python do: a line feed, a carriage return or both end a
    line. `first` and `last` say whether the piece holds the line's start and its end. `shape` is
    the same for lines that differ in their counters only; b"" where it was not asked for.
    """

    number: int
    text: str
    first: bool = True
    last: bool = True
    shape: bytes = b""


class _Block(NamedTuple):
    number: int
    data: bytes
    first: bool
    last: bool


def read_lines(
    path: Path,
    notes: list[str] | None = None,
    *,
    words: Sequence[bytes] = (),
    but: Container[bytes] = (),
) -> Iterator[Line]:
    """Yield the lines of a log, plain, gzip or zstd, in UTF-8 or UTF-16; bad bytes are replaced.

    Args:
        path: the log.
        notes: gets a sentence where a part of the log could not be read.
        words: lower-case words; only lines with one of them, in any case, are given.
        but: shapes of lines that are not given; it may grow while the lines are read.

    Raises:
        InputError: the file cannot be opened or read.
    """
    gate = re.compile(b"|".join(map(re.escape, words))) if words else None
    try:
        for block in _whole_lines(read_blocks(path, [] if notes is None else notes)):
            if gate is None:
                yield from _every_line(block)
            # To search for each word is six times as fast as one expression for all of them, and
            # mostly in vain.
            elif any(map(block.data.lower().__contains__, words)):
                yield from _lines_with(block, gate, but)
    except InputError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None


def _whole_lines(pieces: Iterable[bytes]) -> Iterator[_Block]:
    """Cut the log where lines end."""
    number, first, rest = 1, True, b""
    for piece in pieces:
        data = rest + piece
        end = _last_end(data)
        if end:
            yield _Block(number, data[:end], first, last=True)
            number += _count_ends(data[:end])
            first, rest = True, data[end:]
        elif len(data) > MAX_LINE_BYTES:
            yield _Block(number, data, first, last=False)
            first, rest = False, data[-OVERLAP_BYTES:]
        else:
            rest = data
    if rest:
        yield _Block(number, rest, first, last=True)


def _last_end(data: bytes) -> int:
    """Return where the last whole line ends; a final carriage return may be half of an end."""
    feed = data.rfind(b"\n") + 1
    return max(feed, data.rfind(b"\r", feed, len(data) - 1) + 1)


def _count_ends(data: bytes) -> int:
    ends = data.count(b"\n")
    return ends + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else ends


def _every_line(block: _Block) -> Iterator[Line]:
    parts = _feeds_only(block.data).decode("utf-8", "replace").removesuffix("\n").split("\n")
    final = len(parts) - 1
    for index, text in enumerate(parts):
        first, last = block.first or index > 0, block.last or index < final
        yield Line(block.number + index, text, first, last)


def _lines_with(block: _Block, gate: re.Pattern[bytes], but: Container[bytes]) -> Iterator[Line]:
    data = _feeds_only(block.data)
    lower = data.lower()
    # As many digits as before, so that fp8 stays another word than fp16.
    shapes = lower.translate(_DIGITS)
    number, counted, at = block.number, 0, 0
    while hit := gate.search(lower, at):
        start = max(at, lower.rfind(b"\n", at, hit.start()) + 1)
        end = lower.find(b"\n", hit.end())
        end, last = (len(data), block.last) if end < 0 else (end, True)
        if b"filter_fqns" in lower[start:end] and lower[start:end].rstrip().endswith(b"["):
            # A list that a configuration's dump spreads over lines is read as one line.
            end = max(end, data.find(b"]", end, end + _MAX_LIST) + 1)
        at = end + 1
        shape = shapes[start:end] if end - start < _MAX_SHAPE else b""
        if shape and shape in but:
            continue
        number += data.count(b"\n", counted, start)
        counted = start
        text = data[start:end].decode("utf-8", "replace")
        yield Line(number, text, block.first or start > 0, last, shape)


def _feeds_only(data: bytes) -> bytes:
    """Let every line end with a line feed."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def read_blocks(path: Path, notes: list[str]) -> Iterator[bytes]:
    """Yield a log, plain, gzip or zstd, as UTF-8 without NUL bytes.

    Args:
        path: a local or remote file, or a pipe.
        notes: gets a sentence where a part of the log could not be read.

    Raises:
        InputError: the file cannot be opened or read.
    """
    with open_binary(path) as file:
        if not cast("Any", file).peek(1):
            return
        stream, some = Source(file, path.name), False
        for block in _decoded(_bounded(_joined(stream), path, notes)):
            # Logs that were truncated while open have holes of NULs; text has none.
            some = some or bool(block)
            yield block.translate(None, b"\0") if b"\0" in block else block
        if stream.damage is not None and not some:
            raise unreadable(path, EOFError(stream.damage))
        if stream.damage is not None:
            notes.append(f"{path.name} was read up to where its packed data is cut or damaged")


def unreadable(path: Path, error: BaseException) -> InputError:
    """Return the error that names the log and what the system said."""
    return InputError(
        f"cannot read the log {path}: {getattr(error, 'strerror', None) or error}",
        "Pass the file that holds the training's output with --log.",
    )


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces: a few large blocks are searched faster than many small ones."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _bounded(blocks: Iterator[bytes], path: Path, notes: list[str]) -> Iterator[bytes]:
    left = MAX_LOG_BYTES
    for block in blocks:
        yield block[:left]
        if len(block) > left:
            notes.append(f"{path.name} was read up to {MAX_LOG_BYTES >> 30} GiB, the rest was not")
            return
        left -= len(block)


def _decoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    sample = b""
    for block in blocks:
        sample += block
        if len(sample) >= _SAMPLE_BYTES:
            break
    mark, encoding = _encoding(sample)
    if encoding == "utf-8":
        yield sample[mark:]
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(sample[mark:]).encode()
    for block in blocks:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _encoding(sample: bytes) -> tuple[int, str]:
    """Return the length of the byte order mark and the encoding, by zeros where there is none."""
    for mark, name in _MARKS:
        if sample.startswith(mark):
            return len(mark), name
    sample = sample[:_SAMPLE_BYTES]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) * 4 < len(sample) // 2 or min(even, odd) * 8 > max(even, odd):
        return 0, "utf-8"
    return (0, "utf-16-le" if odd > even else "utf-16-be") if even + odd else (0, "utf-8")

"""The bytes of a log as UTF-8: unpacked, decoded, a few megabytes at a time.

A log is untrusted and may be large, packed, in UTF-16 or not text at all.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from fp8verify.errors import InputError
from fp8verify.trace.places import open_binary
from fp8verify.trace.source import Source

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

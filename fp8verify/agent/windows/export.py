"""Write a trace compressed, without its plain text ever lying on the disk.

Kineto writes plain JSON to a path, several times the size of what is kept, and tells nobody when
the disk is full. The path is made to lead into memory, from where the text is compressed.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO

GZIP_LEVEL = 1  # level 9 is five times slower, for a file a fifth smaller
ENDING = 64
KINETOS_DRAFT = ".tmp"  # torch 2.13 writes there and renames it (output_json.cpp)


class ExportError(Exception):
    """The trace could not be written, for a reason that the report names."""


def export(write: Callable[[str], object], path: Path, drafts: Path) -> None:
    """Have `write` fill a file of JSON; `path` appears when it is whole, gzipped if it ends so.

    Drafts are in the folder `drafts`, of the same file system: a process that is killed leaves
    them there.

    Raises:
        ExportError: the disk is full or cannot be written to, or nothing was written.
    """
    plain, packed = drafts / f".{path.name}.plain", drafts / f".{path.name}.part"
    try:
        with _in_memory(plain) as text:
            write(str(plain))
            with text() as source, _open(packed, path) as target:
                _check_whole(source)
                shutil.copyfileobj(source, target, 1 << 20)
        packed.replace(path)
    except OSError as error:
        raise ExportError(f"the trace could not be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            packed.unlink(missing_ok=True)


def _open(draft: Path, path: Path) -> gzip.GzipFile | BufferedWriter:
    # What is judged and dropped at once is not worth packing.
    return gzip.open(draft, "wb", GZIP_LEVEL) if path.suffix == ".gz" else draft.open("wb")


def _check_whole(text: BinaryIO) -> None:
    """Go to the begin of a document that has an end: Kineto does not say if it could not write."""
    size = text.seek(0, os.SEEK_END)
    text.seek(max(0, size - ENDING))
    if not text.read().rstrip().endswith(b"}"):
        raise ExportError("the profiler could not write the whole trace")
    text.seek(0)


@contextmanager
def _in_memory(plain: Path) -> Iterator[Callable[[], BinaryIO]]:
    """Make what is written to `plain` go into memory; yield how to open it for reading."""
    drafts = (plain, plain.with_name(plain.name + KINETOS_DRAFT))
    memory = os.memfd_create("fp8verify-trace")
    try:
        for draft in drafts:
            draft.symlink_to(f"/proc/self/fd/{memory}")
        yield lambda: os.fdopen(os.dup(memory), "rb")
    finally:
        os.close(memory)
        for draft in drafts:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

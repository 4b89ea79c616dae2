"""Read the traces in a zip or tar file, where they are: nothing is unpacked onto the disk."""

from __future__ import annotations

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import UnsupportedOperation
from typing import IO, Final, cast

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.places import by_number, open_binary
from fp8verify.trace.readers import OURS, glance_source, read_source, suffixes
from fp8verify.trace.source import MAX_RATIO, RATIO_FREE, Glance, Part, Reading, Source
from fp8verify.trace.tables import Trace

_MOST_MEMBERS: Final = 4096
_ZIP: Final = b"PK\x03\x04"
_REFUSED = (
    *(zipfile.BadZipFile, tarfile.TarError, NotImplementedError, EOFError, UnsupportedOperation),
    *(zlib.error, struct.error, UnicodeDecodeError),
)
_Open = Callable[[], IO[bytes]]
_Members = dict[str, _Open]


def glance(source: Source) -> Glance:
    """List the traces in an archive.

    Raises:
        InputError: it cannot be read, or has none.
    """
    with _members(source) as members:
        parts = [Part(number, clean(name)) for number, name in enumerate(members)]
        opened = zip(parts, members.values(), strict=True)
        traces = [part for part, open_member in opened if _may_be_trace(part.label, open_member)]
    # What is wrong with all of them is told when they are read.
    return Glance(is_trace=True, parts=tuple(traces or parts))


def _may_be_trace(name: str, open_member: _Open) -> bool:
    """Whether a member is a trace, or damaged and called like a rank's."""
    with open_member() as file:
        try:
            seen = glance_source(Source(file, name))
        except InputError:
            seen = Glance(is_damaged=True)
    return seen.is_trace or (seen.is_damaged and "rank" in name)


def read(source: Source, how: Reading) -> Trace:
    """Read one of the traces in an archive.

    Raises:
        InputError: it cannot be read, or is not a trace.
    """
    with _members(source) as members, list(members.values())[how.part or 0]() as file:
        return read_source(Source(file, source.name), how._replace(part=None))


@contextmanager
def _members(source: Source) -> Iterator[_Members]:
    """Yield what opens the traces in an archive, by their names in order."""
    if source.path is None:
        raise InputError(f"{source.name} is an archive in a pipe.", "Write it into a file first.")
    opened = _zip if source.head.startswith(_ZIP) else _tar
    try:
        with open_binary(source.path) as file, opened(file) as members:
            named = (name for name in members if name.endswith(suffixes()))
            traces = [name for name in named if not OURS.search(name.rpartition("/")[2])]
            if not traces:
                raise InputError(
                    f"{source.name} is an archive without a trace in it.",
                    f"Traces end in {', '.join(suffixes())}; a checkpoint is an archive, too.",
                )
            yield {name: members[name] for name in sorted(traces, key=by_number)[:_MOST_MEMBERS]}
    except _REFUSED as error:
        raise InputError(
            f"{source.name} is an archive that cannot be read: {clean(str(error))[:120]}.",
            "Unpack it, and give the folder.",
        ) from None


@contextmanager
def _zip(file: IO[bytes]) -> Iterator[_Members]:
    with zipfile.ZipFile(file) as packed:
        members = [info for info in packed.infolist() if not info.is_dir()]
        size = file.seek(0, 2)
        # Members may share their bytes.
        if sum(info.file_size for info in members) > max(RATIO_FREE, MAX_RATIO * size):
            raise zipfile.BadZipFile("it expands as no trace does")

        def open_member(info: zipfile.ZipInfo) -> IO[bytes]:
            if info.flag_bits & 1:
                raise zipfile.BadZipFile("it is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile("its members are neither stored nor deflated")
            return packed.open(info)

        yield {info.filename: partial(open_member, info) for info in members}


@contextmanager
def _tar(file: IO[bytes]) -> Iterator[_Members]:
    limit = max(RATIO_FREE, MAX_RATIO * file.seek(0, 2))
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:*") as tape:

        def open_member(member: tarfile.TarInfo) -> IO[bytes]:
            return cast("IO[bytes]", tape.extractfile(member))

        members: _Members = {}
        for member in tape:
            if member.offset_data + member.size > limit or len(members) > _MOST_MEMBERS:
                raise tarfile.ReadError("it expands as no trace does, or has too many members")
            if member.isfile():
                members[member.name] = partial(open_member, member)
        yield members

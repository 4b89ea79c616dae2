"""Read the traces in a zip or tar file, where they are: nothing is unpacked onto the disk."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import UnsupportedOperation
from typing import IO, Final, cast

from fp8verify.errors import InputError
from fp8verify.text import clean
from fp8verify.trace.places import by_number, open_binary
from fp8verify.trace.readers import read_source, suffixes
from fp8verify.trace.source import MAX_RATIO, RATIO_FREE, Glance, Part, Reading, Source
from fp8verify.trace.tables import Trace

_MOST_MEMBERS: Final = 4096
_ZIP: Final = b"PK\x03\x04"


def glance(source: Source) -> Glance:
    """List the traces in an archive.

    Raises:
        InputError: it cannot be read, or has none.
    """
    with _opened(source) as (names, _):
        parts = tuple(Part(number, clean(name)) for number, name in enumerate(names))
    return Glance(is_trace=True, parts=parts)


def read(source: Source, how: Reading) -> Trace:
    """Read one of the traces in an archive.

    Raises:
        InputError: it cannot be read, or is not a trace.
    """
    with _opened(source) as (names, open_member):
        name = names[how.part or 0]
        with open_member(name) as file:
            return read_source(Source(file, source.name), how._replace(part=None))


@contextmanager
def _opened(source: Source) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    """Yield the names of the traces in an archive, and what opens one."""
    if source.path is None:
        raise InputError(f"{source.name} is an archive in a pipe.", "Write it into a file first.")
    try:
        with open_binary(source.path) as file:
            opened = _zip(file) if source.head.startswith(_ZIP) else _tar(file)
            with opened as (names, open_member):
                found = [name for name in names if name.endswith(suffixes())][:_MOST_MEMBERS]
                if not found:
                    raise InputError(
                        f"{source.name} is an archive without a trace in it.",
                        f"Traces end in {', '.join(suffixes())}; a checkpoint is an archive, too.",
                    )
                yield sorted(found, key=by_number), open_member
    except (
        *(
            zipfile.BadZipFile,
            tarfile.TarError,
            NotImplementedError,
            EOFError,
            UnsupportedOperation,
        ),
    ) as error:
        raise InputError(
            f"{source.name} is an archive that cannot be read: {clean(str(error))[:120]}.",
            "Unpack it, and give the folder.",
        ) from None


@contextmanager
def _zip(file: IO[bytes]) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    with zipfile.ZipFile(file) as packed:
        known = {info.filename: info for info in packed.infolist() if not info.is_dir()}

        def open_member(name: str) -> IO[bytes]:
            info = known[name]
            if info.file_size > max(RATIO_FREE, MAX_RATIO * info.compress_size):
                raise zipfile.BadZipFile("a member expands as no trace does")
            if info.flag_bits & 1:
                raise zipfile.BadZipFile("it is encrypted")
            return packed.open(info)

        yield list(known), open_member


@contextmanager
def _tar(file: IO[bytes]) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    limit = max(RATIO_FREE, MAX_RATIO * file.seek(0, 2))
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:*") as tape:
        known: dict[str, tarfile.TarInfo] = {}
        for member in tape:
            if member.offset_data + member.size > limit or len(known) > _MOST_MEMBERS:
                raise tarfile.ReadError("it expands as no trace does, or has too many members")
            known |= {member.name: member} if member.isfile() else {}
        yield list(known), lambda name: cast("IO[bytes]", tape.extractfile(known[name]))

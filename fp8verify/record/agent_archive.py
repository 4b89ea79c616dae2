"""The agent as one file: an archive from which the Python of a training imports it.

It is written while that Python starts, into room that was taken before: no run waits for the
seventy files of the agent, and yet a full disk refuses a run before it starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fp8verify.record.byte_code import byte_code

SOURCES = Path(__file__).parents[1] / "agent"
PACKAGE = "_fp8verify_agent"  # as `boot/_fp8verify_boot.py` imports it
COMPILED = ".compiled"  # what it adds to the name, and takes first
ROOM = 1 << 20  # more than sources and byte code need
PRIVATE = 0o600


def reserve(archive: str) -> None:
    """Take the room of an archive on the disk.

    Raises:
        OSError: there is not that much.
    """
    descriptor = os.open(draft_of(archive), os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        left = bytes(ROOM)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def write_agent(archive: str, *, compiles: bool = False) -> bool:
    """Write the agent where room may be reserved for it; return whether all of it is compiled.

    Args:
        archive: the name of the file, which has it once it is whole.
        compiles: whether to compile what Python keeps no byte code of.

    Raises:
        OSError: the capture cannot be written to.
    """
    from zipfile import ZipFile, ZipInfo  # not before the run: it takes longer than the writing

    complete = True
    draft = draft_of(archive)
    with os.fdopen(os.open(draft, os.O_RDWR | os.O_CREAT, PRIVATE), "r+b") as file:
        with ZipFile(file, "w") as members:
            for name, source in _sources():
                members.writestr(ZipInfo(name), source.read_bytes())
                code = byte_code(f"{source}", f"{archive}/{name}", compiles=compiles)
                complete = complete and code is not None
                if code is not None:
                    members.writestr(ZipInfo(f"{name}c"), code)
        file.truncate()
    os.replace(draft, archive)  # noqa: PTH105
    return complete


def write_compiled_agent(archive: str) -> None:
    """Write a compiled archive beside one that is not, as far as that can be."""
    compiled = archive + COMPILED
    try:
        write_agent(compiled, compiles=True)
    except OSError:  # the disk is full, or the run has moved or removed the capture
        with suppress(OSError):
            os.unlink(draft_of(compiled))  # noqa: PTH108


def draft_of(archive: str) -> str:
    """Return the name that an archive has in the making."""
    return f"{archive}.draft"


def archive_names(archive: str) -> tuple[str, ...]:
    """Return the names of an archive, of the compiled one beside it, and of both in the making."""
    both = (archive, archive + COMPILED)
    return (*both, *map(draft_of, both))


def _sources() -> Iterator[tuple[str, Path]]:
    boot = SOURCES / "boot"  # which start it, and lie beside the archive
    for source in sorted(set(SOURCES.rglob("*.py")) - set(boot.iterdir())):
        yield f"{PACKAGE}/{source.relative_to(SOURCES).as_posix()}", source

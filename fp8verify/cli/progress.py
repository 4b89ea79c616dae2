"""How far the traces have been read: a line on the terminal while that takes long.

The position of each open trace is what the kernel says of its file descriptor, in this process and
in those that it started, so that readers know nothing of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fp8verify.errors import InputError
from fp8verify.text import counted
from fp8verify.trace.archive_names import UNPACKED, is_archive

if TYPE_CHECKING:
    import threading

FIRST_S = 1.0  # what takes less shows nothing
EVERY_S = 0.2
WIDTH = 24  # of the bar, characters
ERASE = "\r\x1b[K"


@contextmanager
def shown_progress(paths: Sequence[str], *, quiet: bool = False) -> Iterator[None]:
    """Show on standard error how much of the traces has been read, if that is a terminal.

    Args:
        paths: what the user named.
        quiet: show nothing.
    """
    stream = sys.stderr
    if quiet or stream is None or not _is_capable(stream):
        yield
        return
    import threading

    ended = threading.Event()
    shower = threading.Thread(target=_show, args=(paths, stream, ended), daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


def _is_capable(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can erase a line."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty() and Path("/proc/self/fd").is_dir()


def _show(paths: Sequence[str], stream: TextIO, ended: threading.Event) -> None:
    """Draw the line anew until the traces have been read, then erase it."""
    start = time.monotonic()
    if ended.wait(FIRST_S):
        return
    progress = _Progress(paths)
    try:
        while not ended.wait(EVERY_S):
            progress.follow()
            line = line_of(
                progress.read,
                progress.sizes,
                time.monotonic() - start,
                unpacks=progress.unpacks,
            )
            stream.write(ERASE + line)
            stream.flush()
    except (OSError, ValueError):  # the terminal has gone
        return
    with suppress(OSError, ValueError):
        stream.write(ERASE)
        stream.flush()


class _Progress:
    """How far the traces have been read.

    Attributes:
        sizes: bytes of each trace, or of an archive until its traces are read.
        read: how many of them have been read.
        unpacks: whether it is an archive that is read.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        """Look up the sizes; of what has no place on this machine there are none."""
        self.sizes = _sizes(paths)
        self.read = dict.fromkeys(self.sizes, 0)
        self.unpacks = len(paths) == 1 and is_archive(Path(paths[0]))

    def follow(self) -> None:
        """Note how far each trace has been read; one that is not open any more, whole."""
        are_open = dict(_positions())
        if self.unpacks:
            self._look_for_unpacked(are_open)
        for place, size in self.sizes.items():
            if place in are_open:
                # One that is opened again, to be looked at once more, does not go back.
                position = max(self.read[place], are_open[place], 1)
                self.read[place] = min(size, position)
            elif self.read[place]:
                self.read[place] = size

    def _look_for_unpacked(self, are_open: Iterable[str]) -> None:
        """Follow the traces of an archive once one of them is read, and the archive is not."""
        if any(place in self.sizes for place in are_open):
            return
        from tempfile import gettempdir  # most traces are in no archive

        temporary = Path(gettempdir()).resolve()
        for place in map(Path, are_open):
            is_inside = temporary in place.parents
            top = place.relative_to(temporary).parts[0] if is_inside else ""
            if top.startswith(UNPACKED):
                below = _sizes([str(temporary / top)])
                self.sizes = below or _sizes([str(place.parent)])
                self.read = dict.fromkeys(self.sizes, 0)
                self.unpacks = False
                return


def _sizes(paths: Sequence[str]) -> dict[str, int]:
    from fp8verify.trace.folder import find_traces

    sizes: dict[str, int] = {}
    for path in paths:
        with suppress(InputError, OSError, ValueError):
            for file in find_traces(path):
                place = os.path.realpath(os.fspath(file.path))
                sizes[place] = Path(place).stat().st_size
    return sizes


def _positions() -> Iterator[tuple[str, int]]:
    """Yield the files that this process or one that it started has open, and the bytes read."""
    for process in _processes(os.getpid()):
        folder = Path(f"/proc/{process}")
        with suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with suppress(OSError, ValueError, IndexError):
                    place = str(descriptor.readlink())
                    said = (folder / "fdinfo" / descriptor.name).read_text("ascii")
                    yield place, int(said.split()[1])


def _processes(first: int) -> Iterator[int]:
    """Yield a process and all that it started."""
    yield first
    with suppress(OSError):
        for task in Path(f"/proc/{first}/task").iterdir():
            children = (task / "children").read_text("ascii")
            for child in children.split():
                yield from _processes(int(child))


def line_of(
    read: Mapping[str, int],
    sizes: Mapping[str, int],
    seconds: float,
    *,
    unpacks: bool = False,
) -> str:
    """Return the line that is shown.

    Args:
        read: bytes by trace.
        sizes: bytes of each trace; empty if they are not known.
        seconds: since the start.
        unpacks: whether they are those of an archive, whose traces are read later.
    """
    clock = f"{int(seconds) // 60}:{int(seconds) % 60:02}"
    whole = sum(sizes.values())
    if not whole:
        return f"reading {clock}"
    share = sum(read.values()) / whole
    filled = int(share * WIDTH)
    drawn = "█" * filled + "░" * (WIDTH - filled)
    if unpacks:
        return f"unpacking {drawn} {share:4.0%}  {clock}"
    done = sum(1 for place, size in sizes.items() if read[place] >= size)
    traces = f"{done} of {counted(len(sizes), 'trace')}"
    return f"reading {drawn} {share:4.0%}  {traces}  {clock}"

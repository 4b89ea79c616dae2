"""How far the traces have been read: a line on the terminal while that takes long.

The position of each open trace is what the kernel says of its file descriptor, in this process and
in those that it started, so that readers know nothing of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fp8verify.errors import InputError
from fp8verify.text import counted

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
    sizes = _sizes(paths)
    read = dict.fromkeys(sizes, 0)
    try:
        while not ended.wait(EVERY_S):
            _follow(read, sizes)
            stream.write(ERASE + line_of(read, sizes, time.monotonic() - start))
            stream.flush()
    except (OSError, ValueError):  # the terminal has gone
        return
    with suppress(OSError, ValueError):
        stream.write(ERASE)
        stream.flush()


def _sizes(paths: Sequence[str]) -> dict[str, int]:
    """Return the bytes of each trace; of what has no place on this machine, nothing."""
    from fp8verify.trace.folder import find_traces

    sizes: dict[str, int] = {}
    for path in paths:
        with suppress(InputError, OSError, ValueError):
            for file in find_traces(path):
                place = os.path.realpath(os.fspath(file.path))
                sizes[place] = Path(place).stat().st_size
    return sizes


def _follow(read: dict[str, int], sizes: Mapping[str, int]) -> None:
    """Note how far each trace has been read; one that was open and is not has been read whole."""
    are_open = dict(_positions(sizes))
    for place, size in sizes.items():
        if place in are_open:
            # One that is opened again, to be looked at once more, does not go back.
            read[place] = min(size, max(read[place], are_open[place], 1))
        elif read[place]:
            read[place] = size


def _positions(sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the traces that this process or one that it started has open, and the bytes read."""
    for process in _processes(os.getpid()):
        folder = Path(f"/proc/{process}")
        with suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with suppress(OSError, ValueError, IndexError):
                    place = str(descriptor.readlink())
                    if place in sizes:
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


def line_of(read: Mapping[str, int], sizes: Mapping[str, int], seconds: float) -> str:
    """Return the line that is shown.

    Args:
        read: bytes by trace.
        sizes: bytes of each trace; empty if they are not known.
        seconds: since the start.
    """
    clock = f"{int(seconds) // 60}:{int(seconds) % 60:02}"
    whole = sum(sizes.values())
    if not whole:
        return f"reading {clock}"
    share = sum(read.values()) / whole
    filled = int(share * WIDTH)
    drawn = "█" * filled + "░" * (WIDTH - filled)
    done = sum(1 for place, size in sizes.items() if read[place] >= size)
    traces = f"{done} of {counted(len(sizes), 'trace')}"
    return f"reading {drawn} {share:4.0%}  {traces}  {clock}"

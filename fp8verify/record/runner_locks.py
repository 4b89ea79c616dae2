"""Locks by which the runners of one job know of each other, and which of them ends last."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fp8verify.capture.names import CLAIM

PRESENT = ".present."  # and the node: one for each runner of the job that has not ended
LEFT = ".left."  # the same mark, once that runner has ended
ENDED = ".ended"


class RunnerLock:
    """That this runner takes part; `last` is whether the report is its to give, once it left."""

    def __init__(self) -> None:
        self.last = True


@contextmanager
def runner_lock(folder: Path, runners: int | None = None) -> Iterator[RunnerLock]:
    """Let the other runners of the job see that this one records; the last one to leave says so.

    A capture without a claim cannot be joined, so nothing is written into it.

    Args:
        folder: the capture.
        runners: how many the job has; None if that is not known.
    """
    lock = RunnerLock()
    if not (folder / CLAIM).exists():
        yield lock
        return
    import fcntl
    from tempfile import mkstemp

    descriptor, draft = mkstemp(prefix=".runner-", dir=folder)
    name = f"{node_name()}.{Path(draft).name.removeprefix('.runner-')}"
    mark = folder / f"{PRESENT}{name}"
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed only once it is locked: a mark without a lock is taken for a killed runner's.
        mark = Path(draft).rename(mark)
        yield lock
    finally:
        os.close(descriptor)
        lock.last = _leave(mark, folder / f"{LEFT}{name}", runners)


def _leave(mark: Path, left: Path, runners: int | None) -> bool:
    """Take our mark away; True if no runner is left to come, for one of them only."""
    folder = mark.parent
    try:
        mark.rename(left)
        gone = list(folder.glob(f"{LEFT}*"))
        if any(folder.glob(f"{PRESENT}*")) or len(gone) < (runners or 0):
            return False
        os.close(os.open(folder / ENDED, os.O_CREAT | os.O_EXCL, 0o600))
        for other in gone:
            other.unlink(missing_ok=True)
    except FileExistsError:
        return False
    except OSError:  # the run may have removed the capture
        return True
    return True


def has_ended(folder: Path) -> bool:
    """Whether the run that made the capture is over, or a runner of it was killed on this node."""
    here = folder.glob(f"{PRESENT}{node_name()}.*")
    return (folder / ENDED).exists() or any(map(_was_killed, here))


def _was_killed(mark: Path) -> bool:
    import fcntl

    try:
        with mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is locked by a living runner, or gone, or there are no locks
        return False
    return True


def node_name() -> str:
    """Return the first label of this machine's name, fit for a file name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename.split(".")[0])[:64] or "node"

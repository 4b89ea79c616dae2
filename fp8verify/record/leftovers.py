"""What killed runs have left in a capture: boot folders, and files that were not whole.

A runner removes its boot folder, and the keeper that of a runner that was killed. If both were
killed, or the machine went down, it stays until the next command that meets it. So does the temporary
folder of a doctor that was killed.

A runner and its keeper hold a lock on a mark in the boot folder, which has the node's name. Who can
lock the mark on that node knows that both are gone. The folder of `fp8verify env` has no mark, since
nobody knows who uses it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fp8verify.capture.names import BOOTS, RUNNER
from fp8verify.record.node import node_name

BOOT = re.compile(r"\.boot-[0-9a-f]{12}")
RANKS = "ranks"  # in a boot folder: one for each process that claimed its files
PROCESSES = Path("/proc")
MAX_ENVIRONMENT = 4 << 20


def hold(boot: str) -> int | None:
    """Hold a boot folder as long as the descriptor that is returned stays open.

    None if that cannot be: on a full disk, or on a file system without locks.
    """
    mark = os.path.join(boot, f"{RUNNER}{node_name()}")  # noqa: PTH118 - pathlib is slow
    with suppress(OSError):
        return _locked(mark)
    draft = os.path.join(boot, ".mark")  # noqa: PTH118
    with suppress(OSError):
        descriptor = _locked(draft, os.O_CREAT)
        # Renamed only once it is locked: a mark without a lock is a killed runner's.
        os.rename(draft, mark)  # noqa: PTH104
        return descriptor
    return None


def _locked(path: str, how: int = 0) -> int:
    """Open a file and lock it for sharing.

    Raises:
        OSError: one of both cannot be.
    """
    import fcntl  # not everywhere

    descriptor = os.open(path, os.O_RDWR | how, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_leftovers(capture: Path) -> list[str]:
    """Remove what killed runs of this user have left in a capture, and return the boot folders.

    Links are not followed. What cannot be removed stays.
    """
    if not hasattr(os, "getuid"):
        return []  # no run was ever on such a machine
    dead = [boot for boot in sorted(capture.glob(BOOTS)) if _is_dead(boot)]
    if not dead:
        return []
    import shutil  # seldom needed

    ranks: set[int] = set()
    for boot in dead:
        ranks.update(ranks_of(boot))
        shutil.rmtree(boot, ignore_errors=True)
    removed = [boot.name for boot in dead if not boot.exists()]
    if not any(capture.glob(BOOTS)):  # else a run may be writing
        remove_drafts(capture, ranks)
    return removed


def remove_abandoned(prefix: str) -> None:
    """Remove temporary folders of this user whose name begins so, and whose runs were killed.

    One without a boot folder stays: a command may just have made it.
    """
    if not hasattr(os, "getuid"):
        return
    import shutil
    import tempfile

    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            is_ours = _is_folder_of_ours(folder)
            if is_ours and remove_leftovers(folder) and not any(folder.glob(BOOTS)):
                shutil.rmtree(folder, ignore_errors=True)


def ranks_of(boot: Path) -> list[int]:
    """Return the ranks that claimed files, one for each process that did."""
    from fp8verify.capture.files import boot_lines  # not before a run

    return [int(line) for line in boot_lines(boot / RANKS) if line.isdecimal()]


def remove_drafts(capture: Path, ranks: Iterable[int]) -> None:
    """Remove what processes of these ranks were writing when they were killed."""
    for rank in sorted(set(ranks)):
        name = f".rank{rank}[.-]*"
        for draft in (*capture.glob(name), *capture.glob(f"live/*/{name}")):
            with suppress(OSError):
                draft.unlink()


def _is_dead(boot: Path) -> bool:
    """Whether a folder was a run's of this user on this node, all of whose processes are gone."""
    with suppress(OSError):
        if not _is_folder_of_ours(boot) or not BOOT.fullmatch(boot.name):
            return False
        marks = [mark.name for mark in boot.glob(f"{RUNNER}*")]
        if marks != [f"{RUNNER}{node_name()}"]:
            return False
        return _is_free(boot / marks[0]) and not _is_used(boot)
    return False


def _is_folder_of_ours(path: Path) -> bool:
    """Whether a path is a folder of this user, and no link to one.

    Raises:
        OSError: nothing is there.
    """
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _is_free(mark: Path) -> bool:
    """Whether nobody holds a mark."""
    import fcntl

    descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is locked, or there are no locks
        return False
    finally:
        os.close(descriptor)
    return True


def _is_used(boot: Path) -> bool:
    """Whether a process was started with a boot folder on its path, and still runs."""
    name = os.fsencode(boot.name)
    for process in PROCESSES.iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError), (process / "environ").open("rb") as environment:
            if name in environment.read(MAX_ENVIRONMENT):
                return True
    return False

"""Make the capture folder, or join the one of the same job, without touching what is there."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.names import AGENT, CLAIM, LOG
from fp8verify.errors import Fp8VerifyError, InputError, UsageError
from fp8verify.record.agent_archive import archive_names

PRIVATE = 0o700
MAX_CLAIM = 64 << 10
PRESENT = ".present."  # and the node: one for each runner of the job that has not ended
LEFT = ".left."  # the same mark, once that runner has ended
ENDED = ".ended"
# In the name of a folder. Kineto writes it into JSON as it stands; the last are no UTF-8.
UNUSABLE = rf'[{os.pathsep}"\\\x00-\x1f\x7f\ud800-\udfff]'


class CaptureFolder(NamedTuple):
    """Where a run puts what it records.

    `guest` is this node's name if another runner of the job made the folder; files of guests carry
    it, so that no two nodes mean the same file. `started` is when the folder was made, for all
    nodes alike, in seconds since the epoch. `existed` is whether there was such a folder before.
    """

    path: Path
    guest: str | None = None
    started: float | None = None
    existed: bool = True

    @property
    def log(self) -> Path:
        """Where this runner's log belongs; Slurm may start several runners on a node."""
        name = LOG if self.guest is None else f"log.{self.guest}-{os.getpid()}.txt"
        return self.path / name


def make_capture_folder(
    wanted: Path | None, job: str | None = None, *, once: bool = False
) -> CaptureFolder:
    """Return a folder for a new capture, or the one that another runner of this job has made.

    Args:
        wanted: where; None makes `fp8verify-capture-<UTC time>-<pid>` in the current directory, or
            `fp8verify-capture-<job>` if that names one job only.
        job: what the launcher calls the job; None never joins.
        once: whether no later job will have that name.

    Raises:
        InputError: if it cannot be made, holds other files, or is the capture of another job, or
            of an earlier run of this one.
    """
    shared = job is not None and (once or wanted is not None)
    folder = (wanted or Path(_default_name(job if once else None))).absolute()
    existed = folder.exists()
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if (folder / CLAIM).exists() or not _is_empty(folder):
            return _join(folder, job, once=once)
        started = time.time()
        if not shared or job is None or _claim(folder, job, started):
            return CaptureFolder(folder, started=started, existed=existed)
        return _join(folder, job, once=once)
    except OSError as error:
        raise InputError(
            f"Cannot make the capture folder {folder}: {error.strerror}.",
            "Name a folder that can be written with --trace-dir.",
        ) from None


def check_name(folder: Path) -> None:
    """Refuse a folder that cannot stand in PYTHONPATH, or whose name Kineto cannot write.

    Raises:
        UsageError: it is one.
    """
    name = str(folder.absolute())
    found = re.search(UNUSABLE, name)
    if found is None:
        return
    wrong = found[0]
    why = "cannot stand in PYTHONPATH" if wrong == os.pathsep else "cannot hold a trace"
    shown = name if wrong.isprintable() else ascii(name)
    raise UsageError(
        f"{shown} {why}: there is a {wrong!a} in it.", "Name another folder with --trace-dir."
    )


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Say what to do if the capture folder cannot be written to.

    Raises:
        InputError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Cannot write to the capture folder {folder}: {error.strerror}.",
            "Make room there, or name another folder with --trace-dir.",
        ) from None


@contextmanager
def undone_unless_started(capture: CaptureFolder) -> Iterator[None]:
    """Take back what was made of a capture whose run could not start, so that a retry finds room.

    Whatever came from another runner of the job stays.
    """
    try:
        yield
    except Fp8VerifyError:
        with suppress(OSError):
            capture.log.unlink(missing_ok=True)
            if capture.guest is None and not any(capture.path.glob(f"{PRESENT}*")):
                for name in (CLAIM, ENDED):
                    (capture.path / name).unlink(missing_ok=True)
                remove_shared_agent(capture.path)
                if not capture.existed:
                    capture.path.rmdir()
        raise


def remove_shared_agent(folder: Path) -> None:
    """Remove the agent that the runners of the job shared, if there is one."""
    for name in archive_names(AGENT):
        with suppress(OSError):  # the run may have removed the capture
            (folder / name).unlink()


def _default_name(job: str | None) -> str:
    if job is not None:
        return f"fp8verify-capture-{re.sub(r'[^A-Za-z0-9._-]', '-', job)[:128]}"
    return f"fp8verify-capture-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"


def _is_empty(folder: Path) -> bool:
    # A claim in the making is hidden.
    return all(entry.name.startswith(".claim-") for entry in folder.iterdir())


class Attendance:
    """That this runner takes part; `last` is whether the report is its to give, once it left."""

    def __init__(self) -> None:
        self.last = True


@contextmanager
def attendance(capture: CaptureFolder, runners: int | None = None) -> Iterator[Attendance]:
    """Let the other runners of the job see that this one records; the last one to leave says so.

    A capture without a claim cannot be joined, so nothing is written into it.

    Args:
        capture: the folder.
        runners: how many the job has; None if that is not known.
    """
    attending = Attendance()
    if not (capture.path / CLAIM).exists():
        yield attending
        return
    import fcntl
    from tempfile import mkstemp

    descriptor, draft = mkstemp(prefix=".runner-", dir=capture.path)
    name = f"{node_name()}.{Path(draft).name.removeprefix('.runner-')}"
    mark = capture.path / f"{PRESENT}{name}"
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed only once it is locked: a mark without a lock is taken for a killed runner's.
        mark = Path(draft).rename(mark)
        yield attending
    finally:
        os.close(descriptor)
        attending.last = _leave(mark, capture.path / f"{LEFT}{name}", runners)


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


def _has_ended(folder: Path) -> bool:
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


def _claim(folder: Path, job: str, started: float) -> bool:
    """Write down whose folder this is; False if another node was faster."""
    import json  # not for a run alone

    host = node_name()
    claim = json.dumps({"schema": 1, "job": job, "node": host, "started": started})
    draft = folder / f".claim-{host}-{os.getpid()}"
    draft.write_text(claim, encoding="utf-8")
    try:
        try:
            os.link(draft, folder / CLAIM)  # whole at once, and exclusive on NFS as well
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            with (folder / CLAIM).open("x", encoding="utf-8") as file:
                file.write(claim)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _join(folder: Path, job: str | None, *, once: bool) -> CaptureFolder:
    owner, started = _owner(folder)
    if job is not None and owner == job:
        if once or not _has_ended(folder):
            return CaptureFolder(folder, node_name(), started)
        raise InputError(
            f"The folder {folder} is the capture of an earlier run of the job {owner}.",
            "Name a new one with --trace-dir: the runs would be judged as one.",
        )
    if owner is None:
        raise InputError(
            f"The folder {folder} is not empty.",
            "Name a new one with --trace-dir: a capture is never overwritten. Nodes of one job "
            "share one if each says --job NAME.",
        )
    raise InputError(
        f"The folder {folder} is the capture of the job {owner}.",
        "Name a new one with --trace-dir, or join it from the same job: --job NAME on every node.",
    )


def _owner(folder: Path) -> tuple[str | None, float | None]:
    """Return the job whose capture it is and when it began, as far as known."""
    import json

    try:
        with (folder / CLAIM).open("rb") as file:
            claim = json.loads(file.read(MAX_CLAIM))
            owner, started = claim["job"], claim.get("started")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, None
    known = isinstance(started, float) and 0 < started < float("inf")
    return owner[:200] if isinstance(owner, str) else None, started if known else None


def node_name() -> str:
    """Return the first label of this machine's name, fit for a file name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename.split(".")[0])[:64] or "node"

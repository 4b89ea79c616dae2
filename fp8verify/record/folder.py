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
from fp8verify.record.job import ENDED, PRESENT, has_ended, node_name
from fp8verify.record.trust import check_capture

PRIVATE = 0o700
MAX_CLAIM = 64 << 10
# In the name of a folder. Kineto writes it into JSON unescaped; the last are not UTF-8.
UNUSABLE = rf'[{os.pathsep}"\\\x00-\x1f\x7f\ud800-\udfff]'
CAPTURE = "fp8verify-capture-"  # what names of folders begin with that nobody chose


class CaptureFolder(NamedTuple):
    """Where a run puts what it records.

    `secondary_node` is this node's name if another runner of the job made the folder; its files
    carry it, so no two nodes mean the same file. `started` is when the folder was made, for
    all nodes alike, in seconds since the epoch. `existed` is whether there was such a folder
    before. `notes` say who else may write there.
    """

    path: Path
    secondary_node: str | None = None
    started: float | None = None
    existed: bool = True
    notes: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """Where this runner's log belongs; Slurm may start several runners on a node."""
        name = (
            LOG if self.secondary_node is None else f"log.{self.secondary_node}-{os.getpid()}.txt"
        )
        return self.path / name


def make_capture_folder(
    wanted: Path | None, job: str | None = None, *, once: bool = False, script: str = ""
) -> CaptureFolder:
    """Return a folder for a new capture, or the one that another runner of this job has made.

    Args:
        wanted: where; None makes `fp8verify-capture-<script>-<UTC time>-<pid>` in the current
            directory, or `fp8verify-capture-<job>` if that names one job only.
        job: what the launcher calls the job; None never joins.
        once: whether no later job will have that name.
        script: what to call it by.

    Raises:
        InputError: if it cannot be made, holds other files, is the capture of another job or of an
            earlier run of this one, or other users may write it.
    """
    shared = job is not None and (once or wanted is not None)
    if wanted is None:
        time_and_process = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
        own = f"{script}-{time_and_process}" if script else time_and_process
        label = re.sub(r"[^A-Za-z0-9._-]", "-", job)[:128] if job and once else own
        wanted = Path(f"{CAPTURE}{label}")
    folder = wanted.absolute()
    existed = folder.exists()
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        notes = check_capture(folder)
        # A claim in the making is hidden.
        if not all(entry.name.startswith(".claim-") for entry in folder.iterdir()):
            return _join(folder, job, once=once)._replace(notes=notes)
        started = time.time()
        if not shared or job is None or _claim(folder, job, started):
            return CaptureFolder(folder, started=started, existed=existed, notes=notes)
        return _join(folder, job, once=once)._replace(notes=notes)
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
    why = "cannot be in PYTHONPATH" if wrong == os.pathsep else "cannot hold a trace"
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
    """Take back what was made of a capture whose run could not start, so a retry finds room.

    Whatever came from another runner of the job stays.
    """
    try:
        yield
    except Fp8VerifyError:
        with suppress(OSError):
            capture.log.unlink(missing_ok=True)
            if capture.secondary_node is None and not any(capture.path.glob(f"{PRESENT}*")):
                for name in (CLAIM, ENDED):
                    (capture.path / name).unlink(missing_ok=True)
                remove_shared_agent(capture.path)
                if not capture.existed:
                    capture.path.rmdir()
        raise


def remove_shared_agent(folder: Path) -> None:
    """Remove the agent that the runners of the job shared, if there is one."""
    with suppress(OSError):  # the run may have removed the capture
        (folder / AGENT).unlink()


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
    if job is not None and owner == job and (once or not has_ended(folder)):
        return CaptureFolder(folder, node_name(), started)
    run = "an earlier run of the job" if owner == job else "the job"
    holds = "not empty" if owner is None else f"the capture of {run} {owner}"
    raise InputError(
        f"The folder {folder} is {holds}.",
        "Name a new one with --trace-dir: a capture is never overwritten. Nodes of one job share "
        "one if each says --job NAME.",
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

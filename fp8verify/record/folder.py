"""Make the capture folder, or join the one of the same job, without touching what is there.

A job is what several runners share: they write into one folder, and the last to end reports.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.names import CLAIM, LOG, REPORT
from fp8verify.errors import Fp8VerifyError, InputError, UsageError
from fp8verify.files import open_private, open_regular, replacing
from fp8verify.record.node import node_name
from fp8verify.record.trust import check_capture

MAX_CLAIM = 1 << 16

PRIVATE = 0o700
# In the name of a folder. Kineto writes it into JSON unescaped; the last are not UTF-8.
UNUSABLE = rf'[{os.pathsep}"\\\x00-\x1f\x7f\ud800-\udfff]'
CAPTURE = "fp8verify-capture-"  # what names of folders begin with that nobody chose
RDZV_ID = ("--rdzv-id", "--rdzv_id")
# Where the processes of several nodes meet, in the options of torchrun, deepspeed and accelerate.
# torchrun also reads PET_<OPTION> (torch/distributed/argparse_util.py); Kubeflow's Trainer sets it.
ADDRESSES = ("--master-addr", "--master_addr", "--main_process_ip")
PORTS = ("--master-port", "--master_port", "--main_process_port")
ENDPOINTS = ("--rdzv-endpoint", "--rdzv_endpoint")
DEFAULT_PORT = "29500"  # of all three
NO_ID = "none"  # torchrun's default
THIS_MACHINE = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - compared, not bound to
PRESENT = ".present."  # and the node: one for each runner of the job that has not ended
LEFT = ".left."  # the same mark, once that runner has ended
ENDED = ".ended"


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
        node = self.secondary_node
        return self.path / (LOG if node is None else f"log.{node}-{os.getpid()}.txt")


class Job(NamedTuple):
    """The job that a runner belongs to.

    Attributes:
        name: what its runners have in common; None if nothing is known.
        runners: how many there are, where the launcher says so.
        once: whether no later job will have that name.
    """

    name: str | None = None
    runners: int | None = None
    once: bool = False


NO_JOB = Job()


def make_capture_folder(
    wanted: Path | None, job: Job = NO_JOB, *, script: str = ""
) -> CaptureFolder:
    """Return a folder for a new capture, or the one that another runner of this job has made.

    Args:
        wanted: where; None makes `fp8verify-capture-<script>-<UTC time>-<pid>` in the current
            directory, or `fp8verify-capture-<job>` if that names one job of several runners only.
        job: whose capture it is; one without a name never joins.
        script: what to call it by.

    Raises:
        InputError: if it cannot be made, holds other files, is the capture of another job or of an
            earlier run of this one, or other users may write it.
    """
    name = job.name
    once = job.once and job.runners != 1
    shared = name is not None and (once or wanted is not None)
    if wanted is None:
        unique = (
            f"{script}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
        )
        of_job = ""
        if name and once:
            of_job = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:128]
        wanted = Path(f"{CAPTURE}{of_job or unique.lstrip('-')}")
    folder = wanted.absolute()
    existed = folder.exists()
    with writing_to(folder):
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        notes = check_capture(folder)
        if existed:
            from fp8verify.record.leftovers import remove_leftovers

            remove_leftovers(folder)
        started = time.time()
        # A claim in the making is hidden.
        is_new = all(entry.name.startswith(".claim-") for entry in folder.iterdir())
        if is_new and (name is None or not shared or _claim(folder, name, started)):
            return CaptureFolder(folder, started=started, existed=existed, notes=notes)
        return _join(folder, name, once=once)._replace(notes=notes)


def check_name(folder: Path) -> None:
    """Refuse a folder that cannot stand in PYTHONPATH, or whose name Kineto cannot write.

    Raises:
        UsageError: it is one.
    """
    name = str(folder.absolute())
    match = re.search(UNUSABLE, name)
    if match is not None:
        if match[0] == os.pathsep:
            why = "cannot be in PYTHONPATH"
        else:
            why = "cannot hold a trace"
        raise UsageError(
            f"{name} {why}: there is a {match[0]!a} in it.",
            "Name another folder with --trace-dir.",
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


def keep_report(folder: Path, text: str) -> None:
    """Write `report.json` into a capture, whole at once.

    Raises:
        OSError: it cannot be written.
    """
    with (
        replacing(folder / REPORT, f".{REPORT}.{os.getpid()}") as draft,
        open_private(draft) as file,
    ):
        file.write(text.encode())


def holds_nothing(capture: CaptureFolder, *, was_named: bool) -> bool:
    """Whether a run has made a folder for itself, and left no more there than what it printed.

    Args:
        capture: the folder of a run that has ended.
        was_named: whether the user named it: then what was printed is kept too.
    """
    if capture.existed or capture.secondary_node is not None:
        return False
    if [entry.name for entry in capture.path.iterdir()] not in ([], [LOG]):
        return False
    return not (was_named and capture.log.exists() and capture.log.stat().st_size)


def remove_empty(capture: Path) -> None:
    """Remove the folder of a run that recorded nothing, and what it printed."""
    with suppress(OSError):  # something was put there
        (capture / LOG).unlink(missing_ok=True)
        capture.rmdir()


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
            if capture.secondary_node is None and not any(
                capture.path.glob(f"{PRESENT}*")
            ):
                for name in (CLAIM, ENDED):
                    (capture.path / name).unlink(missing_ok=True)
                if not capture.existed:
                    capture.path.rmdir()
        raise


def _claim(folder: Path, job: str, started: float) -> bool:
    """Write down whose folder this is; False if another node was faster."""
    import json  # not for a run alone

    host = node_name()
    claim = json.dumps({"schema": 1, "job": job, "node": host, "started": started})
    draft = folder / f".claim-{host}-{os.getpid()}"
    with open_private(draft) as file:
        file.write(claim.encode())
    try:
        try:
            # Whole at once, and exclusive on NFS as well.
            os.link(draft, folder / CLAIM)
        except OSError:  # it is there, or this is a file system without hard links
            with open_private(folder / CLAIM, new=True) as file:
                file.write(claim.encode())
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _join(folder: Path, job: str | None, *, once: bool) -> CaptureFolder:
    owner, started = _owner(folder)
    if job is not None and owner == job and (once or not has_ended(folder)):
        return CaptureFolder(folder, node_name(), started)
    run = "the job"
    if owner == job:
        run = "an earlier run of the job"
    if owner is None:
        holds = "not empty"
    else:
        holds = f"the capture of {run} {owner}"
    raise InputError(
        f"The folder {folder} is {holds}.",
        "Name a new one with --trace-dir: a capture is never overwritten. Nodes of one job share "
        "one if each says --job NAME.",
    )


def _owner(folder: Path) -> tuple[str | None, float | None]:
    """Return the job whose capture it is and when it began, as far as known."""
    import json

    try:
        with open_regular(folder / CLAIM) as file:
            claim = json.loads(file.read(MAX_CLAIM))
        return str(claim["job"]), float(claim["started"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, None


# --- the job ---


def job_of(command: Sequence[str], environment: Mapping[str, str]) -> Job:
    """Return the job: torchrun's rendezvous, the launcher's step, or the address to meet at.

    Slurm's job alone is not enough: a batch script may train twice in one job.
    """
    rendezvous = _option(command, RDZV_ID) or environment.get("PET_RDZV_ID")
    if rendezvous is not None and rendezvous != NO_ID:
        return Job(f"rdzv-{rendezvous}")
    space = environment.get("PMIX_NAMESPACE")
    size = environment.get("OMPI_COMM_WORLD_SIZE", "")
    if space and size.isdecimal():
        mpi = Job(f"mpi-{space}", int(size), once=True)
    else:
        mpi = None
    return _slurm(environment) or mpi or Job(_meeting_place(command, environment))


def _slurm(environment: Mapping[str, str]) -> Job | None:
    job = environment.get("SLURM_JOB_ID")
    step = environment.get("SLURM_STEP_ID")
    if not job or not step:
        return None
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    name = f"slurm-{job}.{step}" + (f"-{restarts}" if restarts != "0" else "")
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get(
        "SLURM_NTASKS", ""
    )
    return Job(name, int(tasks) if tasks.isdecimal() else None, once=True)


def _meeting_place(
    command: Sequence[str], environment: Mapping[str, str]
) -> str | None:
    endpoint = _option(command, ENDPOINTS) or environment.get("PET_RDZV_ENDPOINT")
    address, port = (
        _option(command, names)
        or environment.get(f"PET_{name}")
        or environment.get(name)
        for names, name in ((ADDRESSES, "MASTER_ADDR"), (PORTS, "MASTER_PORT"))
    )
    if not endpoint and address:
        endpoint = f"{address}:{port or DEFAULT_PORT}"
    if not endpoint or endpoint.lstrip("[").startswith(THIS_MACHINE):
        return None
    return f"at-{endpoint}"


def _option(command: Sequence[str], names: Sequence[str]) -> str | None:
    for word, following in zip(command, [*command[1:], ""], strict=False):
        name, _, value = word.partition("=")
        if name in names and (value or following):
            return value or following
    return None


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
        with open_regular(mark) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is locked by a living runner, or gone, or there are no locks
        return False
    return True

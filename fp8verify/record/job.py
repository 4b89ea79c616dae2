"""The job of a runner: the name that its runners share, and which of them is the last to end."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fp8verify.capture.names import CLAIM

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


def job_of(command: Sequence[str], environment: Mapping[str, str]) -> Job:
    """Return the job: torchrun's rendezvous, the launcher's step, or the address to meet at.

    Slurm's job alone is not enough: a batch script may train twice in one job.
    """
    rendezvous = _option(command, RDZV_ID) or environment.get("PET_RDZV_ID")
    if rendezvous is not None and rendezvous != NO_ID:
        return Job(f"rdzv-{rendezvous}")
    space, size = environment.get("PMIX_NAMESPACE"), environment.get("OMPI_COMM_WORLD_SIZE", "")
    mpi = Job(f"mpi-{space}", int(size), once=True) if space and size.isdecimal() else None
    return _slurm(environment) or mpi or Job(_meeting_place(command, environment))


def _slurm(environment: Mapping[str, str]) -> Job | None:
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    if not job or not step:
        return None
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    name = f"slurm-{job}.{step}" + (f"-{restarts}" if restarts != "0" else "")
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "")
    return Job(name, int(tasks) if tasks.isdecimal() else None, once=True)


def _meeting_place(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    endpoint = _option(command, ENDPOINTS) or environment.get("PET_RDZV_ENDPOINT")
    address = _option(command, ADDRESSES) or _first(environment, "PET_MASTER_ADDR", "MASTER_ADDR")
    port = _option(command, PORTS) or _first(environment, "PET_MASTER_PORT", "MASTER_PORT")
    if not endpoint and address:
        endpoint = f"{address}:{port or DEFAULT_PORT}"
    if not endpoint or endpoint.lstrip("[").startswith(THIS_MACHINE):
        return None
    return f"at-{endpoint}"


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


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
        with mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is locked by a living runner, or gone, or there are no locks
        return False
    return True


def node_name() -> str:
    """Return the first label of this machine's name, fit for a file name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename.split(".")[0])[:64] or "node"

"""Find the name by which the runners of one job know that they belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

RDZV_ID = ("--rdzv-id", "--rdzv_id")
# Where the processes of several nodes meet, in the options of torchrun, deepspeed and accelerate.
# torchrun also reads PET_<OPTION> (torch/distributed/argparse_util.py); Kubeflow's Trainer sets it.
ADDRESSES = ("--master-addr", "--master_addr", "--main_process_ip")
PORTS = ("--master-port", "--master_port", "--main_process_port")
ENDPOINTS = ("--rdzv-endpoint", "--rdzv_endpoint")
DEFAULT_PORT = "29500"  # of all three
NO_ID = "none"  # torchrun's default
THIS_MACHINE = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - compared, not bound to


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
    return _slurm(environment) or _mpi(environment) or Job(_meeting_place(command, environment))


def _slurm(environment: Mapping[str, str]) -> Job | None:
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    if not job or not step:
        return None
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    name = f"slurm-{job}.{step}" + (f"-{restarts}" if restarts != "0" else "")
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "")
    return Job(name, int(tasks) if tasks.isdecimal() else None, once=True)


def _mpi(environment: Mapping[str, str]) -> Job | None:
    space, size = environment.get("PMIX_NAMESPACE"), environment.get("OMPI_COMM_WORLD_SIZE", "")
    if not space or not size.isdecimal():
        return None
    return Job(f"mpi-{space}", int(size), once=True)


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

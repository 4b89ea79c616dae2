"""Which process of the run this is, and what software and hardware it runs on."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
LIBRARIES = (
    "torchao",
    "transformer_engine",
    "accelerate",
    "transformers",
    "lightning",
    "deepspeed",
)


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the world's size.

    An initialised process group knows best: a script that spawns its own ranks inherits one and
    the same SLURM_PROCID in all of them.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _number_from(RANK_VARIABLES, 0), _number_from(WORLD_SIZE_VARIABLES, 1)


def _number_from(variables: tuple[str, ...], default: int) -> int:
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return default


def is_selected(rank: int, ranks: dict[str, Any]) -> bool:
    """Return whether the configuration's `ranks` entry wants this rank profiled."""
    every = ranks.get("every")
    return rank in ranks.get("only", ()) or bool(every and rank % every == 0)


def environment() -> dict[str, str | None]:
    """Return versions of the libraries in use and the GPU's name and compute capability.

    A library that the process has not imported is left out.
    """
    found: dict[str, str | None] = {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }
    for library in LIBRARIES:
        version = getattr(sys.modules.get(library), "__version__", None)
        if version is not None:
            found[library] = str(version)
    if torch.cuda.is_initialized():
        major, minor = torch.cuda.get_device_capability()
        found["gpu"] = torch.cuda.get_device_name()
        found["compute_capability"] = f"{major}.{minor}"
    return found

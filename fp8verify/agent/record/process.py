"""Which process of the run this is: its rank, GPU and versions, and whether it asks for FP8."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..observe import invisible

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
LOCAL_SIZE_VARIABLES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
ALL_OF = 8


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
    """Return whether the configuration's `ranks` entry wants this rank profiled.

    With `auto` all of up to eight ranks are, and of more the first one of each node.
    """
    if ranks.get("auto"):
        per_node = max(1, _number_from(LOCAL_SIZE_VARIABLES, ALL_OF))
        return rank_and_world_size()[1] <= ALL_OF or rank % per_node == 0
    every = ranks.get("every")
    return rank in ranks.get("only", ()) or bool(every and rank % every == 0)


def gpu() -> dict[str, str]:
    """Return the name and compute capability of the GPU, if this process uses one."""
    if not torch.cuda.is_initialized():
        return {}
    major, minor = torch.cuda.get_device_capability()
    return {"gpu": torch.cuda.get_device_name(), "compute_capability": f"{major}.{minor}"}


# Import name, which is also the name of the distribution but for "-" and "_".
LIBRARIES = (
    "torchao",
    "transformer_engine",
    "triton",
    "transformers",
    "accelerate",
    "lightning",
    "deepspeed",
)


@cache
def versions() -> dict[str, str]:
    """Return versions by name; a library that is not installed is left out, none is imported."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    for library in LIBRARIES:
        known = _imported(library) or _installed(library)
        if known is not None:
            found[library] = known
    return found


def _imported(library: str) -> str | None:
    known = getattr(sys.modules.get(library), "__version__", None)
    return known if isinstance(known, str) else None


def _installed(library: str) -> str | None:
    try:
        return version(library)
    except (PackageNotFoundError, OSError, ValueError):
        return None


CONVERSIONS = "torchao.float8.float8_linear_utils"
WATCHED = frozenset({"torchao.float8.convert_to_float8_training"})


class ApiCalls:
    """The watched APIs that this process has called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def listen(self) -> None:
        """Watch until the first call of one."""
        original = torch._C._log_api_usage_once

        def log_api_usage_once(name: str) -> None:
            if not torch.compiler.is_compiling() and name in WATCHED:
                self.names.append(name)
                torch._C._log_api_usage_once = original
            original(name)

        # A compiled step builds modules, which call this, when its first backward pass is compiled.
        invisible(log_api_usage_once)
        torch._C._log_api_usage_once = log_api_usage_once


calls = ApiCalls()

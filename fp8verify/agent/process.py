"""Which process of the run this is, its libraries and objects, and whether it asks for FP8."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from itertools import compress
from typing import Any

import torch

from .config import Ranks
from .guard import quietly
from .observe import invisible

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
LOCAL_SIZE_VARIABLES = (
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
ALL_OF = 8


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the world's size.

    An initialized process group knows best: a script that spawns its own ranks inherits one and
    the same SLURM_PROCID in all of them.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _number_from(RANK_VARIABLES, 0), _number_from(WORLD_SIZE_VARIABLES, 1)


def _number_from(variables: tuple[str, ...], default: int) -> int:
    values = (os.environ.get(variable, "") for variable in variables)
    return next((int(value) for value in values if value.isdecimal()), default)


def is_selected(rank: int, ranks: Ranks) -> bool:
    """Return whether the configuration's `ranks` entry wants this rank profiled.

    With `auto` all of up to eight ranks are, and of more the first one of each node.
    """
    if ranks["auto"]:
        per_node = max(1, _number_from(LOCAL_SIZE_VARIABLES, ALL_OF))
        return rank_and_world_size()[1] <= ALL_OF or rank % per_node == 0
    every = ranks["every"]
    return rank in ranks["only"] or bool(every and rank % every == 0)


def on_autograd_thread() -> bool:
    """Whether this thread runs a backward pass."""
    return int(torch._C._current_graph_task_id()) != -1


@cache
def c_library(name: str | None) -> ctypes.CDLL:
    """Return a loaded library, for good: to drop one would leave cyclic garbage.

    None is for what the process itself has, the C library among it.

    Raises:
        OSError: it cannot be loaded.
    """
    return ctypes.CDLL(name)


def captures_graph() -> bool:
    """Whether a CUDA graph is being captured, which must not contain fp8verify's kernels."""
    return bool(
        torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    )


def gpu() -> dict[str, str]:
    """Return the name and compute capability of the GPU, if this process uses one."""
    if not torch.cuda.is_initialized():
        return {}
    properties = device_properties()
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
    }


def device_properties() -> Any:
    """Return what torch knows of the current GPU, once it is initialized.

    torch's public function first opens NVML to count devices, which leaves cyclic garbage.
    """
    public = torch.cuda.get_device_properties
    read = getattr(torch.cuda, "_get_device_properties", public)
    return read(torch.cuda.current_device())


def allocated(kind: str, value: str) -> int:
    """Return what torch's allocator has of the current GPU, in bytes.

    torch's public functions for one figure flatten all of them, which leaves cyclic garbage.

    Args:
        kind: "allocated_bytes" or "reserved_bytes".
        value: "current" or "peak".
    """
    return int(torch.cuda.memory_stats_as_nested_dict()[kind]["all"][value])


INFO = ".dist-info"
# Import name, which is also that of the folder `NAME-VERSION.dist-info`.
LIBRARIES = (
    "torchao", "transformer_engine", "triton",
    "transformers", "accelerate", "lightning", "deepspeed",
)  # fmt: skip


@cache
def versions() -> dict[str, str]:
    """Return versions by name, without importing; libraries that are not installed are left out."""
    versions_by_name = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if torch.version.cuda is not None:
        versions_by_name["cuda"] = torch.version.cuda
    installed = _installed()
    for library in LIBRARIES:
        known = getattr(sys.modules.get(library), "__version__", None)
        found = known if isinstance(known, str) else installed.get(library)
        if found is not None:
            versions_by_name[library] = found
    return versions_by_name


def _installed() -> dict[str, str]:
    """Return the versions of all distributions by name, as their folders are called.

    importlib.metadata would leave cyclic garbage, which a script may count.
    """
    versions_by_name: dict[str, str] = {}
    for folder in sys.path:
        with quietly(OSError):
            for entry in os.listdir(folder or "."):  # noqa: PTH208 - cheaper by the thousand
                name, dash, rest = entry.partition("-")
                if dash and rest.endswith(INFO):
                    versions_by_name.setdefault(name, rest[: -len(INFO)])
    return versions_by_name


CONVERSIONS = "torchao.float8.float8_linear_utils"
WATCHED = frozenset({"torchao.float8.convert_to_float8_training"})
api_calls: list[str] = []  # those of `WATCHED` that this process has called


def watch_api_calls() -> None:
    """Note the first call of a watched API."""
    original = torch._C._log_api_usage_once

    def log_api_usage_once(name: str) -> None:
        if not torch.compiler.is_compiling() and name in WATCHED:
            api_calls.append(name)
            torch._C._log_api_usage_once = original
        original(name)

    # A compiled step builds modules, which call this, when its first backward pass is compiled.
    invisible(log_api_usage_once)
    torch._C._log_api_usage_once = log_api_usage_once


# The script waits for a search among all objects: a Python loop over eight million of them takes
# a second. Types are compared in C, and beyond some number of objects there is no search.
MAX_BLOCKS = 4_000_000  # of memory, one or more an object: 0.1 s (Python 3.11)


def can_look() -> bool:
    """Return whether there are few enough objects to look through all."""
    return sys.getallocatedblocks() <= MAX_BLOCKS


def find_instances(
    wanted: Callable[[type], bool], *, patient: bool = False
) -> list[Any]:
    """Return the live objects of a wanted class, except objects frozen by `gc.freeze`.

    If there are too many objects, the result is empty unless the caller is `patient`.
    """
    if not patient and not can_look():
        return []
    objects = gc.get_objects()
    # type(), not isinstance(): a lazy proxy would be woken by being asked for its __class__.
    # By id: a metaclass may define `__eq__` and `__hash__`.
    kinds = dict(zip(map(id, map(type, objects)), map(type, objects), strict=True))
    wanted_kinds = {key for key, kind in kinds.items() if wanted(kind)}
    return list(
        compress(objects, map(wanted_kinds.__contains__, map(id, map(type, objects))))
    )

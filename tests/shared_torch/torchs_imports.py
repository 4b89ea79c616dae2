"""What scripts that train import: torch, and what torch imports later."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any

import torch

# What is imported when an optimizer is built, a model compiled, or torchao or a trainer imported:
# seconds of each script that does. All is torch's own, or knows nothing of torch.
LATER = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed._tensor.experimental",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.launcher",
    "torch.distributed.tensor.parallel",
    "torch.profiler",
    "boto3",
    "huggingface_hub.hf_api",
    "networkx",
    "rich.progress",
)


class ImportedTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Give out the torch that was imported before as if it were found and loaded now."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=torch.__file__, is_package=True
        )
        spec.submodule_search_locations = list(torch.__path__)
        return spec

    def create_module(self, _: Any) -> types.ModuleType:
        return torch

    def exec_module(self, _: types.ModuleType) -> None:
        """Do nothing: it was executed before the fork."""


def before_the_forks() -> None:
    """Import what torch would import later; older ones lack some of it."""
    os.environ["TORCH_WARM_POOL"] = "0"  # else the compiler may start helpers
    for name in LATER:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del os.environ["TORCH_WARM_POOL"]


def in_the_fork() -> None:
    """Let torch be found and loaded anew."""
    del sys.modules["torch"]
    sys.meta_path.insert(0, ImportedTorch())

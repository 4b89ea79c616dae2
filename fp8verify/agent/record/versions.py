"""Versions of the software that decides what a training step computes."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

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

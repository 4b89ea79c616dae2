"""List the modules of a training when its first optimizer is built, and end it there.

`fp8verify doctor -- COMMAND` asks for this. The process ends by `os._exit`: an exception would run
the script's own `finally`, and one that saves a checkpoint would overwrite trained weights.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from torch import nn
from torch.optim.optimizer import Optimizer

from ..observe import observe
from .census import take_census
from .layers import canonical_name
from .trained import all_modules, listening

# An optimizer of nothing, of a metric or of a test tensor is not the training's.
LEAST_LINEARS = 1


def install_dry(out: str) -> None:
    """Wait for the first optimizer of a model; write what there is to `out` and end the process.

    Args:
        out: the folder for one JSON file of each process.
    """
    listening.begin()
    observe(Optimizer, "__init__", lambda _: _look_and_end(out))


def _look_and_end(out: str) -> None:
    try:
        modules = take_census([])
        if len(modules) < LEAST_LINEARS:
            return
        record = {"modules": modules, "tied": _tied_linears(), "libraries": _libraries()}
        path = os.path.join(out, f"model-{os.getpid()}.json")  # noqa: PTH118 - as all of the agent
        with open(f"{path}.part", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(record, file)
        os.replace(f"{path}.part", path)  # noqa: PTH105
    except Exception:  # the script runs on, and the doctor says that it saw no model
        return
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _tied_linears() -> list[str]:
    """Return the linear layers whose weight is an embedding's too."""
    modules = list(all_modules())
    owned = {id(m.weight) for m in modules if isinstance(m, nn.Embedding)}
    children = {id(child) for m in modules for child in m._modules.values()}
    names = [
        canonical_name(name)
        for root in modules
        if id(root) not in children
        for name, m in root.named_modules()
        if not isinstance(m, nn.Embedding) and id(getattr(m, "weight", None)) in owned
    ]
    return list(dict.fromkeys(names))


def _libraries() -> list[str]:
    known = ("torchao", "transformer_engine", "accelerate", "torchtitan", "kempnerforge")
    return [name for name in known if name in sys.modules]

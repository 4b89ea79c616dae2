"""Name the layer of every GEMM in the trace: `run --layers`.

Hooks on the linear modules open a `record_function("fp8verify:NAME")` around each forward pass.
torch.compile ignores hooks that come after it: for a step compiled code then runs eagerly, and
what was compiled is kept.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.profiler import record_function

from ..observe import hidden

_HERE = f"this is {torch.__version__}"


class EagerMode:
    """One stance for all who want the same step to run eagerly: the last to leave ends it."""

    def __init__(self) -> None:
        self._stance: Any = None
        self._users = 0

    @property
    def entered(self) -> bool:
        """Whether compiled code runs eagerly now."""
        return self._users > 0

    def enter(self) -> None:
        """Let compiled code run eagerly until `leave`.

        Raises:
            RuntimeError: torch is older than 2.6, or this was called from compiled code.
        """
        if not self._users:
            if not hasattr(torch.compiler, "set_stance"):
                raise RuntimeError(f"compiled code runs eagerly from torch 2.6 on: {_HERE}")
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()
        self._users += 1

    def leave(self) -> None:
        """Let compiled code run as before, once all have left."""
        if not self._users:
            return
        self._users -= 1
        if not self._users:
            stance, self._stance = self._stance, None
            stance.__exit__(None, None, None)


eager_mode = EagerMode()


PREFIX = "fp8verify:"


class LayerNames:
    """Hooks on modules, by name; as short-lived as the steps that they name."""

    def __init__(self, modules: Sequence[tuple[str, Any]]) -> None:
        self._open: defaultdict[int, list[Any]] = defaultdict(list)  # by thread
        self._handles: list[Any] = []
        self._eager = self._removed = False
        self._compiled_before = compiles()
        for name, module in modules:
            self._handles.append(module.register_forward_pre_hook(hidden(self._opener(name))))
            self._handles.append(
                module.register_forward_hook(hidden(self._close), always_call=True)
            )

    def force_eager(self) -> None:
        """Let compiled code run eagerly until `remove`, keeping what was compiled.

        Raises:
            RuntimeError: torch is older than 2.6, or this was called from compiled code.
        """
        eager_mode.enter()
        self._eager = True

    def remove(self) -> None:
        """Take the hooks off and let compiled code run as before."""
        self._removed = True
        # What was compiled with the hooks on has guards on them: they stay, and do nothing.
        if self._compiled_before or not compiles():
            for handle in self._handles:
                handle.remove()
        if self._eager:
            self._eager = False
            eager_mode.leave()

    def _opener(self, name: str) -> Any:
        def fp8verify_name_layer(*_: Any) -> None:
            if self._removed:
                return
            annotation = record_function(f"{PREFIX}{name}")
            annotation.__enter__()
            self._open[threading.get_ident()].append(annotation)

        return fp8verify_name_layer

    def _close(self, *_: Any) -> None:
        # Without an error in between, calls of modules nest.
        with suppress(IndexError):
            self._open[threading.get_ident()].pop().__exit__(None, None, None)


def compiles() -> bool:
    """Return whether torch.compile was asked to compile anything in this process."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    utils = sys.modules.get("torch._dynamo.utils")
    backends = getattr(eval_frame, "cached_backends", {})
    if any(backend is not None for backend in backends.values()):  # None is `disable`
        return True
    return utils is not None and bool(utils.counters.get("frames", {}).get("ok"))

"""Let compiled code run eagerly for a step; what was compiled is kept."""

from __future__ import annotations

from typing import Any

import torch

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

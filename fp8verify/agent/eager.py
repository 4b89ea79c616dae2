"""Steps in which compiled code runs eagerly, so hooks are called: whether one may, and how."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

# Eager code keeps what compiled code fuses or computes again: of the memory that a step takes on
# top of parameters and optimizer, so many times as much must be free.
EAGER_MEMORY = 2


def obstacle() -> str | None:
    """Return why a step of this process must not run eagerly, None if it may."""
    flex = getattr(torch.ops.higher_order, "flex_attention", None)
    if getattr(
        flex, "_dispatch_cache", None
    ):  # empty until it is called, or traced, once
        return "without torch.compile, FlexAttention stores the scores of all pairs of tokens"
    if not torch.cuda.is_initialized():
        return None
    held = torch.cuda.memory_allocated()
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - held
    needed = EAGER_MEMORY * (torch.cuda.max_memory_allocated() - held)
    if needed > free:
        return (
            f"it may need {needed / 2**30:.1f} GiB of GPU memory without torch.compile, and "
            f"{free / 2**30:.1f} GiB are free"
        )
    return None


class EagerMode:
    """A context in which compiled code runs eagerly; it ends when the last user leaves.

    torch.compile ignores hooks that are added after compilation. For one step, compiled code
    therefore runs eagerly; the compiled code is kept.

    If only one rank ran eagerly, its collectives could be in another order, and the run would hang.
    So all ranks of a node run eagerly, or none. Each rank votes when the step is planned, and reads
    all votes when the step begins. A rank that misses a vote withdraws its own; a rank that has not
    voted by then is several steps behind, and sees the withdrawal.

    Attributes:
        users: how many have entered.
    """

    def __init__(self) -> None:
        self.users = 0
        self._stance: Any = None
        self._step: int | None = None
        self._why_not: str | None = "it was not planned"
        self._votes: list[Path] = []  # of all ranks
        self._own = Path()

    def plan(self, step: int, boot: str, rank: int, world_size: int) -> None:
        """Vote on a step that is to run eagerly, at least one step before it."""
        if step != self._step:
            self._step, self._why_not = step, obstacle()
            self._votes = [
                Path(boot, f"eager-{step}.{voter}") for voter in range(world_size)
            ]
            self._own = Path(boot, f"eager-{step}.{rank}")
            self._vote("no" if self._why_not else "yes")

    def __enter__(self) -> None:
        """Let compiled code run eagerly.

        Raises:
            RuntimeError: the step would not fit into memory or not all ranks run it eagerly, torch
                is older than 2.6, or this was called from compiled code.
        """
        if not self.users:
            if self._why_not is None and not all(map(_is_yes, self._votes)):
                self._vote("no")
                self._why_not = (
                    "not all ranks agreed to it: that takes --ranks all, on one node"
                )
            if self._why_not is not None:
                raise RuntimeError(self._why_not)
            if not hasattr(torch.compiler, "set_stance"):
                raise RuntimeError(
                    f"compiled code runs eagerly from torch 2.6 on: this is {torch.__version__}"
                )
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()
        self.users += 1

    def __exit__(self, *_: object) -> None:
        """Let compiled code run as before, once all have left."""
        self.users -= 1
        if not self.users:
            stance = self._stance
            self._stance = None
            stance.__exit__(None, None, None)

    def _vote(self, vote: str) -> None:
        with suppress(OSError):  # one that cannot be written is missed by all
            self._own.write_text(vote, "ascii")


def _is_yes(vote: Path) -> bool:
    with suppress(OSError):
        return vote.read_text("ascii") == "yes"
    return False


eager_mode = EagerMode()

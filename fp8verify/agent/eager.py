"""A step in which compiled code runs eagerly, so hooks are called: whether one may, and how.

Only `run --numerics-eager` asks for one: it takes the time and memory of eager code, and rounds
otherwise than the compiled code, so that the run has other numbers from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from .guard import quietly
from .layers import known_modules
from .process import allocated
from .stored import is_a

# Eager code keeps what compiled code fuses or computes again: of the memory that a step takes on
# top of parameters and optimizer, so many times as much must be free.
EAGER_MEMORY = 2
# Operators that take functions, and compile them or store more when they run eagerly.
CONTROL_FLOW = (
    "cond", "while_loop", "scan", "associative_scan", "map_impl",
    "flex_attention", "flex_attention_backward",
)  # fmt: skip
ASKS = frozenset(
    {"is_compiling", "is_dynamo_compiling", "is_exporting", "is_torchdynamo_compiling"}
)
# Libraries that ask in order to be compiled, and whose layers compute the same if they are not.
SAME_EITHER_WAY = frozenset({"torch", "torchao"})


class RefusedError(Exception):
    """The step must not run eagerly, for a reason that the report names."""


def obstacle() -> str | None:
    """Return why a step of this process must not run eagerly, None if it may."""
    if not hasattr(torch.compiler, "set_stance"):
        return (
            f"compiled code runs eagerly from torch 2.6 on: this is {torch.__version__}"
        )
    if _stance() != "default":
        return "the script itself has set a stance of torch.compile"
    operator = _used_control_flow()
    if operator is not None:
        return f"the model uses {operator}, which differs without torch.compile"
    if any(_asks(name) for name in _modules_of_the_model()):
        return "code of the model asks whether it is compiled"
    return _lack_of_memory()


def _stance() -> str:
    eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")
    return str(getattr(getattr(eval_frame, "_stance", None), "stance", "default"))


def _used_control_flow() -> str | None:
    for name in CONTROL_FLOW:
        operator = getattr(torch.ops.higher_order, name, None)
        if getattr(
            operator, "_dispatch_cache", None
        ):  # filled when it is first called or traced
            return name
    return None


def _modules_of_the_model() -> set[str]:
    """Return the names of the Python modules of all classes of the model, and of the script."""
    kinds = {cls for module in known_modules() for cls in type(module).__mro__}
    names = {str(cls.__module__) for cls in kinds}
    of_others = {name for name in names if not _is_same_either_way(name)}
    return of_others | {"__main__"}


def _is_same_either_way(module: str | None) -> bool:
    return str(module).partition(".")[0] in SAME_EITHER_WAY


def _asks(module: str) -> bool:
    """Whether code of a Python module names a function that tells if it is compiled."""
    if module not in sys.modules:
        return False
    found = list(vars(sys.modules[module]).values())
    for value in tuple(found):
        if is_a(value, type):
            found += vars(value).values()
    functions = [value for value in found if type(value) is FunctionType]
    # What wraps a function takes over its `__module__`, but not its globals.
    codes = [
        one.__code__
        for one in functions
        if not _is_same_either_way(one.__globals__.get("__name__"))
    ]
    return any(not ASKS.isdisjoint(code.co_names) for code in _with_inner(codes))


def _with_inner(codes: Iterable[Any]) -> Iterator[CodeType]:
    for code in codes:
        if type(code) is CodeType:
            yield code
            yield from _with_inner(code.co_consts)


def _lack_of_memory() -> str | None:
    if not torch.cuda.is_initialized():
        return None
    held = allocated("allocated_bytes", "current")
    reserved = allocated("reserved_bytes", "current")
    free = torch.cuda.mem_get_info()[0] + reserved - held
    needed = EAGER_MEMORY * (allocated("allocated_bytes", "peak") - held)
    if needed > free:
        return (
            f"it may need {needed / 2**30:.1f} GiB of GPU memory without torch.compile, and "
            f"{free / 2**30:.1f} GiB are free"
        )
    return None


class EagerStep:
    """A context in which compiled code runs eagerly; the compiled code is kept.

    If only one rank ran eagerly, its collectives could be in another order, and the run would hang.
    So all ranks of a node run eagerly, or none. Each rank votes when the step is planned, and reads
    all votes when the step begins. A rank that misses a vote withdraws its own; a rank that has not
    voted by then is several steps behind, and sees the withdrawal.
    """

    def __init__(self) -> None:
        self._stance: Any = None
        self._step: int | None = None
        self._why_not: str | None = "it was not planned"
        self._votes: list[Path] = []  # of all ranks
        self._own = Path()

    def plan(
        self,
        step: int,
        boot: str,
        rank: int,
        world_size: int,
    ) -> None:
        """Vote on a step that is to run eagerly, at least one step before it."""
        if step == self._step:
            return
        self._step = step
        self._why_not = obstacle()
        self._votes = [
            Path(boot, f"eager-{step}.{voter}") for voter in range(world_size)
        ]
        self._own = Path(boot, f"eager-{step}.{rank}")
        self._vote("no" if self._why_not else "yes")

    def __enter__(self) -> None:
        """Let compiled code run eagerly.

        Raises:
            RefusedError: this rank or another one must not.
        """
        self._why_not = self._why_not or obstacle()
        if self._why_not is None and not all(map(_is_yes, self._votes)):
            self._vote("no")
            self._why_not = (
                "not all ranks agreed to it: that takes --ranks all, on one node"
            )
        if self._why_not is not None:
            raise RefusedError(self._why_not)
        self._stance = torch.compiler.set_stance("force_eager")
        self._stance.__enter__()

    def __exit__(self, *_: object) -> None:
        """Let compiled code run as before, unless the script has set a stance by now."""
        ours = self._stance
        self._stance = None
        eval_frame: Any = sys.modules["torch._dynamo.eval_frame"]
        if eval_frame._stance is ours.stance:
            ours.__exit__(None, None, None)

    def _vote(self, vote: str) -> None:
        with quietly(OSError):  # one that cannot be written is missed by all
            self._own.write_text(vote, "ascii")


def _is_yes(vote: Path) -> bool:
    with quietly(OSError):
        return vote.read_text("ascii") == "yes"
    return False


eager_step = EagerStep()

"""What a reader takes out of a trace: typed columns, before anything is derived from them.

This is the seam between formats: each reader fills a `Columns`, and everything after it works on
columns alone. What a source does not record stays at its default: -1 in a column, an empty list.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:
    from fp8verify.terms import Shape
    from fp8verify.trace.tables import Step


def append_all(column: array[Any], values: Sequence[float]) -> None:
    """Append numbers in half the time of `fromlist`, which parses each like an argument."""
    column.frombytes(pack(f"{len(values)}{column.typecode}", *values))


class Interner(dict[Any, int]):
    """Numbers its keys in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Inputs(Protocol):
    """What an operator was called with, argument by argument, as far as it was recorded."""

    @property
    def types(self) -> tuple[str, ...]:
        """As torch writes them: "c10::BFloat16", "float", ""."""

    @property
    def dims(self) -> tuple[Shape, ...]:
        """The shapes; () where an argument is not a tensor."""

    @property
    def forward_thread(self) -> Hashable | None:
        """The thread of the forward pass, in the profiler's own numbers, if autograd ran it."""


class PlainInputs(NamedTuple):
    """`Inputs` that are known as soon as they are read."""

    types: tuple[str, ...] = ()
    dims: tuple[Shape, ...] = ()
    forward_thread: Hashable | None = None


def _int32() -> array[int]:
    return array("i")


def _int64() -> array[int]:
    return array("q")


class OpColumns(Struct):
    """CPU operators and annotations: 36 bytes each, 44 with sequence numbers.

    `op_id` is the number by which kernels name their operator. `inputs` indexes `Columns.inputs`;
    -1 marks an annotation. `sequence` is autograd's number of the node that the operator made, or
    runs, -1 for none; the column stays empty unless layers are asked for.
    """

    start: array[int] = field(default_factory=_int64)
    end: array[int] = field(default_factory=_int64)
    op_id: array[int] = field(default_factory=_int64)
    name: array[int] = field(default_factory=_int32)
    thread: array[int] = field(default_factory=_int32)
    inputs: array[int] = field(default_factory=_int32)
    sequence: array[int] = field(default_factory=_int64)


class CallColumns(Struct):
    """Calls of the runtime and the driver: 20 bytes each."""

    correlation: array[int] = field(default_factory=_int64)
    start: array[int] = field(default_factory=_int64)
    thread: array[int] = field(default_factory=_int32)


class KernelColumns(Struct):
    """Kernels as they were recorded: neither correlated nor judged.

    `op_id` names the operator that launched the kernel, `correlation` the call; -1 for unknown.
    `duration` is in nanoseconds, -1 where the record holds no possible one.
    """

    start: array[int] = field(default_factory=_int64)
    duration: array[int] = field(default_factory=_int64)
    op_id: array[int] = field(default_factory=_int64)
    correlation: array[int] = field(default_factory=_int64)
    device: array[int] = field(default_factory=_int64)
    stream: array[int] = field(default_factory=_int64)
    name: array[int] = field(default_factory=_int32)
    collective: array[int] = field(default_factory=_int32)


class Columns(Struct):
    """The columns of one rank's trace; times are nanoseconds since `base_ns`.

    Attributes:
        names: of kernels, numbered by `kernels.name`.
        op_names: of operators and annotations, numbered by `ops.name`.
        threads: whatever tells CPU threads apart, numbered by `ops.thread` and `calls.thread`.
        collectives: `Collective`s, numbered by `kernels.collective`.
        inputs: by number of `ops.inputs`.
        annotations: the rows of `ops` that are not operators.
        steps: the training steps by start, each number once.
        steps_bound: whether what was launched outside of the steps is not of the window.
        step_names: the numbers of `op_names` that mark a step; such ranges enclose no operator.
        copies: (count, nanoseconds, bytes) of "memcpy" and "memset".
        base_ns: what to add to every time.
        first_start: when the first operator, annotation or call began; None if there is none.
        last_end: when the last operator, annotation or call ended.
    """

    ops: OpColumns = field(default_factory=OpColumns)
    calls: CallColumns = field(default_factory=CallColumns)
    kernels: KernelColumns = field(default_factory=KernelColumns)
    names: Interner = field(default_factory=Interner)
    op_names: Interner = field(default_factory=Interner)
    threads: Interner = field(default_factory=Interner)
    collectives: Interner = field(default_factory=Interner)
    inputs: Sequence[Inputs] = ()
    annotations: array[int] = field(default_factory=_int32)
    steps: list[Step] = field(default_factory=list)
    steps_bound: bool = False
    step_names: set[int] = field(default_factory=set)
    copies: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    base_ns: int = 0
    first_start: int | None = None
    last_end: int = 0

    def note_times(self, starts: Iterable[int], ends: Iterable[int]) -> None:
        """Note when some operators, annotations or calls began and ended; there must be one."""
        first, last = min(starts), max(ends)
        self.first_start = first if self.first_start is None else min(first, self.first_start)
        self.last_end = max(last, self.last_end)

"""What a reader takes out of a trace: typed columns, before anything is derived from them.

This is the seam between formats: each reader fills a `Columns`, and everything after it works on
columns alone. What a source does not record stays at its default: -1 in a column, an empty list.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from math import prod
from struct import pack
from typing import Any

import msgspec
from msgspec import Struct, field

from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Shape
from fp8verify.text import clean
from fp8verify.trace.tables import Kernels, LaunchConfig, Step


def append_all(column: array[Any], values: Iterable[int]) -> None:
    """Append numbers in half the time of `fromlist`, which parses each like an argument."""
    numbers = tuple(values)
    layout = f"{len(numbers)}{column.typecode}"
    column.frombytes(pack(layout, *numbers))


class Interner(dict[Any, int]):
    """Numbers its keys in the order of their first look-up."""

    def __missing__(self, key: Any) -> int:
        number = len(self)
        self[key] = number
        return number

    def numbers(self, keys: Iterable[Any]) -> Iterator[int]:
        """Return the number of each key."""
        return map(self.__getitem__, keys)


# Of a dimension, a message or a copy: more than any GPU's memory holds.
MAX_SIZE = 1 << 40
# Valid JSON holds no NUL byte, so this cannot occur inside a part.
SEPARATOR = b"\0"
_DIGITS = 12  # of a number of bytes or registers

# The least number beyond MAX_SIZE has so many digits; one of more than int64 holds is not converted.
_LONG_NUMBER = lazy_pattern(rb"\d{13}")
_MOST_DIGITS = 18

_types = msgspec.json.Decoder(tuple[str, ...])
_dims = msgspec.json.Decoder(tuple[Any, ...])


class Inputs:
    """What an operator was called with, argument by argument, as far as it was recorded.

    It stays the undecoded JSON of (types, dims, forward thread), joined by `SEPARATOR`, until a
    kernel asks for it.
    """

    __slots__ = ("_parts",)

    def __init__(self, raw: bytes) -> None:
        self._parts = raw.split(SEPARATOR)

    @property
    def types(self) -> tuple[str, ...]:
        """As torch writes them: "c10::BFloat16", "float", ""; none if they are damaged."""
        names = _decoded(_types, self._parts[0])
        return tuple(map(clean, names))

    @property
    def dims(self) -> tuple[Shape, ...]:
        """The shapes; a list of tensors has shapes of its own, and counts as having none."""
        recorded = _decoded(_dims, self._parts[1])
        return tuple(map(_shape, recorded))

    @property
    def is_damaged(self) -> bool:
        """Whether a size is beyond what any tensor has."""
        recorded = self._parts[1]
        if _LONG_NUMBER.search(recorded) is None:
            return False
        for digits in re.findall(rb"\d+", recorded):
            if len(digits) > _MOST_DIGITS or int(digits) > MAX_SIZE:
                return True
        return False

    @property
    def forward_thread(self) -> bytes | None:
        """The number of the forward pass's thread; None unless autograd ran the operator."""
        number = self._parts[-1].strip(b'" ')
        if number in (b"", b"0", b"-1"):
            return None
        return number


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes) -> tuple[Any, ...]:
    if not raw:
        return ()
    try:
        values: tuple[Any, ...] = decoder.decode(raw)
    except (ValueError, RecursionError):
        return ()
    return values


def _shape(item: Any) -> Shape:
    if not isinstance(item, list):
        return ()
    if not all(map(_is_size, item)):
        return ()
    return tuple(item)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and -MAX_SIZE <= size <= MAX_SIZE


def launch_config(raw: bytes) -> LaunchConfig:
    """Return how a kernel was launched, from the JSON of `Columns.configs`."""
    block, shared, registers = raw.split(SEPARATOR)
    recorded = _decoded(_dims, block)
    sides = list(filter(_is_count, recorded))
    threads = None
    if len(sides) == 3:
        threads = prod(sides)
    return LaunchConfig(
        threads=threads,
        shared=_number(shared),
        registers=_number(registers),
    )


def _number(raw: bytes) -> int | None:
    if raw.isdigit() and len(raw) < _DIGITS:
        return int(raw)
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 < value < 1 << 32


_int32 = partial(array, "i")
_int64 = partial(array, "q")


class OpColumns(Struct):
    """CPU operators and annotations: 44 bytes each.

    `op_id` is the number by which kernels name their operator. `inputs` indexes `Columns.inputs`;
    -1 marks an annotation. `sequence` is autograd's number of the node that the operator made, or
    runs, -1 for none.
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


class Columns(Struct):
    """The columns of one rank's trace; times are nanoseconds since `base_ns`.

    Attributes:
        kernels: as they were recorded, without what `build.fill` finds out. `duration_ns` is -1
            where the record holds no possible one.
        op_ids: for each kernel the number of the operator that launched it, -1 for unknown.
        correlations: for each kernel the number of the call that launched it, -1 for unknown.
        names: of kernels, numbered by `kernels.name`.
        op_names: of operators and annotations, numbered by `ops.name`.
        threads: whatever identifies a CPU thread, numbered by `ops.thread` and `calls.thread`.
        collectives: the fields of `Collective`s, numbered by `kernels.collective`.
        configs: the JSON of block, shared memory and registers, joined by `SEPARATOR`, numbered by
            `kernels.config`.
        inputs: the JSON of `Inputs`, numbered by `ops.inputs`.
        steps: the training steps by start, each number once.
        step_names: the numbers of `op_names` that mark a step; such ranges enclose no operator.
        copies: (count, nanoseconds, bytes) of "memcpy" and "memset".
        base_ns: what to add to every time.
        last_end: when the last operator, annotation or call ended.
    """

    ops: OpColumns = field(default_factory=OpColumns)
    calls: CallColumns = field(default_factory=CallColumns)
    kernels: Kernels = field(default_factory=Kernels)
    op_ids: array[int] = field(default_factory=_int64)
    correlations: array[int] = field(default_factory=_int64)
    names: Interner = field(default_factory=Interner)
    op_names: Interner = field(default_factory=Interner)
    threads: Interner = field(default_factory=Interner)
    collectives: Interner = field(default_factory=Interner)
    configs: Interner = field(default_factory=Interner)
    inputs: Interner = field(default_factory=Interner)
    steps: list[Step] = field(default_factory=list)
    step_names: set[int] = field(default_factory=set)
    copies: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    base_ns: int = 0
    last_end: int = 0

    def add_operator(
        self,
        number: int,
        name: str,
        inputs: bytes,
        start: int = 0,
        end: int = 0,
    ) -> None:
        """Add an operator on a thread of its own, where no other one encloses it."""
        ops = self.ops
        ops.start.append(start)
        ops.end.append(end)
        ops.op_id.append(number)
        ops.name.append(self.op_names[name])
        ops.thread.append(self.threads[number])
        ops.inputs.append(self.inputs[inputs])
        ops.sequence.append(-1)

    def note_ends(self, ends: Iterable[float]) -> None:
        """Note when some operators, annotations or calls ended; there must be one."""
        latest = round(max(ends))
        self.last_end = max(self.last_end, latest)

    def add_copies(
        self,
        kind: str,
        count: int,
        time_ns: int,
        size: int,
    ) -> None:
        """Add "memcpy" or "memset" of the GPU."""
        known_count, known_ns, known_size = self.copies.get(kind, (0, 0, 0))
        self.copies[kind] = (
            known_count + count,
            known_ns + time_ns,
            known_size + size,
        )

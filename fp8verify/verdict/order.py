"""Which module a call is of, where the order of the calls is that of the module list."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias, TypeVar

from fp8verify.capture.schema import ModuleRecord
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import GRADIENT_LEGS, LEGS, Leg
from fp8verify.thresholds import FIRST_LAYERS
from fp8verify.verdict.ledger import Program

# The sizes that modules have, in the order of the list: some have several.
Listed: TypeAlias = "Sequence[tuple[tuple[int, int], ModuleRecord]]"
# Calls that follow one another, by their indices, and the modules of one size that they are.
Named: TypeAlias = "tuple[list[int], list[ModuleRecord]]"
_IsLow: TypeAlias = "Callable[[ModuleRecord, Leg], bool]"
_Size: TypeAlias = "tuple[int, ...] | None"
# Of experts: how many layers that are none come before, and their size.
_Gap: TypeAlias = "tuple[int, _Size]"
# A forward call, by its index.
_SizedCall: TypeAlias = "tuple[_Size, int]"
_T = TypeVar("_T")
# In Mixtral, DeepSeek and Qwen of Hugging Face: "mlp.experts.3.up_proj".
_EXPERT: Final = lazy_pattern(r"experts?\.\d+(?:\.|$)")


class Part(NamedTuple):
    """Launches of a replay that follow one another, each of a module and a leg of it."""

    legs: tuple[tuple[ModuleRecord, Leg], ...]


def is_expert(module: ModuleRecord) -> bool:
    """Whether a module is a layer of a single expert, which runs only where tokens go to it."""
    return _EXPERT.search(module.fqn) is not None


def has_experts(modules: Iterable[ModuleRecord]) -> bool:
    """Whether some modules are layers of single experts, of which any number may run."""
    return any(map(is_expert, modules))


def in_order_of_sizes(program: Program, listed: Listed) -> list[Named]:
    """Return the modules of calls, if these have the sizes of the list in its order."""
    sized = _sized_calls(program)
    if _sizes_of(sized) != _sizes_of(listed):
        return _in_order_but_experts(sized, listed)
    return _named(program.forward_calls, listed)


def _sized_calls(program: Program) -> list[_SizedCall]:
    """Return the indices of forward calls, each behind its size."""
    sized = []
    for index in program.forward_calls:
        call = program.calls[index]
        sized.append((call.size, index))
    return sized


def _sizes_of(sized: Iterable[tuple[_Size, object]]) -> list[_Size]:
    return [size for size, _ in sized]


def _in_order_but_experts(
    sized: Sequence[_SizedCall],
    listed: Listed,
) -> list[Named]:
    """Return the modules of calls, if those of no expert are in the order of the list.

    The experts between two of the others are of one block. Any of them may have run.
    """
    of_experts = set()
    others = []
    for size, module in listed:
        if is_expert(module):
            of_experts.add(size)
        else:
            others.append((size, module))
    rest = [(size, call) for size, call in sized if size not in of_experts]
    if _sizes_of(rest) != _sizes_of(others):
        return []
    other_calls = [call for _, call in rest]
    found = _named(other_calls, others)
    modules_in = _in_gaps(listed, of_experts)
    calls_in = _in_gaps(sized, of_experts)
    for gap, calls in calls_in.items():
        modules = modules_in.get(gap, [])
        if len(calls) > len(modules):
            return []
        found.append((calls, modules))
    return found


def _in_gaps(
    sized: Iterable[tuple[_Size, _T]],
    of_experts: Iterable[_Size],
) -> dict[_Gap, list[_T]]:
    """Return what has sizes of experts, by how much else comes before it and by size."""
    gaps: dict[_Gap, list[_T]] = defaultdict(list)
    before = 0
    for size, one in sized:
        if size in of_experts:
            gaps[before, size].append(one)
        else:
            before += 1
    return gaps


def in_order_without_sizes(
    program: Program,
    listed: Listed,
    is_low: _IsLow,
) -> list[Named]:
    """Return the modules of calls without sizes, if there are as many as the list has.

    The order is not that of the list if a call runs low that the list keeps in high precision. Of
    experts any may have run.
    """
    calls = program.forward_calls
    sizes = _sizes_of(_sized_calls(program))
    has_sizes = any(size is not None for size in sizes)
    # Launches of no known leg may be the model's, and these others.
    legs = {entry.leg for entry in program.entries}
    has_unknown = Leg.UNKNOWN in legs
    each = max(1, len(listed))
    passes = len(calls) // each
    in_order = [*listed] * passes
    is_whole = len(in_order) == len(calls)
    is_open = has_sizes or has_unknown or has_experts(_modules_of(listed))
    if is_open or not is_whole:
        return []
    found = _named(calls, in_order)
    for indices, modules in found:
        stated = 0
        for module in modules:
            stated += is_low(module, Leg.FPROP)
        if _low_calls(program, indices) > stated:
            return []
    return found


def _size_of(placed: tuple[int, tuple[_Size, ModuleRecord]]) -> _Size:
    """Return the size of a module of the list."""
    _, (size, _) = placed
    return size


def _named(calls: Sequence[int], listed: Listed) -> list[Named]:
    """Join neighbors of one size, which cannot be told apart."""
    found = []
    pairs = zip(calls, listed, strict=True)
    for _, group in groupby(pairs, key=_size_of):
        indices = []
        modules = []
        for index, (_, module) in group:
            indices.append(index)
            modules.append(module)
        found.append((indices, modules))
    return found


def _low_calls(program: Program, indices: Iterable[int]) -> int:
    """Return how many of some calls ran their forward product in low precision."""
    low = 0
    for index in indices:
        for entry in program.by_call[index]:
            if entry.leg is Leg.FPROP:
                low += entry.is_low
    return low


def _modules_of(listed: Listed) -> Iterator[ModuleRecord]:
    for _, module in listed:
        yield module


def order_of_replay(listed: Listed, launches: int) -> list[Part]:
    """Return what launches of a replay are, if they are passes through the list and back.

    The first modules may lack dgrad. Neighbors of one size are one part, and so are their
    gradients. Of experts any may have run.
    """
    of_all = len(LEGS) * len(listed)
    each = max(1, of_all)
    passes = max(1, math.ceil(launches / each))
    missing = passes * each - launches
    without_dgrad, rest = divmod(missing, passes)
    most = min(FIRST_LAYERS, len(listed))
    if rest or without_dgrad > most or has_experts(_modules_of(listed)):
        return []
    forward: list[Part] = []
    backward: list[Part] = []
    numbered = enumerate(listed)
    for _, group in groupby(numbered, key=_size_of):
        fprop = []
        gradients = []
        for number, (_, module) in group:
            fprop.append((module, Leg.FPROP))
            for leg in GRADIENT_LEGS:
                if leg is Leg.WGRAD or number >= without_dgrad:
                    gradients.append((module, leg))
        forward.append(Part(tuple(fprop)))
        backward.append(Part(tuple(gradients)))
    there_and_back = [*forward, *reversed(backward)]
    return there_and_back * passes

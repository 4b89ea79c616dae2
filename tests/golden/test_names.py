"""What names of kernels and their operators are taken for, name by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path

from fp8verify.analysis.kinds import gemm_shape
from fp8verify.kernels import decode
from fp8verify.kernels.operators import OPERATORS
from fp8verify.terms import KernelName, OpContext
from tests.golden.facts import assert_facts, assert_lines
from tests.unit.test_classify import classified, names_and_operators
from tests.unit.test_kernel_names import labelled_names
from tests.unit.test_nvidia_spelling import spelled_names

HERE = Path(__file__).parent
LONGEST = 60


def names_of_kernels() -> Iterator[str]:
    """Yield labelled names of kernels."""
    for row in labelled_names():
        yield row["name"]
    for row in spelled_names():
        for spelling in ("mangled", "nvidia", "cxxfilt"):
            yield row[spelling]


def said_of(name: KernelName) -> str:
    """Return what is said of a name, in a line."""
    operands = " × ".join(filter(None, (name.a, name.b)))  # noqa: RUF001
    accumulation = {True: "fast", False: "exact"}.get(name.fast_accum)
    parts = [name.role.value, name.precision.value, name.library, operands, name.out]
    if name.scaling is not None:
        parts.append(name.scaling.name.lower())
    parts.append(accumulation)
    if name.hint is not None:
        parts.append(name.hint.name.lower())
    return f"{', '.join(filter(None, parts))}; {name.reason}"


def test_a_name_with_its_operator_is_explained_as_it_was() -> None:
    found = {}
    for row in names_and_operators():
        kernel = classified(row)
        called = f"{row['name'][:LONGEST]} by {row['operator']}({row['inputs']})"
        conflict = kernel.conflict or "undisputed"
        found[called] = f"{said_of(kernel)}; by {kernel.source}, {conflict}"
    assert_facts(HERE / "classified.txt", dict(sorted(found.items())))


def test_every_part_of_a_name_is_explained_as_it_was() -> None:
    lines = []
    for name in sorted(set(names_of_kernels())):
        lines += [name, f"    {said_of(decode(name))}"]
    assert_lines(HERE / "names.txt", lines)


def test_the_sizes_of_gemms_are_read_from_inputs_as_they_were() -> None:
    matrices = [(6, 8), (2, 6, 8), (8,)]
    others = [(8, 4), (4, 8), (2, 8, 4), (2, 4, 8), (8,)]
    inputs = set[tuple[tuple[int, ...], ...]]()
    for a, b in product(matrices, others):
        inputs.update(permutations((a, b, (), ())))
    operators = defaultdict[tuple[str, ...], list[str]](list)
    for name in OPERATORS:
        read = []
        for dims in sorted(inputs):
            shape = gemm_shape(OpContext(name=name, dims=dims))
            if shape:
                read.append(f"    {dims} {tuple(shape)}")
        operators[tuple(read)].append(name)
    lines = []
    for read, names in sorted(operators.items(), key=lambda item: item[1]):
        lines += [", ".join(names), *read]
    assert_lines(HERE / "operators.txt", lines)

"""Hold the kernels of a trace against what the BLAS library logged of the same window.

The log has each product of cuBLAS and cuBLASLt once, in the order of the calls of each thread, with
the types that the library was given: a third witness beside a kernel's name and its operator.
Kernels of other libraries are not in it, nor what a CUDA graph replays, which was logged when it
was captured. It is used where it has as many products as the window launched kernels of BLAS.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from fp8verify.analysis.kinds import Kind, Kinds, gemm_shape, grouped
from fp8verify.kernels import alike, decode
from fp8verify.kernels.operators import find
from fp8verify.model.kernels import LibraryLogReport
from fp8verify.terms import KernelName, Precision, Role

if TYPE_CHECKING:
    from fp8verify.trace import Trace
    from fp8verify.trace.blas_log import Product

_OF_BLAS: Final = frozenset({"cuBLAS", "hipBLASLt"})
# CUTLASS kernels that cuBLAS contains have procedural names.
_IN_CUBLAS: Final = re.compile(r"(?:.{0,80}<)?cutlass(?:3x)?_(?:sm)?\d+_")
_NVJET_TILE: Final = re.compile(r"nvjet_\w*?_(\d+x\d+)_")
_Pairs = list["tuple[int, Product]"]


def hear_library(
    trace: Trace, kinds: Kinds, logged: Sequence[tuple[int, Product]]
) -> LibraryLogReport:
    """Give kernels the types that the library logged, and say how many it vouches for."""
    pairs = _join(trace, kinds, logged)
    words: dict[int, Counter[str]] = defaultdict(Counter)
    for place, product in pairs or ():
        words[kinds.ids[place]][product.name] += 1
    vouched = settled = disputed = 0
    for number, names in words.items():
        before = kinds.rows[number]
        said = [decode(name) for name in names]
        precisions = {word.precision for word in said}
        if Precision.UNKNOWN in precisions or len(precisions) > 1:
            continue
        after = kinds.rows[number] = _heard(before, said[0])
        was, now = (
            k.classification.precision is not Precision.UNKNOWN for k in (before, after)
        )
        vouched += names.total() * now
        settled += names.total() * (now and not was)
        disputed += names.total() * (was and not now)
    return LibraryLogReport(
        products=len(logged),
        gemms=len(kinds.started(lambda kind: kind.multiplies)),
        vouched=vouched,
        settled=settled,
        disputed=disputed,
        note=f"its {len(logged)} products are not the kernels that this window launched"
        if pairs is None
        else None,
    )


def remark(found: LibraryLogReport) -> str:
    """Say in a sentence what the log shows."""
    if found.note is not None:
        return f"the BLAS library's log was not used: {found.note}"
    said = f"the BLAS library's own log agrees on {found.vouched} of {found.gemms} GEMM kernels"
    also = [f"{found.settled} by it alone"] if found.settled else []
    also += [f"disputes {found.disputed}"] if found.disputed else []
    return ", ".join((said, *also))


def _join(
    trace: Trace, kinds: Kinds, logged: Sequence[tuple[int, Product]]
) -> _Pairs | None:
    """Return each product with the place of its kernel; None if they do not fit together."""
    columns = trace.kernels
    when = columns.launch_ns or columns.start_ns
    one_sequence = not {thread for thread, _ in logged} <= set(columns.thread)
    of_thread = grouped(logged, lambda pair: -1 if one_sequence else pair[0])
    for is_candidate in (_is_blas_gemm, _may_be_blas):
        places = sorted(kinds.started(is_candidate), key=when.__getitem__)
        # A graph's kernels have no launch of their own; without any, the GPU's order counts.
        own = (x for x in places if not columns.launch_ns or columns.launch_ns[x] >= 0)
        launched = grouped(
            own, lambda place: -1 if one_sequence else columns.thread[place]
        )
        both = [
            (launched[thread], [p for _, p in pairs])
            for thread, pairs in of_thread.items()
        ]
        if not any(_is_another_run(kinds, *of_one) for of_one in both):
            return [pair for of_one in both for pair in zip(*of_one, strict=True)]
    return None


def _is_another_run(
    kinds: Kinds, places: Sequence[int], products: Sequence[Product]
) -> bool:
    """Whether products are not those of the kernels: not as many, or others."""
    if len(places) != len(products):
        return True
    of_kinds = (kinds.rows[kinds.ids[place]] for place in places)
    pairs = list(zip(of_kinds, products, strict=True))
    tiles = [same for same in (_same_tile(*pair) for pair in pairs) if same is not None]
    return (
        any(_same_size(*pair) is False for pair in pairs)
        or 2 * tiles.count(False) > len(tiles)
        # Where name and operator agree, the log is the one that is wrong.
        or any(
            k.classification.source == "name+op" and not _agree(k, p) for k, p in pairs
        )
    )


def _same_size(kind: Kind, product: Product) -> bool | None:
    """Whether a kernel's operator multiplies matrices of these sizes; None if they are unknown."""
    shape = gemm_shape(kind.op)
    if shape is None:
        return None
    sides = {shape.m, shape.n} & {product.m, product.n}
    outputs = shape.batch * shape.m * shape.n == product.batch * product.m * product.n
    return shape.k == product.k and outputs and bool(sides)


def _same_tile(kind: Kind, product: Product) -> bool | None:
    tile = _NVJET_TILE.match(kind.name)
    if tile is None or not product.tile:
        return None
    return sorted(tile[1].split("x")) == sorted(product.tile.split("x"))


def _agree(kind: Kind, product: Product) -> bool:
    """Whether the types of a product are not other than those that its kernel's witnesses give."""
    known = kind.classification.precision
    logged = decode(product.name).precision
    return Precision.UNKNOWN in (known, logged) or alike(known, logged)


def _is_blas_gemm(kind: Kind) -> bool:
    of_blas = (
        kind.classification.library in _OF_BLAS
        or _IN_CUBLAS.match(kind.name) is not None
    )
    return kind.multiplies and of_blas


def _may_be_blas(kind: Kind) -> bool:
    """Whether a kernel is of BLAS, or its name is unknown and its operator multiplies."""
    if kind.classification.library != "unknown" or kind.classification.split_k:
        return _is_blas_gemm(kind)
    return kind.is_gemm or (kind.is_nameless and find(kind.op.name).product is not None)


def _heard(kind: Kind, word: KernelName) -> Kind:
    """Return a kind with the library's word: settled by it, in conflict with it, or as it was."""
    found = kind.classification
    said = f"{word.reason.partition(':')[0]} as {word.a} x {word.b}"
    if found.precision is Precision.UNKNOWN:
        return kind.changed(
            said,
            role=found.role if kind.is_gemm else Role.GEMM,
            precision=word.precision,
            a=word.a,
            b=word.b,
            scaling=word.scaling or found.scaling,
            library=word.library if found.library == "unknown" else found.library,
            source="library",
        )
    if alike(found.precision, word.precision):
        return kind
    conflict = (
        f"the name says {found.precision.value} ({found.reason}), and it is {said}"
    )
    found = replace(found, precision=Precision.UNKNOWN, conflict=conflict)
    return kind._replace(classification=found)

"""Hold the kernels of a trace against what the BLAS library logged of the same window.

The log has each product of cuBLAS and cuBLASLt once, in the order of the calls of each thread, with
the types that the library was given: a third witness beside a kernel's name and its operator.
Kernels of other libraries are not in it, nor what a CUDA graph replays, which was logged when it
was captured. It is used where it has as many products as the window launched kernels of BLAS.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from fp8verify.analysis.kinds import Kind, Kinds, gemm_shape
from fp8verify.kernels import alike, decode
from fp8verify.kernels.operators import find
from fp8verify.model.kernels import LibraryLogReport
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import KernelName, Precision, Role

if TYPE_CHECKING:
    from fp8verify.trace import Trace
    from fp8verify.trace.blas_log import Product

_OF_BLAS: Final = frozenset({"cuBLAS", "hipBLASLt"})
# CUTLASS kernels that cuBLAS contains have procedural names.
_IN_CUBLAS: Final = lazy_pattern(r"(?:.{0,80}<)?cutlass(?:3x)?_(?:sm)?\d+_")
_NVJET_TILE: Final = lazy_pattern(r"nvjet_\w*?_(\d+x\d+)_")
# The thread of all products, where those of the log are not the trace's.
_ANY_THREAD: Final = -1
_Pairs = list["tuple[int, Product]"]


def settle_by_library(
    trace: Trace,
    kinds: Kinds,
    logged: Sequence[tuple[int, Product]],
) -> LibraryLogReport:
    """Give kernels the types that the library logged, and say how many it vouches for."""
    pairs = _join(trace, kinds, logged)
    names_of_kinds: dict[int, Counter[str]] = defaultdict(Counter)
    for index, product in pairs or ():
        names_of_kinds[kinds.ids[index]][product.name] += 1
    vouched = 0
    settled = 0
    disputed = 0
    for number, names in names_of_kinds.items():
        logged_types = [decode(name) for name in names]
        precisions = {types.precision for types in logged_types}
        if Precision.UNKNOWN in precisions or len(precisions) > 1:
            continue
        before = kinds.rows[number]
        after = _with_types(before, logged_types[0])
        kinds.rows[number] = after
        was_known = before.precision is not Precision.UNKNOWN
        is_known = after.precision is not Precision.UNKNOWN
        launches = names.total()
        vouched += launches * is_known
        settled += launches * (is_known and not was_known)
        disputed += launches * (was_known and not is_known)
    note = None
    if pairs is None:
        note = (
            f"its {len(logged)} products are not the kernels that this window launched"
        )
    return LibraryLogReport(
        products=len(logged),
        gemms=len(kinds.started(lambda kind: kind.multiplies)),
        vouched=vouched,
        settled=settled,
        disputed=disputed,
        note=note,
    )


def remark(found: LibraryLogReport) -> str:
    """Say in a sentence what the log shows."""
    if found.note is not None:
        return f"the BLAS library's log was not used: {found.note}"
    parts = [
        f"the BLAS library's own log agrees on {found.vouched} of {found.gemms} GEMM kernels"
    ]
    if found.settled:
        parts.append(f"{found.settled} by it alone")
    if found.disputed:
        parts.append(f"disputes {found.disputed}")
    return ", ".join(parts)


def _join(
    trace: Trace,
    kinds: Kinds,
    logged: Sequence[tuple[int, Product]],
) -> _Pairs | None:
    """Return each product with the index of its kernel; None if they do not fit together."""
    threads = {thread for thread, _ in logged}
    one_sequence = not threads <= set(trace.kernels.thread)
    products: dict[int, list[Product]] = defaultdict(list)
    for thread, product in logged:
        products[_ANY_THREAD if one_sequence else thread].append(product)
    for is_candidate in (_is_blas_gemm, _may_be_blas):
        launched: dict[int, list[int]] = defaultdict(list)
        for index in _in_order_of_launch(trace, kinds, is_candidate):
            thread = _ANY_THREAD if one_sequence else trace.kernels.thread[index]
            launched[thread].append(index)
        pairs: _Pairs = []
        for thread, of_thread in products.items():
            if _is_another_run(kinds, launched[thread], of_thread):
                break
            pairs += zip(launched[thread], of_thread, strict=True)
        else:
            return pairs
    return None


def _in_order_of_launch(
    trace: Trace,
    kinds: Kinds,
    is_candidate: Callable[[Kind], bool],
) -> list[int]:
    """Return the indices of kernels, without those that a graph replayed.

    These have no launch of their own. Where no launch is known, the order on the GPU counts.
    """
    columns = trace.kernels
    started = kinds.started(is_candidate)
    if not columns.launch_ns:
        return sorted(started, key=columns.start_ns.__getitem__)
    launched = [index for index in started if columns.launch_ns[index] >= 0]
    return sorted(launched, key=columns.launch_ns.__getitem__)


def _is_another_run(
    kinds: Kinds,
    indices: Sequence[int],
    products: Sequence[Product],
) -> bool:
    """Whether products are not those of the kernels: not as many, or others."""
    if len(indices) != len(products):
        return True
    tiles = 0
    other_tiles = 0
    for index, product in zip(indices, products, strict=True):
        kind = kinds.rows[kinds.ids[index]]
        if _same_size(kind, product) is False:
            return True
        # Where name and operator agree, the log is the one that is wrong.
        if kind.classification.source == "name+op" and not _agree(kind, product):
            return True
        same_tile = _same_tile(kind, product)
        tiles += same_tile is not None
        other_tiles += same_tile is False
    return 2 * other_tiles > tiles


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
    known = kind.precision
    logged = decode(product.name).precision
    return Precision.UNKNOWN in (known, logged) or alike(known, logged)


def _is_blas_gemm(kind: Kind) -> bool:
    if not kind.multiplies:
        return False
    if kind.classification.library in _OF_BLAS:
        return True
    return _IN_CUBLAS.match(kind.name) is not None


def _may_be_blas(kind: Kind) -> bool:
    """Whether a kernel is of BLAS, or its name is unknown and its operator multiplies."""
    if kind.classification.library != "unknown" or kind.classification.split_k:
        return _is_blas_gemm(kind)
    if kind.is_gemm:
        return True
    return kind.is_nameless and find(kind.op.name).product is not None


def _with_types(kind: Kind, logged: KernelName) -> Kind:
    """Return a kind with what the library logged: settled, in conflict with it, or as it was."""
    found = kind.classification
    operation, _, _ = logged.reason.partition(":")
    types = f"{operation} as {logged.a} x {logged.b}"
    if found.precision is Precision.UNKNOWN:
        return kind.changed(
            types,
            role=found.role if kind.is_gemm else Role.GEMM,
            precision=logged.precision,
            a=logged.a,
            b=logged.b,
            scaling=logged.scaling or found.scaling,
            library=logged.library if found.library == "unknown" else found.library,
            source="library",
        )
    if alike(found.precision, logged.precision):
        return kind
    named = f"the name says {found.precision.value} ({found.reason})"
    found = replace(
        found,
        precision=Precision.UNKNOWN,
        conflict=f"{named}, and it is {types}",
    )
    return kind._replace(classification=found)

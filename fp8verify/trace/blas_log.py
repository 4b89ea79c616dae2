"""Read what cuBLASLt and hipBLASLt log of themselves: the types and sizes of each matrix product.

cuBLASLt (13.1, CUBLASLT_LOG_MASK=2) writes a line for each product that any framework asks of
cuBLAS or cuBLASLt, hipBLASLt (HIPBLASLT_LOG_MASK=2) the same with its own name, or a line for
`hipblaslt-bench` (mask 32). With the API mask (16) the types stand in the query for an algorithm
before a product. Times are not logged, so a product counts by its FLOPs. The number in a line
is the thread's. BLAS is column-major: a row-major layer's weight is BLAS' A, its input B.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final, NamedTuple

import msgspec

from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.text import counted
from fp8verify.trace.build import fill
from fp8verify.trace.columns import SEPARATOR, Columns, Interner, OpColumns
from fp8verify.trace.rows import RowCollector
from fp8verify.trace.source import Glance, Reading, Source
from fp8verify.trace.tables import Step, Trace

_LINE: Final = lazy_pattern(
    r"\[(cublasLt|HIPBLASLT)\](?:\[(\d{1,10})\])?\[(Trace|Api)\]\[(\w{1,80})\]"
)
_IS_LOG: Final = lazy_pattern(r"\[(?:cublasLt|HIPBLASLT)\]\[|hipblaslt-bench -")
_BENCH: Final = "hipblaslt-bench "
_NUMBER: Final = lazy_pattern(r"\b(rows|cols|batch_?count)=(\d{1,10})\b", 2)
_TYPE: Final = lazy_pattern(r"\btype=(\w{1,24})")
_TRANSPOSED: Final = lazy_pattern(r"\btrans([ab])=(?:OP_)?T", 2)
_SCALE: Final = lazy_pattern(r"\b[ab]ScaleMode=(\w{1,60})", 2)
_TILE: Final = lazy_pattern(r"\btile=(?:MATMUL_TILE_)?(\d{1,5}x\d{1,5})")
# Products that become rows of a trace one by one; more are summed by kind.
_MAX_ROWS: Final = 200_000
_MOST_KINDS: Final = 1 << 14
_MOST_THREADS: Final = 1 << 12
_FLOPS_PER_NS: Final = 10**6
_MOST_FLOPS: Final = 1 << 54  # of one product; a GPU would take ten seconds for it
_FLOPS: Final = "a BLAS log has no times: all shares are of FLOPs"
_SEQUENCE: Final = "its steps are the shortest sequence of products that repeats: a step, or a micro-batch"
_NO_SEQUENCE: Final = "no sequence of products repeats, so the steps are unknown"
# As library_types.h ("R_8F_E4M3"), hipblasltDatatype_to_string or hipblaslt-bench ("f8_r") call
# them, without prefix and suffix.
_ELEMENTS: Final = {
    "8f_e4m3": "e4m3", "f8": "e4m3", "8f_e5m2": "e5m2", "bf8": "e5m2",
    "6f_e2m3": "e2m3", "f6": "e2m3", "6f_e3m2": "e3m2", "bf6": "e3m2",
    "4f_e2m1": "e2m1", "f4": "e2m1", "16bf": "bf16", "bf16": "bf16", "16f": "fp16", "f16": "fp16",
    "32f": "fp32", "f32": "fp32", "64f": "fp64", "f64": "fp64",
    "8i": "int8", "i8": "int8", "32i": "int32", "i32": "int32",
}  # fmt: skip
# What FP32 operands are rounded to first: COMPUTE_32F_FAST_TF32, xf32_r, f32_bf16_r.
_ROUNDED: Final = (
    (lazy_pattern(r"FAST_TF32|xf32", 2), "tf32"),
    (lazy_pattern(r"FAST_16BF|f32_bf16", 2), "bf16"),
    (lazy_pattern(r"FAST_16F|f32_f16", 2), "fp16"),
)
# cublasLtMatmulMatrixScale_t, hipblasLtMatmulMatrixScale_t.
_SCALES: Final = (
    (lazy_pattern(r"VEC\d+_UE8M0"), "ue8m0"),
    (lazy_pattern(r"VEC\d+_UE4M3"), "ue4m3"),
    (lazy_pattern(r"OUTER_VEC"), "rowwise"),
    (lazy_pattern(r"VEC128|BLK\d+"), "blockwise"),
    (lazy_pattern(r"SCALAR"), "tensorwise"),
)
_TORCH: Final = {
    "e4m3": "Float8_e4m3fn",
    "e5m2": "Float8_e5m2",
    "e2m1": "Float4_e2m1fn_x2",
    "bf16": "BFloat16",
    "fp16": "Half",
    "fp32": "float",
    "fp64": "double",
}


class Product(NamedTuple):
    """One call of the library, (m, k) by (k, n) for each of a batch, in row-major terms.

    Attributes:
        name: as a kernel of it would be called: "cublasLtMatmul_e4m3_e5m2_bf16".
        a: element type of the row-major left operand, which is BLAS' B.
        b: of the right one.
        tile: "128x256" if the library's choice is logged.
    """

    name: str
    a: str | None
    b: str | None
    batch: int
    m: int
    n: int
    k: int
    tile: str = ""

    @property
    def flops(self) -> int:
        """2·batch·m·n·k."""
        return 2 * self.batch * self.m * self.n * self.k


class ProductLog:
    """The products of a log, to be iterated over once: (thread, product), in order.

    Attributes:
        untyped: calls of products whose types no line gives.
        cut: lines of products that end early.
        library: "cuBLASLt" or "hipBLASLt".
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.untyped = 0
        self.cut = 0
        self.library = "cuBLASLt"
        self._lines = lines

    def __iter__(self) -> Iterator[tuple[int, Product]]:
        api: dict[int, _ApiCalls] = defaultdict(_ApiCalls)
        held: list[tuple[int, Product]] = []
        is_traced = False
        follows_call = False
        for line in self._lines:
            call = _call_of(line)
            if call is None:
                # The last line, cut before what would tell it from others.
                is_like_a_call = follows_call or line.startswith("[")
                has_end = line.endswith("\n")
                if line.strip() and is_like_a_call and not has_end:
                    self.cut += 1
                follows_call = False
                continue
            follows_call = True
            self.library = call.library
            if call.kind == "Trace" and call.function.endswith("matmul"):
                is_traced = True
                held.clear()  # what the API's lines said is said again
                product = _described(line, self.library)
                self.cut += product is None
                if product is not None:
                    yield call.thread, product
            elif call.kind == "Api" and not is_traced:
                of_thread = api[call.thread % _MOST_THREADS]
                product = of_thread.take(call.function, line)
                if product is not None and len(held) < _MAX_ROWS:
                    held.append((call.thread, product))
        if not is_traced:
            self.untyped = sum(calls.untyped for calls in api.values())
        yield from held


class _ApiCalls:
    """What the API's lines of one thread say just before each product."""

    def __init__(self) -> None:
        self.untyped = 0
        self._layouts: list[str] = []
        self._queried: Product | None = None

    def take(self, function: str, line: str) -> Product | None:
        """Take a line; return the product if it is the call of one."""
        name = function.replace("_", "")
        if name.endswith("layoutcreate"):
            layout = line[line.find("type=") :]
            self._layouts = [*self._layouts[-3:], layout]
        elif name.endswith("getheuristic"):
            self._queried = _described(line, "cuBLASLt") or self._queried
        if not name.endswith("matmul"):
            return None
        product = self._queried
        if product is None and len(self._layouts) >= 3:
            a, b, *_, d = self._layouts
            product = _product(a, b, d, "", "", "cuBLASLt")
        self.untyped += product is None
        self._queried = None
        self._layouts = []
        return product


def glance(source: Source) -> Glance:
    """Look for a line of the logger near the start."""
    lines = islice(source.lines(), 2000)
    begins = (line[:400] for line in lines)
    is_log = any(map(_IS_LOG.search, begins))
    return Glance(is_trace=is_log, is_blas_log=is_log)


def products_of(source: Source) -> list[tuple[int, Product]]:
    """Return the products of a log by thread, in order, at most as many as become rows.

    Raises:
        InputError: it cannot be unpacked.
    """
    return list(islice(ProductLog(source.lines()), _MAX_ROWS))


def read(source: Source, how: Reading) -> Trace:
    """Read the products of a log; each takes a nanosecond for a million FLOPs.

    Raises:
        InputError: none of its lines gives the types of a product.
    """
    del how
    log = ProductLog(source.lines())
    order = array("i")
    kinds = Interner()
    threads = set()
    counts: Counter[int] = Counter()
    for thread, product in log:
        if len(kinds) >= _MOST_KINDS:
            product = product._replace(m=0, n=0, k=0)
        kind = kinds[product]
        counts[kind] += 1
        threads.add(thread)
        if len(order) <= _MAX_ROWS:
            order.append(kind)
    if not counts:
        name = log.library.upper()
        raise InputError(
            f"{source.name} is a log of {log.library}, but no line in it gives the types of a "
            "product.",
            f"Record it with {name}_LOG_MASK=2 and {name}_LOG_FILE=FILE.",
        )
    # A row for each product, or for each kind if there are too many.
    is_whole = len(order) <= _MAX_ROWS
    products = list(kinds)
    rows = []
    if is_whole:
        for kind in order:
            rows.append((products[kind], 1))
    else:
        for kind, calls in counts.items():
            rows.append((products[kind], calls))
    columns = _columns(rows)
    if is_whole:
        columns.steps = _steps(order, columns.ops)
    trace = Trace(source=source.name, in_flops=True)
    fill(trace, columns)
    health = trace.health
    health.events = counts.total() + log.cut + log.untyped
    health.skipped_events = log.untyped
    has_odd = len(kinds) > _MOST_KINDS
    is_damaged = source.damage is not None
    health.truncated = log.cut > 0 or has_odd or is_damaged
    health.notes += _notes(log, has_odd=has_odd)
    limits = (
        f"{_FLOPS}; products that {log.library} does not compute (CUTLASS, Triton) are not in it, "
        "and what a CUDA graph replays is in it once; its lines are of "
        f"{counted(threads, 'thread')}"
    )
    trace.remarks = [limits, _SEQUENCE if columns.steps else _NO_SEQUENCE]
    return trace


def _notes(log: ProductLog, *, has_odd: bool) -> Iterator[str]:
    """Yield what of a log was not read."""
    if has_odd:
        yield f"the sizes of only {_MOST_KINDS} kinds of products were read"
    if log.cut:
        yield f"{counted(log.cut, 'line')} of products cut short"
    if log.untyped:
        yield f"{log.untyped} products have no types: record with CUBLASLT_LOG_MASK=2"


def _columns(rows: list[tuple[Product, int]]) -> Columns:
    """Return products, each so many times, with operators that say their types."""
    collector = RowCollector()
    begin = 0
    columns = collector.columns
    times = []
    for number, (product, calls) in enumerate(rows):
        length = calls * product.flops // _FLOPS_PER_NS
        end = begin + max(1, length)
        operator = product.name.partition("_")[0]
        columns.add_operator(number, operator, _inputs(product), begin, end)
        times.append((product.name, begin, end, None, None, None))
        begin = end
    collector.kernels(times)
    columns.op_ids = array("q", range(len(rows)))
    columns.note_ends((begin,))
    return columns


def _steps(order: array[int], ops: OpColumns) -> list[Step]:
    period = _period(order)
    if not period:
        return []
    firsts = range(0, len(order) - period + 1, period)
    steps = []
    for number, first in enumerate(firsts, 1):
        last = first + period - 1
        step = Step(
            number=number,
            start_ns=ops.start[first],
            end_ns=ops.end[last] - 1,
        )
        steps.append(step)
    return steps


def _inputs(product: Product) -> bytes:
    types = []
    for element in (product.a, product.b):
        name = element or ""
        types.append(f"c10::{_TORCH.get(name, name)}")
    batch = []
    if product.batch > 1:
        batch.append(product.batch)
    dims = [
        [*batch, product.m, product.k],
        [*batch, product.k, product.n],
    ]
    parts = (
        msgspec.json.encode(types),
        msgspec.json.encode(dims),
        b"",
    )
    return SEPARATOR.join(parts)


def _period(order: array[int]) -> int:
    """Return the length of the shortest sequence that repeats from the start on; 0 for none."""
    # Of each, the longest proper prefix that ends there, too.
    longest = array("i", [0]) * len(order)
    for index in range(1, len(order)):
        length = longest[index - 1]
        while length and order[index] != order[length]:
            length = longest[length - 1]
        if order[index] == order[length]:
            length += 1
        longest[index] = length
    period = len(order) - longest[-1]
    if period > 1 and 2 * period <= len(order):
        return period
    return 0


class _LoggedCall(NamedTuple):
    """What the beginning of a line says: `kind` is "Trace" or "Api"."""

    library: str
    thread: int
    kind: str
    function: str


# ---- the parts of a line


def _call_of(line: str) -> _LoggedCall | None:
    """Return the call that a line is of, None if it is of none.

    A command line of hipblaslt-bench is the trace of a product.
    """
    if _BENCH in line:
        return _BENCH_CALL
    head = _LINE.search(line, 0, 200)
    if head is None:
        return None
    logger, thread, kind, function = head.groups()
    return _LoggedCall(
        library=_LIBRARIES[logger],
        thread=int(thread or 0),
        kind=kind,
        function=function.lower(),
    )


_LIBRARIES: Final = {
    "cublasLt": "cuBLASLt",
    "HIPBLASLT": "hipBLASLt",
}


_BENCH_CALL: Final = _LoggedCall(
    library="hipBLASLt",
    thread=0,
    kind="Trace",
    function="matmul",
)


class _Matrix(NamedTuple):
    """Type and sizes of a matrix, 0 for a size that is not said."""

    element: str | None
    rows: int
    columns: int
    batch: int


def _part(line: str, key: str) -> str | None:
    """Return a key and the brackets behind it, None if these are not there or do not end."""
    start = line.find(f"{key}[")  # four times as fast as an expression for all parts
    end = line.find("]", start)
    if start < 0 or end < 0:
        return None
    return line[start:end]


def _described(line: str, library: str) -> Product | None:
    """Return the product that a line describes, None if it does not, or ends early."""
    if _BENCH in line:
        # The number of the solution and the factors say nothing of types and sizes.
        _, _, arguments = line.partition(_BENCH)
        return _bench_product(arguments.rstrip())
    a = _part(line, "Adesc=")
    b = _part(line, "Bdesc=")
    d = _part(line, "Ddesc=")
    compute = _part(line, "computeDesc=")
    algo = _part(line, "algo=") or ""
    if a is None or b is None or d is None or compute is None:
        return None
    # The pointers to scales differ from call to call, and are the only thing that does.
    words = [word for word in compute.split(" ") if "Pointer=" not in word]
    return _product(a, b, d, " ".join(words), algo, library)


def _matrix(text: str) -> _Matrix:
    sizes: dict[str, int] = {}
    for name, value in _NUMBER.findall(text):
        key = name.lower().replace("_", "")
        sizes[key] = int(value)
    element = None
    kind = _TYPE.search(text)
    if kind is not None:
        element = _element_of(kind[1])
    return _Matrix(
        element=element,
        rows=sizes.get("rows", 0),
        columns=sizes.get("cols", 0),
        batch=max(1, sizes.get("batchcount", 1)),
    )


@lru_cache(_MOST_KINDS)
def _product(
    a_text: str,
    b_text: str,
    d_text: str,
    compute: str,
    algo: str,
    library: str,
) -> Product | None:
    """Return the product of A, B and D as BLAS has them; None if a size is missing."""
    a = _matrix(a_text)
    b = _matrix(b_text)
    d = _matrix(d_text)
    inner = _inner_size(a, d, compute)
    if not d.rows or not d.columns or inner is None:
        return None
    scale = _first_group(_SCALE.search(compute))
    elements = (a.element, b.element, d.element)
    product = Product(
        name=_name(library, elements, compute, scale),
        a=b.element,
        b=a.element,
        batch=d.batch,
        m=d.columns,
        n=d.rows,
        k=inner,
        tile=_first_group(_TILE.search(algo)),
    )
    return _possible(product)


def _inner_size(a: _Matrix, d: _Matrix, compute: str) -> int | None:
    """Return K, None if it is open."""
    if compute:
        sides = [side.lower() for side in _TRANSPOSED.findall(compute)]
        if "a" in sides:
            return a.rows
        return a.columns
    # Layouts alone: K is the side of A that D does not have.
    is_square = a.rows == a.columns
    has_none_of_d = d.rows not in (a.rows, a.columns)
    if has_none_of_d and not is_square:
        return None
    if a.rows == d.rows:
        return a.columns
    return a.rows


def _first_group(match: re.Match[str] | None) -> str:
    if match is None:
        return ""
    return match[1]


@lru_cache(_MOST_KINDS)
def _bench_product(text: str) -> Product | None:
    """Return the product of a command line of hipblaslt-bench."""
    given: dict[str, str] = {}
    for word, value in pairwise(text.split()):
        if word.startswith("-"):
            given[word] = value
    sizes = [
        given.get("--batch_count", "1"),
        given.get("-m", ""),
        given.get("-n", ""),
        given.get("-k", ""),
    ]
    # What the operands are cast to first, where that is another type.
    cast_a = _element_of(given.get("--compute_input_typeA", ""))
    cast_b = _element_of(given.get("--compute_input_typeB", ""))
    a = cast_a or _element_of(given.get("--a_type", ""))
    b = cast_b or _element_of(given.get("--b_type", ""))
    d = _element_of(given.get("--d_type", ""))
    have_sizes = all(map(_is_size, sizes))
    if a is None or b is None or not have_sizes:
        return None
    batch, rows, columns, k = map(int, sizes)
    scale = ""
    scale_modes = (given.get("--scaleA"), given.get("--scaleB"))
    if scale_modes == ("3", "3"):
        scale = "VEC32_UE8M0"
    compute = given.get("--compute_type", "")
    product = Product(
        name=_name("hipBLASLt", (a, b, d), compute, scale),
        a=b,
        b=a,
        batch=batch,
        m=columns,
        n=rows,
        k=k,
    )
    return _possible(product)


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) < 11


def _possible(product: Product) -> Product | None:
    if product.flops <= _MOST_FLOPS:
        return product
    return None


def _element_of(text: str) -> str | None:
    """Return the element type that the library calls so; None if it is not known."""
    plain = text.lower().removesuffix("_r")
    for prefix in ("r_", "hip_r_"):
        plain = plain.removeprefix(prefix)
    for suffix in ("_fnuz", "_ocp", "_ext"):
        plain = plain.removesuffix(suffix)
    return _ELEMENTS.get(plain)


def _name(
    library: str,
    types: tuple[str | None, ...],
    compute: str,
    scale: str,
) -> str:
    """Return the name of a product of A and B to D, in BLAS' order, as names of kernels are."""
    a, b, d = types
    if a == b == "fp32":
        rounded = _first_of(_ROUNDED, compute)
        a = rounded or a
        b = rounded or b
    prefix = library.removesuffix("Lt").lower()
    words = [element or "other" for element in (a, b, d)]
    scaling = _first_of(_SCALES, scale)
    if scaling is not None:
        words.append(scaling)
    return f"{prefix}LtMatmul_{'_'.join(words)}"


def _first_of(words: Iterable[tuple[re.Pattern[str], str]], text: str) -> str | None:
    """Return the word of the first pattern that a text holds, None if it holds none."""
    for pattern, word in words:
        if pattern.search(text):
            return word
    return None

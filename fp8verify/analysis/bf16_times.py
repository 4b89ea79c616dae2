"""What the GEMMs in low precision of a run would have taken in BF16, size by size.

GEMMs in BF16 of the same trace tell it best: they ran on this GPU, at these clocks. Next are those
of a run in BF16 on such a GPU, then the measured rates of the GPU's model. Nothing is assumed of a
scaling: how much a kernel gains or loses is the time that it took against this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final, NamedTuple, TypeAlias

from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import GemmShape, Kind
from fp8verify.analysis.rates import RateTable
from fp8verify.terms import Leg, Precision
from fp8verify.thresholds import (
    LEAST_MEASURED,
    LEAST_TURNED,
    NEGLIGIBLE,
    SLOW_GEMM,
)

SIXTEEN_BIT: Final = (Precision.BF16, Precision.FP16)
_Sides: TypeAlias = "tuple[int, ...]"
_NO_SIZES: Final = "the sizes of GEMMs were not recorded"
_NO_RATES: Final = "no rates of BF16 GEMMs are known for {}"


class SizeTotal(NamedTuple):
    """All GEMMs of one size and kind of precision.

    Attributes:
        shape: the size.
        kind: that of the kernel that takes most time.
        calls: how many.
        time_ns: of all of them.
        best_ns: of one, where they ran fastest.
    """

    shape: GemmShape
    kind: Kind
    calls: int
    time_ns: int
    best_ns: float

    @property
    def tflops(self) -> float:
        """Their rate."""
        if not self.time_ns:
            return 0.0
        return self.shape.flops * self.calls / self.time_ns / 1000


class Slow(NamedTuple):
    """GEMMs in low precision that took longer than BF16 takes at their size."""

    total: SizeTotal
    bf16_tflops: float
    lost_ns: float


class Saving(NamedTuple):
    """What low precision saved.

    Attributes:
        saved_ns: what BF16 would have taken less what was taken, negative where low precision is
            slower; None if it is not known.
        unknown: why not, or empty.
        slow: the sizes at which it is slower, what costs most first.
    """

    saved_ns: float | None
    unknown: str
    slow: tuple[Slow, ...] = ()

    @property
    def lost_ns(self) -> float:
        """What the slow ones cost."""
        return sum(one.lost_ns for one in self.slow)


def by_size(rows: Iterable[GemmRow]) -> list[SizeTotal]:
    """Add up GEMMs by size; the time of split-K reductions counts as their GEMM's."""
    of_sizes: dict[GemmShape, list[GemmRow]] = defaultdict(list)
    for row in rows:
        shape = shape_of(row)
        if shape is not None:
            of_sizes[shape].append(row)
    totals = []
    for shape, alike in of_sizes.items():
        products = [row for row in alike if row.calls]
        if products:
            time_ns = sum(row.amount for row in alike)
            totals.append(_size_total(shape, products, time_ns))
    return totals


def _size_total(
    shape: GemmShape,
    products: Sequence[GemmRow],
    time_ns: int,
) -> SizeTotal:
    """Return the sums of GEMMs of one size, whose time with split-K reductions is given."""
    calls = sum(row.calls for row in products)
    reduced_ns = time_ns - sum(row.amount for row in products)
    fastest_ns = min(row.amount / row.calls for row in products)
    longest = max(products, key=lambda row: row.amount)
    return SizeTotal(
        shape=shape,
        kind=longest.kind,
        calls=calls,
        time_ns=time_ns,
        best_ns=fastest_ns + reduced_ns / calls,
    )


def shape_of(row: GemmRow) -> GemmShape | None:
    """Return the size of a GEMM; of a kernel that is its own operator, by its tensors.

    Such a kernel gets A (…, k), B (n, k) or (k, n), and the output (…, n) that it writes.
    """
    if row.shape is not None or len(row.kind.op.dims) < 3:
        return row.shape
    a, b, *others = row.kind.op.dims
    if len(a) < 2 or len(b) != 2:
        return None
    *rows, k = a
    if k not in b:
        return None
    n = b[0] if b[1] == k else b[1]
    output = (*rows, n)
    if output not in map(tuple, others):
        return None
    return GemmShape(
        batch=1,
        m=prod(rows),
        n=n,
        k=k,
    )


class Bf16Times:
    """What BF16 takes by size on the GPU of a trace."""

    def __init__(
        self,
        rows: Iterable[GemmRow],
        table: RateTable | None,
        largest_gradient: int | None = None,
        beside: Iterable[GemmRow] = (),
    ) -> None:
        """Take what a trace shows.

        Args:
            rows: its GEMMs.
            table: the measured rates of its GPU, if there are any.
            largest_gradient: how many elements the largest gradient of a parameter has, if known.
            beside: GEMMs of a run in BF16.
        """
        self.table = table
        self._largest_gradient = largest_gradient
        self._same: dict[_Sides, SizeTotal] = {}
        self._turned: dict[_Sides, SizeTotal] = {}
        totals = _timed(beside)
        totals += _timed(rows)  # the last ones count
        for total in totals:
            same = _up_to_transposition(total.shape)
            turned = _in_any_order(total.shape)
            self._same[same] = total
            self._turned[turned] = total

    def time_ns(self, shape: GemmShape) -> float | None:
        """Return what one product takes; None if nothing tells."""
        same = self._same.get(_up_to_transposition(shape))
        if same is not None:
            return same.time_ns / same.calls
        turned = self._turned.get(_in_any_order(shape))
        if turned is not None and min(shape[1:]) >= LEAST_TURNED:
            return turned.time_ns / turned.calls
        if self.table is None:
            return None
        return self.table.time_ns(shape)

    def saving(self, low: Iterable[GemmRow], gpu: str | None) -> Saving:
        """Return what GEMMs in low precision saved."""
        rows = list(low)
        every = 0
        without_sizes = 0
        for row in rows:
            every += row.amount
            if shape_of(row) is None:
                without_sizes += row.amount
        if without_sizes > NEGLIGIBLE * every:
            return Saving(None, _NO_SIZES)
        saved = 0.0
        needed = []
        for row in rows:
            if self._is_in_vain(row):
                saved -= row.amount
            else:
                needed.append(row)
        unknown = 0
        slow = []
        for total in by_size(needed):
            each = self.time_ns(total.shape)
            if each is None:
                unknown += total.time_ns
                continue
            in_bf16 = each * total.calls
            saved += in_bf16 - total.time_ns
            # Another process on the GPU, or its clocks, make a kernel slow here and there.
            is_measured = min(total.shape[1:]) >= LEAST_MEASURED
            if is_measured and total.best_ns > SLOW_GEMM * each:
                slower = Slow(
                    total=total,
                    bf16_tflops=total.shape.flops / each / 1000,
                    lost_ns=total.time_ns - in_bf16,
                )
                slow.append(slower)
        slow.sort(key=lambda one: -one.lost_ns)
        if unknown > NEGLIGIBLE * every:
            why = _NO_RATES.format(gpu or "this GPU")
            return Saving(None, why, tuple(slow))
        return Saving(saved, "", tuple(slow))

    def _is_in_vain(self, row: GemmRow) -> bool:
        """Whether a wgrad is of a weight that no gradient reaches, such as a frozen one.

        A function of a library may compute it all the same. A layer in BF16 does not.
        """
        largest = self._largest_gradient
        if row.leg is not Leg.WGRAD or largest is None:
            return False
        shape = shape_of(row)
        if shape is None:
            return False
        weight = shape.m * shape.n
        return weight > largest


def _timed(rows: Iterable[GemmRow]) -> list[SizeTotal]:
    """Add up the GEMMs in 16 bits by size, as far as they were timed."""
    high = []
    for row in rows:
        if row.precision in SIXTEEN_BIT and not row.untimed:
            high.append(row)
    return [total for total in by_size(high) if total.time_ns]


def _up_to_transposition(shape: GemmShape) -> _Sides:
    sides = sorted((shape.m, shape.n))
    return (shape.batch, *sides, shape.k)


def _in_any_order(shape: GemmShape) -> _Sides:
    sides = sorted(shape[1:])
    return (shape.batch, *sides)

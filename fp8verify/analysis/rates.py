"""How fast GPUs multiply matrices of each size, as measured: the tables of `rates.json`.

`fp8verify doctor --save-rates FILE` measures such a table anew, and FP8VERIFY_RATES=FILE
makes it count before those that ship.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from fp8verify.analysis.gpus import part_of
from fp8verify.analysis.kinds import GemmShape
from fp8verify.errors import InputError

VARIABLE: Final = "FP8VERIFY_RATES"
_SHIPPED: Final = Path(__file__).with_name("rates.json")
# The columns of a row of a table.
BF16: Final = "bf16"
TENSORWISE: Final = "tensorwise"
ROWWISE: Final = "rowwise"
COLUMNS: Final = (BF16, TENSORWISE, ROWWISE)
_Row = tuple[Annotated[float, Meta(ge=0)] | None, ...]


class RateTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of products (m, k) x (k, n) on one model of GPU.

    Attributes:
        gpu: its name.
        like: further models with the same matrix units, memory and clocks.
        date: when it was measured.
        versions: of torch, CUDA and the driver.
        sides: m, n and k take each of these values.
        rows: by "MxN" with m <= n, a row for each k: TFLOP/s in each of `COLUMNS`, null where the
            product did not run.
    """

    gpu: str
    date: str
    versions: dict[str, str]
    sides: tuple[int, ...]
    rows: dict[str, tuple[_Row, ...]]
    like: tuple[str, ...] = ()

    def tflops(
        self,
        shape: GemmShape,
        column: str = BF16,
    ) -> float | None:
        """Return the rate at a size, between measured ones by their logarithms.

        A batch counts as one product of more rows. What is smaller than the smallest size takes as
        long as that one, as kernels compute whole tiles; what is larger runs at its rate.
        """
        m, n = sorted((shape.batch * shape.m, shape.n))
        k = shape.k
        smallest = self.sides[0]
        around_m = _between(self.sides, m)
        around_n = _between(self.sides, n)
        around_k = _between(self.sides, k)
        log_rate = 0.0
        for of_m, of_n, of_k in product(around_m, around_n, around_k):
            measured = self._measured(
                of_m.position,
                of_n.position,
                of_k.position,
                column,
            )
            if not measured:
                return None
            weight = of_m.weight * of_n.weight * of_k.weight
            log_rate += weight * math.log(measured)
        whole_tiles = math.prod(max(side, smallest) for side in (m, n, k))
        return math.exp(log_rate) * (m * n * k) / whole_tiles

    @property
    def is_whole(self) -> bool:
        """Whether it has a row for each size, in the order of its sides."""
        sides = self.sides
        positive = {side for side in sides if side > 0}
        if not sides or list(sides) != sorted(positive):
            return False
        for m, n in combinations_with_replacement(sides, 2):
            rows = self.rows.get(f"{m}x{n}", ())
            if len(rows) != len(sides):
                return False
            if any(len(row) != len(COLUMNS) for row in rows):
                return False
        return True

    def time_ns(
        self,
        shape: GemmShape,
        column: str = BF16,
    ) -> float | None:
        """Return what one product of a size takes."""
        rate = self.tflops(shape, column)
        if not rate:
            return None
        return shape.flops / rate / 1000

    def _measured(
        self,
        m: int,
        n: int,
        k: int,
        column: str,
    ) -> float | None:
        """Return the rate at measured values, by their indices."""
        sides = (self.sides[m], self.sides[n])
        low, high = sorted(sides)
        rows = self.rows[f"{low}x{high}"]
        return rows[k][COLUMNS.index(column)]


class _Neighbor(NamedTuple):
    """A measured value beside one that was not: its index, and how much it counts."""

    position: int
    weight: float


def _between(sides: Sequence[int], side: int) -> list[_Neighbor]:
    """Return the measured values around one.

    What lies outside of them counts as the nearest.
    """
    side = max(side, sides[0])
    side = min(side, sides[-1])
    index = bisect_right(sides, side) - 1
    below = sides[index]
    if below == side:
        return [_Neighbor(index, 1.0)]
    above = sides[index + 1]
    part = math.log(side / below) / math.log(above / below)
    return [
        _Neighbor(index, 1 - part),
        _Neighbor(index + 1, part),
    ]


def rates_of(gpu: str | None) -> RateTable | None:
    """Return the rates of the GPU that a trace names; None if none were measured.

    Raises:
        InputError: the table that the user named cannot be read.
    """
    tables: list[RateTable] = []
    named = os.environ.get(VARIABLE)
    if named:
        tables += _tables(Path(named))
    tables += _tables(_SHIPPED)
    part = part_of(gpu)
    for table in tables:
        gpus = (table.gpu, *table.like)
        if part in map(part_of, gpus):
            return table
    return None


@cache
def _tables(path: Path) -> tuple[RateTable, ...]:
    """Read a file of tables.

    Raises:
        InputError: it is none.
    """
    try:
        with path.open("rb") as file:
            content = file.read(1 << 24)  # a table has some 30 kB
        tables = msgspec.json.decode(content, type=tuple[RateTable, ...])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    for table in tables:
        if not table.is_whole:
            raise _unreadable(path, ValueError("a size is missing"))
    return tables


def _unreadable(path: Path, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or error
    return InputError(
        f"{path} is no table of rates: {why}",
        f"Measure one with `fp8verify doctor --measure --save-rates FILE`, or unset {VARIABLE}.",
    )

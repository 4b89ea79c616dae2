"""One table: sums by name, and which of them are of kernels, of operators, of calls on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from msgspec import Struct, field

from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean
from fp8verify.trace.kernel_table.cells import (
    TIME_UNIT,
    nanoseconds,
    number,
    unquoted,
    whole,
    without_index,
)
from fp8verify.trace.kernel_table.column_names import COUNTER, is_time_of_ncu
from fp8verify.trace.rows import COPY

GUESSED: Final = "table"  # of a script or a report, whose headings are its own
# Different kernels, of which no run has so many; rows of further ones are left out.
MOST_NAMES: Final = 3000
# Ranges of user annotations have rows of the GPU, too.
_RANGE: Final = lazy_pattern(
    r"ProfilerStep|## Call |nccl:|Optimizer\.|FSDP::|DistributedData|Torch-Compiled Region"
    r"|autograd::"
)
_OPERATOR: Final = lazy_pattern(r"\w+::\w+(?:::\w+)*|\w+Backward\d*|_(?!Z)[A-Z]\w+")
_CALL: Final = lazy_pattern(
    r"(?:cuda|cu|hip|hsa_)[A-Z]\w+|hsa_\w+|Activity Buffer Request"
)
# Namespaces of libraries of kernels, in which torch has no operators.
_OF_KERNELS: Final = lazy_pattern(r"(?:ck|ck_tile|cutlass|deep_gemm)::")
# Names of kernels that may multiply, and of operators that do.
_PRODUCT: Final = lazy_pattern(
    r"(?:gemm|gemv|mma|mm|matmul|nvjet|cijk|cublas|cutlass|dot)(?![a-z]{3})",
    re.IGNORECASE,
)
_MULTIPLIES: Final = lazy_pattern(
    r"aten::(?:_scaled_(?:grouped_)?|_grouped_)?(?:(?:add)?(?:mm|bmm|mv)|baddbmm)(?:_v2)?"
)
_COMMUNICATES: Final = lazy_pattern(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce",
    re.IGNORECASE,
)
_WHOLE: Final = 0.98
_ROUNDED: Final = 0.05  # of a share in percent with one decimal


class Sum(NamedTuple):
    """The time of the rows of a name, in ns, and their calls."""

    ns: int = 0
    calls: int = 0

    def plus(self, other: Sum) -> Sum:
        """Return the sum of both."""
        return Sum(
            ns=self.ns + other.ns,
            calls=self.calls + other.calls,
        )


class Fit(Enum):
    """What a line is to a table: a row, something that is known and no row, or nothing known."""

    ROW = auto()
    ASIDE = auto()
    NOT = auto()


class Table(Struct):
    """One table: in which columns it has what, and sums by name.

    Attributes:
        tool: what printed it.
        cells: takes a line apart.
        width: the number of columns.
        indices: those of the columns that `column_names` knows, and of "time".
        unit: of times without their own.
        counters: indices and headings of counters of tensor cores.
        sums: by name.
        on_cpu: those of rows with time on the CPU.
        counted: the source type of a kernel's tensor operations, where counters are in the table.
        total_ns: of all kernels, if the table says it.
        unread: rows that could not be read.
        left_out: rows of more names than are looked at.
        sign: what stands between the cells, "" for spaces.
        is_self_time: whether the times of operators are without those of what they call.
        read_as: the headings that were taken for name, time and calls, where these are guessed.
    """

    tool: str
    cells: Callable[[str], Sequence[str]]
    width: int
    indices: dict[str, int]
    unit: str
    counters: tuple[tuple[int, str], ...] = ()
    sums: dict[str, Sum] = field(default_factory=dict)
    on_cpu: dict[str, Sum] = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)
    total_ns: int | None = None
    shares: float = 0.0
    unread: int = 0
    left_out: int = 0
    sign: str = ""
    is_self_time: bool = False
    read_as: str = ""

    def add(self, cells: Sequence[str]) -> Fit:
        """Add a row; one without a name, a time or a number of calls that can be read is not."""
        if self.width < 0:
            return Fit.ASIDE  # of calls on the CPU
        cells = self._of_its_width(cells)
        if len(cells) != self.width:
            return Fit.NOT
        row = {}
        for what, column in self.indices.items():
            row[what] = cells[column].strip()
        name = unquoted(row["name"])
        time = unquoted(row["time"])
        unit = TIME_UNIT.fullmatch(time)
        if not name and unit is not None:
            self.unit = unit[1]  # ncu's are below the headings
            return Fit.ASIDE
        if self._is_one_too_many(name):
            self.left_out += 1
            return Fit.ASIDE
        self._count(name, row, cells)
        if "metric" in row:
            if not is_time_of_ncu(row["metric"]):
                return Fit.ASIDE
            time = f"{time} {row['unit']}"
        texts = set(map(str.strip, cells))
        has_name_alone = texts <= {"", row["name"]}
        if name and has_name_alone:
            return Fit.ASIDE  # a wrapped name goes on, or a heading within the table
        return self._add_times(name, time, row)

    def _of_its_width(self, cells: Sequence[str]) -> Sequence[str]:
        """Return the cells of a row without pandas' number, or with the type that nvprof left out.

        nvprof names the type of activity in its first row alone, in which the name comes last.
        """
        if len(cells) == self.width + 1:
            return without_index(cells)
        lacks_one = len(cells) == self.width - 1
        ends_with_name = self.indices["name"] == self.width - 1
        if lacks_one and ends_with_name and not self.sign:
            return ["", *cells]
        return cells

    def _is_one_too_many(self, name: str) -> bool:
        if len(self.sums) < MOST_NAMES and len(self.on_cpu) < MOST_NAMES:
            return False
        return name not in self.sums and name not in self.on_cpu

    def _add_times(
        self,
        name: str,
        time: str,
        row: dict[str, str],
    ) -> Fit:
        ns = nanoseconds(time, self.unit)
        calls = whole(row.get("calls", "1"))
        if not name or ns is None or calls is None:
            return Fit.NOT
        cpu_ns = nanoseconds(row.get("cpu", ""), "u")
        sums = self.on_cpu if cpu_ns else self.sums
        self._sum(sums, name, Sum(ns, calls))
        share = number(row.get("share", ""))
        self.shares += share or 0.0
        return Fit.ROW

    def _count(
        self,
        name: str,
        row: dict[str, str],
        cells: Sequence[str],
    ) -> None:
        """Note of what type the counted operations of tensor cores were."""
        counters = []
        for index, metric in self.counters:
            counters.append((metric, cells[index]))
        if "metric" in row:
            counters.append((row["metric"], row["time"]))
        for metric, value in counters:
            counter = COUNTER.search(metric[:200])
            amount = number(value) or 0
            if counter is not None and amount > 0:
                self.counted[name] = counter[1]

    def _sum(
        self,
        rows: dict[str, Sum],
        name: str,
        row: Sum,
    ) -> None:
        before = rows.get(name, Sum())
        if before.ns and self.lists_operators:
            # Without the CPU's columns the row of a compiled operator looks like its kernel's.
            rows[name] = max(before, row)
        else:
            rows[name] = before.plus(row)

    @property
    def lists_operators(self) -> bool:
        """Whether rows may be of operators, beside those of the kernels that they launch."""
        return self.tool in ("key_averages()", GUESSED)

    @property
    def launches(self) -> dict[str, Sum]:
        """The rows to be read: those of kernels and copies, else of operators by themselves.

        Some scripts list products by operator and all else by kernel.
        """
        if not self.has_kernels:
            return self.own_times
        return self.kernels | self.products

    @property
    def products(self) -> dict[str, Sum]:
        """The rows of operators that multiply, of a table where no kernel looks as if it did."""
        has_product = any(map(_PRODUCT.search, self.kernels))
        if has_product or not self.lists_operators:
            return {}
        found = {}
        for name, row in (self.sums | self.on_cpu).items():
            if row.ns and _MULTIPLIES.fullmatch(name):
                found[name] = row
        return found

    @property
    def own_times(self) -> dict[str, Sum]:
        """The rows of operators with the GPU time of the kernels that they launched themselves."""
        if not (self.is_self_time and self.lists_operators):
            return {}
        found = {}
        rows = self.sums | self.on_cpu
        for name, row in rows.items():
            is_range = _RANGE.match(name) is not None
            is_operator = _OPERATOR.fullmatch(name) is not None
            if row.ns and is_operator and not is_range:
                found[name] = row
        return found

    @property
    def kernels(self) -> dict[str, Sum]:
        """The rows of kernels and copies; ranges and compiled operators have rows on both sides."""
        found = {}
        for name, row in self.sums.items():
            if not row.ns or self._is_of_cpu(name):
                continue
            is_compiled = name.startswith("triton_")
            if is_compiled or name not in self.on_cpu:
                found[name] = row
        return found

    @property
    def begins_with_kernel(self) -> bool:
        """Whether the newest name is a kernel's, as far as the rows up to it show."""
        name = next(reversed(self.sums), "")
        if not name or name in self.on_cpu or self._is_of_cpu(name):
            return False
        return self.sums[name].ns > 0 and not COPY.match(name)

    @property
    def has_kernels(self) -> bool:
        """Whether a row is of a kernel."""
        return any(not COPY.match(name) for name in self.kernels)

    @property
    def operators(self) -> dict[str, int]:
        """The names of operators and ranges, and how often they ran."""
        calls = {}
        for name, row in self.sums.items():
            if self._is_of_cpu(name):
                calls[clean(name)] = row.calls
        for name, row in self.on_cpu.items():
            calls[clean(name)] = row.calls
        return calls

    @property
    def is_whole(self) -> bool:
        """Whether it lists all kernels, as far as it says so.

        What may be missing is small beside what computes: waiting collectives can take nearly all
        of the time, and then shares of one decimal hide all GEMMs.
        """
        listed_ns = 0
        waits_ns = 0
        for name, row in self.kernels.items():
            listed_ns += row.ns
            if _COMMUNICATES.search(name):
                waits_ns += row.ns
        if self.total_ns is not None:
            return listed_ns >= _WHOLE * self.total_ns
        computes = 1 - waits_ns / (listed_ns or 1)
        missing = max(100 - self.shares, _ROUNDED)
        adds_up = missing <= 100 * (1 - _WHOLE) * computes
        if self.tool == GUESSED:
            return adds_up
        if self.tool == "key_averages()":
            return False
        return adds_up or not self.shares

    def _is_of_cpu(self, name: str) -> bool:
        """Whether a name is of a call, an operator or a range; other tools list no operators."""
        if _OF_KERNELS.match(name):
            return False
        is_operator = _RANGE.match(name) or _OPERATOR.fullmatch(name)
        if is_operator and self.lists_operators:
            return True
        return _CALL.fullmatch(name) is not None


def no_cells(_: str) -> Sequence[str]:
    """Take no line apart, for a table that has no lines, or none that count."""
    return ()

"""Read tables of kernels: a column of names, one of times, perhaps one of calls, in any layout.

torch's key_averages(), `nsys stats`, ncu, rocprof, CUTLASS's profiler, TraceLens and HTA print them
aligned by spaces or dashes, in boxes, as Markdown, CSV, TSV or JSON, in a file or within a log. A
table does not say when kernels ran, nor which operator launched them; rows of operators show at
least that there was a backward pass.
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from fp8verify.errors import InputError
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import COUNTED
from fp8verify.text import clean, counted
from fp8verify.trace.columns import SEPARATOR
from fp8verify.trace.rows import COPY, RowCollector
from fp8verify.trace.source import Glance, Reading, Source, not_a_trace
from fp8verify.trace.tables import Health, Trace
from fp8verify.trace.unknown import unknown_file

_NS: Final = {
    "n": 1,
    "u": 10**3,
    "m": 10**6,
    "": 10**9,
}  # by the prefix of s, sec, second
_IN_CELLS: Final = "?"  # where only the cells have units
_JSON_ROWS: Final = lazy_pattern(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{")
_JSON_START: Final = lazy_pattern(r"[\[{]")
_UNIT: Final = r"([num]?)s(?:ec(?:ond)?s?)?"
# What a column holds, by headings as `_heading` spells them. The first that a table has counts.
_COLUMNS: Final = {
    "name": (
        "kernel name",
        "kernelname",
        "kernel_name",
        "name",
        "kernel",
        "key",
        "operation",
        *("kernels", "operator", "op", "op name", "gpu kernel", "cuda kernel"),
    ),
    "calls": (
        *("# of calls", "number of calls", "instances", "calls", "count"),
        "kernel duration (us)_count",
        *("# calls", "#calls", "n calls", "launches", "invocations", "occurrences"),
    ),
    "cpu": ("self cpu", "cpu total", "self cpu total", "self_cpu_time_total"),
    "share": (
        *("time (%)", "percentage", "self cuda %", "% step", "% of step"),
        *("% of total", "% total", "% time", "time %", "%", "pct"),
    ),
    # ncu's long form
    "metric": ("metric name",),
    "unit": ("metric unit",),
    "value": ("metric value",),
}
# Tool, heading of the time (a group is its unit), unit where neither heading nor cell has one.
_TIMES: Final = tuple(
    (tool, lazy_pattern(pattern), unit)
    for tool, pattern, unit in (
        # torch 1.6 to 2.13, profiler_util._build_table: "Self CUDA", "Self XPU", "Self CUDA total"
        ("key_averages()", r"self (?!cpu\b)[a-z]+\d?(?: time| total)*", "u"),
        (
            "key_averages()",
            r"self_(?!cpu)[a-z]+_time_total",
            "u",
        ),  # attributes of its events
        ("key_averages()", r"(?:cuda|xpu|hip|device)(?: time)? total", "u"),
        (
            "nsys",
            rf"total time(?: \({_UNIT}\))?",
            "n",
        ),  # cuda_gpu_kern_sum, 2021 to 2026
        (
            "rocprof",
            rf"total_?duration_?\(?{_UNIT}\)?",
            "n",
        ),  # rocprof --stats, rocprofv3 --stats
        (
            "ncu",
            rf"gpu__time_duration\.(?:sum|avg|max)(?: \({_UNIT}\))?",
            "n",
        ),  # --csv --page raw
        ("nsys", rf"(?:kernel )?dur(?:ation)? \({_UNIT}\)", "n"),  # cuda_gpu_trace
        ("rocprof", rf"duration_?{_UNIT}", "n"),  # results.csv of rocprof v1
        ("ncu", r"duration", "n"),  # --page details, with a column of units
        # kernel_summary of generate_perf_report_pytorch.py, 171dd747 (2026-08). Names beside its
        # "Kernel Time (µs)_sum" are operators'; rocprof_analysis.py calls ns "(ms)".
        ("TraceLens", rf"kernel duration \({_UNIT}\)_sum", "u"),
        # BreakdownAnalysis.get_gpu_kernel_breakdown, f4d0062 (2026-05); Top Kernels of
        # rocprofiler-compute, ROCm/rocprofiler-compute#566
        ("HTA or rocprofiler-compute", rf"sum \({_UNIT}\)", "u"),
        # print_csv_header_ of performance_report.cpp, CUTLASS 7107b05 (2026-08): ms
        ("CUTLASS profiler", rf"runtime(?: \({_UNIT}\))?", "m"),
    )
)
_OF_NSYS: Final = frozenset(
    {"time (%)", "instances", "start (ns)", "start (s)", "avg (ns)", "corrid", "grdx"}
)
# Tables of scripts and reports have headings of their own: words for a total, and its unit.
_GUESSED: Final = "table"
_WORDS: Final = (
    "total|sum|self|gpu|cuda|hip|xpu|device|kernel|elapsed|time|duration|dur"
)
_ANY_TIME: Final = (
    lazy_pattern(rf"total(?:[ _]+(?:{_WORDS}))*[ _]*\(?{_UNIT}\)?"),
    lazy_pattern(rf"(?:(?:{_WORDS})[ _]*)*\(?{_UNIT}\)?"),
    # The cells have the unit.
    lazy_pattern(rf"(?:(?:{_WORDS})[ _]*)*(?:time|duration|dur|total)()"),
)
_SELF: Final = lazy_pattern(r"self[ _]")
# Tables with these headings are of calls on the CPU or of ranges.
_OTHERS: Final = frozenset({"num calls", "range", "style", "pushpop id", "api name"})

# A cell that begins with a word for names, as headings have one: to take every row apart for its
# headings would take longer than to read it. Of lower case, and letter first, it is much faster.
_AROUND: Final = "\\s\"'|,;\ufeff\u2502\u2503\u2551"
_HINT: Final = lazy_pattern(
    rf"[kno](?<![^{_AROUND}].)"
    r"(?:ernel(?:s|_?name)?|ame|ey|perat(?:or|ion)|p)"
    rf"(?![^{_AROUND}])"
)
_RULE: Final = lazy_pattern(r"(?<![-+|:])-{3,}(?: {1,3}-{3,})+")
_DASHES: Final = lazy_pattern(r"-+")
_GAP: Final = lazy_pattern(r" {2,}")
_DELIMITERS: Final = ("\u2502", "\t", "|", ",", ";")
_HEAVY: Final = {
    0x2503: 0x2502,
    0x2551: 0x2502,
}  # rich draws headings with other lines than rows
_IS_RULED: Final = lazy_pattern(r"[\s|:+=\u2500-\u257f-]*")
_ROUND_BRACKETS: Final = str.maketrans("[]", "()")
_MICRO: Final = dict.fromkeys((0xB5, 0x3BC, 0xFFFD), "u")  # in Latin-1 it is no UTF-8
_TOTAL: Final = lazy_pattern(r"Self (?!CPU )[A-Z][A-Z0-9]* time total: (\S+)")
_TIME_UNIT: Final = lazy_pattern(_UNIT)
# Thousands are apart by commas, or by the spaces of other languages.
_APART: Final = ",'\u0020\u00a0\u202f"
_TOGETHER: Final = str.maketrans("", "", _APART)
_WHOLE_NUMBER: Final = lazy_pattern(rf"(\d[\d{_APART}]{{0,21}})(?:\.0{{0,6}})?")
_AMOUNT: Final = lazy_pattern(
    rf"((?:\d{{1,3}}(?:[{_APART}]\d{{3}}){{1,6}}|\d{{1,21}})"
    r"(?:\.\d{0,12})?(?:e[+-]?\d{1,2})?)"
    rf" ?(?:{_UNIT})?"
)
_COUNTED: Final = lazy_pattern(
    r"ops_path_tensor_(?:op_\w+?_)?src_([a-z0-9]+(?:_fp\d)*?)(?:_dst|_sp|\.)"
)

# Ranges of user annotations have rows of the GPU, too.
_RANGE: Final = lazy_pattern(
    r"ProfilerStep|## Call |nccl:|Optimizer\.|FSDP::|DistributedData|Torch-Compiled Region"
    r"|autograd::"
)
_OPERATOR: Final = lazy_pattern(r"\w+::\w+(?:::\w+)*|\w+Backward\d*|_(?!Z)[A-Z]\w+")
_CALL: Final = lazy_pattern(
    r"(?:cuda|cu|hip|hsa_)[A-Z]\w+|hsa_\w+|Activity Buffer Request"
)
# What operators multiply, whose rows do not say it: nothing else is allowed (or FP4, which counts as
# low, too).
_FP8_PAIR: Final = b'["c10::Float8_e4m3fn","c10::Float8_e4m3fn"]'
_TAKES: Final = dict.fromkeys(
    ("aten::_scaled_mm", "aten::_scaled_grouped_mm", "aten::_scaled_mm_v2"), _FP8_PAIR
)
# Names of kernels that may multiply, and of operators that do.
_PRODUCT: Final = lazy_pattern(
    r"(?:gemm|gemv|mma|mm|matmul|nvjet|cijk|cublas|cutlass|dot)(?![a-z]{3})",
    re.IGNORECASE,
)
_MULTIPLIES: Final = lazy_pattern(
    r"aten::(?:_scaled_(?:grouped_)?|_grouped_)?(?:(?:add)?(?:mm|bmm|mv)|baddbmm)(?:_v2)?"
)
# Of a list without headings: a time with its unit, and a name as libraries of products give them.
_LISTED_TIME: Final = lazy_pattern(
    r"(?:^|[\s|,;:(])(\d[\d,.]{0,20} ?(?:[num\u00b5\u03bc]?s))(?=$|[\s|,;)])"
)
_LISTED_NAME: Final = lazy_pattern(
    r"\b(?:void )?(?:nvjet_|cutlass\w*_|cutlass::|sm\d{2,3}_|(?:volta|turing|ampere|hopper)_"
    r"|cublas\w*::|Cijk_|Custom_Cijk_|deep_gemm::|transformer_engine::|triton_|at::native::|_scaled_\w*kernel)[^\s|,;`]{4,}"
)
_MOST_LISTED: Final = 20_000
# Calls that each become a row of the trace; of more, rows stand for several, with their time.
_MAX_CALLS: Final = 200_000
_SCALED_CALLS: Final = 20_000
_MOST_COLUMNS: Final = 1 << 12
# Namespaces of libraries of kernels, in which torch has no operators.
_OF_KERNELS: Final = lazy_pattern(r"(?:ck|ck_tile|cutlass|deep_gemm)::")
_WITH_REMARK: Final = lazy_pattern(r"`([^`]{1,4096})` \([^()]{0,200}\)")
# Different kernels, of which no run has so many; rows of further ones are left out. After some of
# these a row is not even taken apart, which would take longer than all else.
_MOST_NAMES: Final = 3000
_MOST_TAKEN_APART: Final = 5000
_MOST_TABLES: Final = 10_000
_MAX_JSON: Final = 8 << 20  # Python objects take up to 25 times as much memory
_WHOLE: Final = 0.98
_ROUNDED: Final = 0.05  # of a share in percent with one decimal
_COMMUNICATES: Final = lazy_pattern(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce",
    re.IGNORECASE,
)


class _Sum(NamedTuple):
    ns: int = 0
    calls: int = 0

    def plus(self, other: _Sum) -> _Sum:
        return _Sum(
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
        indices: those of the columns of `_COLUMNS` and of "time".
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
    sums: dict[str, _Sum] = field(default_factory=dict)
    on_cpu: dict[str, _Sum] = field(default_factory=dict)
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
        name = _unquoted(row["name"])
        time = _unquoted(row["time"])
        unit = _TIME_UNIT.fullmatch(time)
        if not name and unit is not None:
            self.unit = unit[1]  # ncu's are below the headings
            return Fit.ASIDE
        if self._is_one_too_many(name):
            self.left_out += 1
            return Fit.ASIDE
        self._count(name, row, cells)
        if "metric" in row:
            if not _is_time_of_ncu(row["metric"]):
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
            return _without_index(cells)
        lacks_one = len(cells) == self.width - 1
        ends_with_name = self.indices["name"] == self.width - 1
        if lacks_one and ends_with_name and not self.sign:
            return ["", *cells]
        return cells

    def _is_one_too_many(self, name: str) -> bool:
        if len(self.sums) < _MOST_NAMES and len(self.on_cpu) < _MOST_NAMES:
            return False
        return name not in self.sums and name not in self.on_cpu

    def _add_times(
        self,
        name: str,
        time: str,
        row: dict[str, str],
    ) -> Fit:
        ns = _nanoseconds(time, self.unit)
        calls = _whole(row.get("calls", "1"))
        if not name or ns is None or calls is None:
            return Fit.NOT
        cpu_ns = _nanoseconds(row.get("cpu", ""), "u")
        sums = self.on_cpu if cpu_ns else self.sums
        self._sum(sums, name, _Sum(ns, calls))
        share = _number(row.get("share", ""))
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
            counter = _COUNTED.search(metric[:200])
            amount = _number(value) or 0
            if counter is not None and amount > 0:
                self.counted[name] = counter[1]

    def _sum(
        self,
        rows: dict[str, _Sum],
        name: str,
        row: _Sum,
    ) -> None:
        before = rows.get(name, _Sum())
        if before.ns and self.lists_operators:
            # Without the CPU's columns the row of a compiled operator looks like its kernel's.
            rows[name] = max(before, row)
        else:
            rows[name] = before.plus(row)

    @property
    def lists_operators(self) -> bool:
        """Whether rows may be of operators, beside those of the kernels that they launch."""
        return self.tool in ("key_averages()", _GUESSED)

    @property
    def launches(self) -> dict[str, _Sum]:
        """The rows to be read: those of kernels and copies, else of operators by themselves.

        Some scripts list products by operator and all else by kernel.
        """
        if not self.has_kernels:
            return self.own_times
        return self.kernels | self.products

    @property
    def products(self) -> dict[str, _Sum]:
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
    def own_times(self) -> dict[str, _Sum]:
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
    def kernels(self) -> dict[str, _Sum]:
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
        if self.tool == _GUESSED:
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


def _without_index(cells: Sequence[str]) -> Sequence[str]:
    """Return the cells of a row without its number, which pandas prints."""
    if cells[0].strip().isdecimal():
        return cells[1:]
    return cells


def glance(source: Source) -> Glance:
    """Look for the first row of a kernel; text without a table may be a damaged trace."""
    tables = _tables(source, is_glance=True)
    has_table = any(table.launches for table in tables)
    return Glance(is_trace=has_table, is_damaged=not has_table)


def read(source: Source, how: Reading) -> Trace:
    """Read the last table that has kernels.

    Raises:
        InputError: there is none.
    """
    table, earlier = _last_table(source)
    trace = Trace(source=source.name)
    rows = RowCollector()
    rows.launches(_launches(table.launches))
    operators: dict[str, str] = {}
    if table.has_kernels:
        for name, kind in table.counted.items():
            operators[name] = f"{COUNTED}{kind}"
        for name in table.products:
            operators[name] = name
    else:
        for name in table.launches:
            operators[name] = name
    _add_operators(rows, operators)
    rows.fill(trace, table.tool, layers=how.layers)
    trace.health.skipped_events += table.unread + table.left_out
    trace.health.rows_are_sums = True
    trace.health.truncated = source.damage is not None
    trace.seen = table.operators
    if earlier:
        trace.remarks.append(f"of its {earlier + 1} tables of kernels the last is read")
    trace.remarks += _limits(table)
    calls = sum(row.calls for row in table.launches.values())
    if calls > _MAX_CALLS:  # first: every count that the report has is of these
        said = f"its {calls:,} calls are counted as {_SCALED_CALLS:,}, with their time"
        trace.remarks.insert(0, said)
    _say_what_is_missing(trace.health, table)
    return trace


def _last_table(source: Source) -> tuple[Table, int]:
    """Return the last table that has kernels, or operators with their own times.

    How many such tables come before it is told, too.

    Raises:
        InputError: there is none.
    """
    found = 0
    last = None
    unread = 0
    has_table = False
    for table in _tables(source):
        has_table = True
        unread += table.unread
        if table.launches:
            found += 1
            last = table
    if last is not None:
        return last, found - 1
    if unread:
        raise InputError(
            f"{source.name} holds a table of kernels, but {counted(unread, 'row')} cannot be read "
            "as a name and a time.",
            "Write one line a kernel: its name, a time, and a unit there or in the heading, such as "
            "kernel,total_ms,calls.",
        )
    if has_table:
        raise InputError(
            f"{source.name} holds a table, but no row of a GPU kernel with a time.",
            "Print the kernels too: key_averages() of a profile with ProfilerActivity.CUDA, nsys "
            "stats --report cuda_gpu_kern_sum, ncu --csv --metrics gpu__time_duration.sum.",
        )
    if _JSON_ROWS.match(source.head) is None:
        raise unknown_file(source)
    raise not_a_trace(source, "a trace: no list of events in it")


def _limits(table: Table) -> Iterator[str]:
    """Yield what a table cannot say, and what was guessed."""
    yield "the table does not say when kernels ran: idle time is unknown"
    if table.read_as:
        yield f"read as: {clean(table.read_as)}"
    if table.products:
        yield "its products are by operator: no kernel in it looks like one"
    elif not table.has_kernels:
        yield "its rows are of operators: the share is by operator, not by kernel"


def _say_what_is_missing(health: Health, table: Table) -> None:
    """Note whether a table lists all kernels."""
    if table.left_out:
        health.notes.append(
            f"{table.left_out:,} of its rows are left out: no run has more than {_MOST_NAMES:,} "
            "kernels"
        )
    if table.is_whole:
        return
    if table.tool == _GUESSED:
        health.truncated = True
        health.notes.append("the table does not say that it lists all kernels")
    elif table.tool == "key_averages()":
        health.truncated = True
        health.notes.append(
            "the table does not list all kernels: print it with row_limit=-1 and "
            "max_name_column_width=None"
        )
    else:
        health.records_lost = True
        health.notes.append(f"its rows add up to {table.shares:.1f}%, not to 100%")


def _launches(rows: dict[str, _Sum]) -> Iterator[tuple[str, int, int, int, int, None]]:
    """Yield the kernels one after another, each call with the mean time of its row."""
    calls = sum(row.calls for row in rows.values())
    kept = calls
    if calls > _MAX_CALLS:
        kept = _SCALED_CALLS
    begin = 0
    row_begin = 0
    for name, row in rows.items():
        count = max(1, row.calls * kept // calls)
        for number in range(1, count + 1):
            end = row_begin + row.ns * number // count
            yield name, begin, end, 0, 0, None
            begin = end
        row_begin = begin


def _add_operators(rows: RowCollector, operators: dict[str, str]) -> None:
    """Give the kernels of some names an operator, such as one that says what was counted."""
    columns = rows.columns
    number_of: dict[int, int] = {}
    for number, (name, operator) in enumerate(operators.items()):
        if name in columns.names:
            name_id = columns.names[name]
            number_of[name_id] = number
            types = _TAKES.get(operator, b"")
            columns.add_operator(number, operator, types + SEPARATOR * 2)
    columns.op_ids = array("q")
    for name_id in columns.kernels.name:
        number = number_of.get(name_id, -1)
        columns.op_ids.append(number)


# ---- tables in text


def _tables(source: Source, *, is_glance: bool = False) -> Iterator[Table]:
    """Yield each table with its rows; for a glance it is done after its first kernel."""
    if _JSON_ROWS.match(source.head):
        return _json_tables(source)
    return _text_tables(source, is_glance=is_glance)


def _text_tables(source: Source, *, is_glance: bool) -> Iterator[Table]:
    lines: _Lines | None = None
    headings = _Headings()
    listed = _Listed()
    for raw in source.lines():
        line = raw.rstrip("\r\n")
        if lines is None:
            listed.take(line)
        following = headings.take(line)
        if following is not None:
            if lines is not None:
                yield lines.finish()
            lines = _Lines(following)
            continue
        if lines is None:
            continue
        total = _total(line)
        if total is not None:
            lines.table.total_ns = _nanoseconds(total[1], "u")
            yield lines.finish()
            lines = None
            continue
        lines.take(line, is_whole=raw.endswith("\n"))
        if is_glance and lines.table.begins_with_kernel:
            break
    if lines is not None:
        yield lines.finish()
    elif listed.table.sums:
        yield listed.table


def _no_cells(_: str) -> Sequence[str]:
    return ()


def _rule(line: str) -> re.Match[str] | None:
    if "---" in line:
        return _RULE.search(line)
    return None


def _total(line: str) -> re.Match[str] | None:
    if " time total: " in line:
        return _TOTAL.search(line)
    return None


class _Listed:
    """Takes lines with the name of a kernel and times with their units, which need no headings."""

    def __init__(self) -> None:
        self.table = Table(
            tool=_GUESSED,
            cells=_no_cells,
            width=-1,
            indices={},
            unit=_IN_CELLS,
            read_as="name, largest time in each line",
        )
        self._left = _MOST_LISTED

    def take(self, line: str) -> None:
        """Take a line, of which most are none."""
        if "s" not in line or not self._left:
            return
        text = line[:4096]
        texts = _LISTED_TIME.findall(text)
        if not texts:
            return
        found = _LISTED_NAME.search(text)
        if found is None:
            return
        self._left -= 1
        times = []
        for time_text in texts:
            ns = _nanoseconds(time_text, _IN_CELLS)
            if ns is not None:
                times.append(ns)
        if not times:
            self.table.unread += 1
            return
        name = found[0]
        # A mean or the CPU's part of a total is smaller than the total.
        longest = _Sum(max(times), 1)
        before = self.table.sums.get(name, _Sum())
        self.table.sums[name] = before.plus(longest)


class _Lines:
    """Takes the lines below the headings of a table up to its end.

    A line that is no row is a damaged one if rows follow it, or if it looks like one. Behind a rule
    or an empty line there may be other text, of which only rows count.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._has_rows = False
        self._may_be_over = False
        self._doubtful: list[str] = []  # lines since the last row

    def take(self, line: str, *, is_whole: bool) -> None:
        """Take a line; one that is not whole is the last of a file that may be cut."""
        table = self.table
        is_empty = not line.strip()
        if is_empty or _IS_RULED.fullmatch(line) or _rule(line):
            # Grids have a rule below each row.
            is_end = is_empty or not table.sign
            self._may_be_over |= self._has_rows and is_end
            return
        if table.left_out >= _MOST_TAKEN_APART:
            table.left_out += 1
            return
        fit = table.add(table.cells(line))
        if fit is Fit.ROW:
            self._has_rows = True
            table.unread += len(self._doubtful)
            self._doubtful.clear()
        is_open = line.count('"') % 2 == 1
        if not is_whole and (fit is Fit.NOT or is_open):
            table.unread += 1  # the file is cut within its last line
        elif fit is Fit.NOT and not self._may_be_over:
            self._doubtful.append(line)

    def finish(self) -> Table:
        """Return the table with the lines counted that could not be read."""
        self.table.unread += sum(map(self._looks_like_a_row, self._doubtful))
        return self.table

    def _looks_like_a_row(self, line: str) -> bool:
        """Whether a line has as many cells as a row, or one less."""
        table = self.table
        if table.sign:
            signs = line.translate(_HEAVY).count(table.sign)
            return signs >= max(1, table.width - 2)
        cells = table.cells(line)
        filled = [cell for cell in cells if cell.strip()]
        return len(filled) >= max(2, table.width - 1)


class _Headings:
    """Looks for headings, which are above a rule of dashes or below one, or need none."""

    def __init__(self) -> None:
        self._previous = ""
        self._spans: list[slice] = []
        self._left = _MOST_TABLES

    def take(self, line: str) -> Table | None:
        """Return the table that begins with this line, if one of kernels does."""
        previous = self._previous
        self._previous = line
        table = None
        if not self._left:
            return None  # a row of the last table, which cannot be read
        rule = _rule(line)
        if rule is not None:
            self._spans = []
            for dashes in _DASHES.finditer(line, rule.start()):
                self._spans.append(slice(*dashes.span()))
            table = _by_spans(previous, self._spans)
        elif _HINT.search(line[:4096].lower()):
            if self._spans:
                table = _by_spans(line, self._spans)
            table = table or _by_delimiter(line)
        if table is not None:
            self._left -= 1
            self._spans = []
        return table


def _by_spans(header: str, spans: Sequence[slice]) -> Table | None:
    """Return the table whose columns a rule of dashes marks, None if it is another one."""
    if not spans:
        return None
    # "CUDA time avg" is wider than its column, and moves what follows it in this line alone.
    below_first = header[spans[0].start :]
    names = _GAP.split(below_first.strip())
    if len(names) != len(spans):
        return None
    *inner, last = spans
    columns = [*inner, slice(last.start, None)]
    gaps = []
    for span, after in pairwise(spans):
        gaps.append(slice(span.stop, after.start))

    def cells(line: str) -> list[str]:
        has_text_between = any(line[gap].strip() for gap in gaps)
        if not has_text_between:
            return [line[span].strip() for span in columns]
        # A value that is wider than its column, or moved: it must not lose a digit.
        apart = _GAP.split(line.strip())
        if len(apart) == len(spans):
            return apart
        return []

    return _table(names, cells)


def _by_delimiter(header: str) -> Table | None:
    """Return the table below headings between delimiters, or two spaces or more."""
    plain = header.translate(_HEAVY)
    for sign in _DELIMITERS:
        if sign in plain:
            headings = _split(header, sign)
            table = _table(headings, partial(_split, sign=sign))
            if table is not None:
                table.sign = sign
                return table
    return _table(_split_by_spaces(header), _split_by_spaces)


def _split_by_spaces(line: str) -> list[str]:
    return _GAP.split(line.strip())


def _split(line: str, sign: str) -> list[str]:
    if sign in ",;\t":
        rows = csv.reader([line.lstrip("\ufeff")], delimiter=sign)
        try:
            return next(rows, [])
        except csv.Error:
            return []
    plain = line.translate(_HEAVY).strip()
    cells = plain.strip(sign).split(sign)
    return [cell.strip() for cell in cells]


def _table(
    headings: Sequence[str],
    cells: Callable[[str], Sequence[str]],
) -> Table | None:
    """Return an empty table with these headings; None if they are none."""
    known = list(map(_heading, headings))
    if not 2 <= len(known) <= _MOST_COLUMNS:
        return None
    indices = _indices(known)
    if "name" not in indices:
        return None
    if not _OTHERS.isdisjoint(known):  # its rows are not those of the table before it
        return Table(
            tool="",
            cells=_no_cells,
            width=-1,
            indices=indices,
            unit="n",
        )
    if {"metric", "unit", "value"} <= indices.keys():
        return Table(
            tool="ncu",
            cells=cells,
            width=len(known),
            indices={**indices, "time": indices["value"]},
            unit="n",
        )
    indices.pop("metric", None)
    time = _time_column(known, indices["name"])
    if time is None:
        return _guessed(known, indices, cells)
    counters = []
    for index, heading in enumerate(known):
        if _COUNTED.search(heading[:200]):
            counters.append((index, heading))
    heading = known[time.column]
    is_of_torch = time.tool == "key_averages()"
    return Table(
        tool=time.tool,
        cells=cells,
        width=len(known),
        indices={**indices, "time": time.column},
        unit=time.unit,
        counters=tuple(counters),
        is_self_time=is_of_torch and _SELF.match(heading) is not None,
    )


def _indices(known: Sequence[str]) -> dict[str, int]:
    """Return the indices of the columns of `_COLUMNS` among headings."""
    indices = {}
    for what, texts in _COLUMNS.items():
        for text in texts:
            if text in known:
                indices[what] = known.index(text)
                break
    return indices


class _TimeColumn(NamedTuple):
    """Where the times of a table are, their unit, and the tool that calls its column so."""

    tool: str
    column: int
    unit: str


def _time_column(known: Sequence[str], name: int) -> _TimeColumn | None:
    """Return the column of times of a tool that is known, which is not that of the names."""
    # "Total Time (us)" alone is anybody's.
    is_nsys = not _OF_NSYS.isdisjoint(known)
    for tool, pattern, usual in _TIMES:
        if tool == "nsys" and not is_nsys:
            continue
        for index, text in enumerate(known):
            match = pattern.fullmatch(text)
            if match is None or index == name:
                continue
            unit = usual
            if pattern.groups and match[1] is not None:
                unit = match[1]
            return _TimeColumn(tool, index, unit)
    return None


def _guessed(
    known: Sequence[str],
    indices: dict[str, int],
    cells: Callable[[str], Sequence[str]],
) -> Table | None:
    """Return the table of a script or a report by the words and units of its headings."""
    for pattern in _ANY_TIME:
        for index, text in enumerate(known):
            match = pattern.fullmatch(text)
            if match is None or index in indices.values():
                continue
            read_as = [known[indices["name"]], text]
            if "calls" in indices:
                read_as.append(known[indices["calls"]])
            unit = match[1]
            if pattern is _ANY_TIME[-1]:
                unit = _IN_CELLS
            return Table(
                tool=_GUESSED,
                cells=cells,
                width=len(known),
                indices={**indices, "time": index},
                unit=unit,
                is_self_time=_SELF.match(text) is not None,
                read_as=", ".join(read_as),
            )
    return None


def _heading(text: str) -> str:
    unquoted = text.strip("\ufeff\"' ")
    plain = _plain(unquoted).lower().translate(_ROUND_BRACKETS)
    apart = plain.replace("(", " (")
    return _GAP.sub(" ", apart.strip())


def _plain(text: str) -> str:
    text = text.strip()
    if text.isascii():
        return text
    return text.translate(_MICRO)


def _unquoted(cell: str) -> str:
    """Return a cell without Markdown's marks of code and of bold text, and a remark behind."""
    if not cell.startswith(("`", "**")):
        return cell
    code = _WITH_REMARK.fullmatch(cell)
    if code is not None:
        return code[1]
    for mark in ("**", "`"):
        is_marked = cell.startswith(mark) and cell.endswith(mark)
        if is_marked and len(cell) > 2 * len(mark):
            cell = cell.removeprefix(mark).removesuffix(mark)
    return cell


def _nanoseconds(text: str, unit: str) -> int | None:
    """Return a time; its own unit, n, u, m or none of seconds, counts more than the column's."""
    amount = _AMOUNT.fullmatch(_plain(text))
    if amount is None:
        return None
    own_unit = amount[2]
    if own_unit is None:
        own_unit = unit
    if own_unit == _IN_CELLS:
        return None
    digits = amount[1].translate(_TOGETHER)
    return round(float(digits) * _NS[own_unit])


def _whole(text: str) -> int | None:
    number = _WHOLE_NUMBER.fullmatch(text.strip())
    if number is None:
        return None
    digits = number[1].translate(_TOGETHER)
    if digits.isdecimal() and len(digits) <= 15:
        return max(1, int(digits))
    return None


def _number(text: str) -> float | None:
    amount = _AMOUNT.match(text.strip())
    if amount:
        return float(amount[1].translate(_TOGETHER))
    return None


def _is_time_of_ncu(metric: str) -> bool:
    name = metric.lower()
    patterns = [pattern for tool, pattern, _ in _TIMES if tool == "ncu"]
    return any(pattern.fullmatch(name) for pattern in patterns)


# ---- JSON


def _json_tables(source: Source) -> Iterator[Table]:
    """Yield the tables of a list of rows, as nsys prints it, or of rocprofv3's results."""
    data = source.whole(_MAX_JSON)
    text = data.decode("utf-8", "replace").lstrip("\ufeff")
    index = 0
    decoder = json.JSONDecoder()
    while True:
        start = _JSON_START.search(text, index)
        if start is None:
            return
        try:
            found, index = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            return
        rows: Any = found
        if isinstance(found, dict):
            rows = _rocprof_rows(found)
        if _are_rows(rows):
            table = _json_table(rows)
            if table is not None:
                yield table


def _are_rows(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return bool(value) and all(isinstance(row, dict) for row in value)


def _json_table(rows: Sequence[dict[str, Any]]) -> Table | None:
    """Return the table of a list of rows, None if it is none of kernels."""
    headings: dict[str, None] = {}
    for row in rows[:100]:
        headings.update(dict.fromkeys(row))
    table = _table(list(headings), _no_cells)
    if table is None:
        return None
    for row in rows:
        cells = [str(row.get(heading, "")) for heading in headings]
        fit = table.add(cells)
        table.unread += fit is Fit.NOT
    return table


def _rocprof_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return name and duration of the dispatches in rocprofv3's JSON (rocprofiler-sdk 1.0)."""
    rows: list[dict[str, Any]] = []
    try:
        for run in results["rocprofiler-sdk-tool"]:
            rows.extend(_dispatches(run))
    except (KeyError, TypeError, AttributeError):
        return []
    return rows


def _dispatches(run: Any) -> Iterator[dict[str, Any]]:
    symbols = run["kernel_symbols"]
    if isinstance(symbols, dict):
        symbols = symbols.values()
    names = {}
    for symbol in symbols:
        number = symbol["kernel_id"]
        names[number] = symbol.get("formatted_kernel_name", "")
    for dispatch in run["buffer_records"]["kernel_dispatch"]:
        number = dispatch["dispatch_info"]["kernel_id"]
        time_ns = dispatch["end_timestamp"] - dispatch["start_timestamp"]
        yield {"kernel_name": names.get(number, ""), "DurationNs": time_ns}

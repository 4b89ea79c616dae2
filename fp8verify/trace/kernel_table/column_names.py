"""What a column holds, by its heading: what each tool calls names, times, calls and shares.

A time has a unit in its heading, in its cells, or the one that its tool always prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fp8verify.patterns import lazy_pattern
from fp8verify.trace.kernel_table.cells import GAP, UNIT, plain

# What a column holds, by headings as `spelled` spells them. The first that a table has counts.
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
            rf"total time(?: \({UNIT}\))?",
            "n",
        ),  # cuda_gpu_kern_sum, 2021 to 2026
        (
            "rocprof",
            rf"total_?duration_?\(?{UNIT}\)?",
            "n",
        ),  # rocprof --stats, rocprofv3 --stats
        (
            "ncu",
            rf"gpu__time_duration\.(?:sum|avg|max)(?: \({UNIT}\))?",
            "n",
        ),  # --csv --page raw
        ("nsys", rf"(?:kernel )?dur(?:ation)? \({UNIT}\)", "n"),  # cuda_gpu_trace
        ("rocprof", rf"duration_?{UNIT}", "n"),  # results.csv of rocprof v1
        ("ncu", r"duration", "n"),  # --page details, with a column of units
        # kernel_summary of generate_perf_report_pytorch.py, 171dd747 (2026-08). Names beside its
        # "Kernel Time (µs)_sum" are operators'; rocprof_analysis.py calls ns "(ms)".
        ("TraceLens", rf"kernel duration \({UNIT}\)_sum", "u"),
        # BreakdownAnalysis.get_gpu_kernel_breakdown, f4d0062 (2026-05); Top Kernels of
        # rocprofiler-compute, ROCm/rocprofiler-compute#566
        ("HTA or rocprofiler-compute", rf"sum \({UNIT}\)", "u"),
        # print_csv_header_ of performance_report.cpp, CUTLASS 7107b05 (2026-08): ms
        ("CUTLASS profiler", rf"runtime(?: \({UNIT}\))?", "m"),
    )
)
_OF_NSYS: Final = frozenset(
    {"time (%)", "instances", "start (ns)", "start (s)", "avg (ns)", "corrid", "grdx"}
)
# A counter of tensor cores; its group is the type of what the counted operations multiply.
COUNTER: Final = lazy_pattern(
    r"ops_path_tensor_(?:op_\w+?_)?src_([a-z0-9]+(?:_fp\d)*?)(?:_dst|_sp|\.)"
)
_ROUND_BRACKETS: Final = str.maketrans("[]", "()")


def spelled(text: str) -> str:
    """Return a heading as the tables of this module have it: in lower case, with round brackets."""
    bare = text.strip("\ufeff\"' ")
    lower = plain(bare).lower()
    with_round = lower.translate(_ROUND_BRACKETS)
    apart = with_round.replace("(", " (")
    return GAP.sub(" ", apart.strip())


def indices_of(known: Sequence[str]) -> dict[str, int]:
    """Return the indices of the columns of `_COLUMNS` among headings."""
    indices = {}
    for what, texts in _COLUMNS.items():
        for text in texts:
            if text in known:
                indices[what] = known.index(text)
                break
    return indices


class TimeColumn(NamedTuple):
    """Where the times of a table are, their unit, and the tool that calls its column so."""

    tool: str
    column: int
    unit: str


def time_column(known: Sequence[str], name: int) -> TimeColumn | None:
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
            return TimeColumn(tool, index, unit)
    return None


def is_time_of_ncu(metric: str) -> bool:
    """Whether a metric of ncu's long form is the time of a kernel."""
    name = metric.lower()
    patterns = [pattern for tool, pattern, _ in _TIMES if tool == "ncu"]
    return any(pattern.fullmatch(name) for pattern in patterns)

"""Where each rank's time went by HolisticTraceAnalysis: idle, computing, communicating.

HTA 0.5 reads a whole trace into a DataFrame, so this takes its time and memory, and is only done
when asked for. Its figures are its own: it rounds the start of a kernel up and its end down to
whole µs, merges kernels that overlap on several streams, and leaves the last profiler step out
by default. A rank on which HTA fails (an assertion of its own was seen once) gets no
figures and a note.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import metadata
from io import StringIO
from pathlib import Path

from msgspec.structs import replace

from fp8verify.model.report import BreakdownReport, RankBreakdown
from fp8verify.report.results import Report
from fp8verify.trace import TraceFile, find_traces
from fp8verify.trace.places import is_remote


def add_breakdown(report: Report, paths: Sequence[str | Path]) -> Report:
    """Add HTA's temporal breakdown and communication overlap of each rank to a report.

    Raises:
        InputError: the traces cannot be found.
    """
    ranks = []
    notes = []
    by_rank = {}
    for file in reversed(find_traces(*paths)):
        by_rank[file.rank] = file
    for file in by_rank.values():
        found = _analyze(file)
        if isinstance(found, str):
            notes.append(f"rank {file.rank}: {found}")
        else:
            ranks.append(found)
    ranks.sort(key=lambda rank: rank.rank)
    breakdown = BreakdownReport(
        hta_version=metadata.version("HolisticTraceAnalysis"),
        ranks=tuple(ranks),
        notes=tuple(notes),
    )
    return replace(report, breakdown=breakdown)


def _analyze(file: TraceFile) -> RankBreakdown | str:
    """Return the figures of one rank, or why HTA gives none."""
    is_json = file.path.name.endswith((".json", ".json.gz"))
    if is_remote(file.path) or not is_json:
        return "HTA reads local .json and .json.gz files only"
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HTA divides by a communication time of zero
        from hta.trace_analysis import TraceAnalysis

        logging.getLogger("hta").setLevel(logging.CRITICAL)
        try:
            path = file.path.absolute()
            analysis = TraceAnalysis(
                trace_files={file.rank: str(path)},
                trace_dir=str(path.parent),
                include_last_profiler_step=True,
            )
            row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
            pairs = analysis.get_comm_comp_overlap(visualize=False)
            overlap = float(pairs["comp_comm_overlap_pctg"].iloc[0])
        except Exception as error:  # HTA raises whatever pandas does, and assertions
            return f"HTA gives no figures ({type(error).__name__})"
    return RankBreakdown(
        rank=file.rank,
        span_us=float(row["kernel_time(us)"]),
        idle_us=float(row["idle_time(us)"]),
        compute_us=float(row["compute_time(us)"]),
        non_compute_us=float(row["non_compute_time(us)"]),
        communication_overlap_percent=None if math.isnan(overlap) else overlap,
    )

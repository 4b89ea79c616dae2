"""A table of runs as a page: one row a run."""

from __future__ import annotations

from fp8verify.report.model import Verdict
from fp8verify.report.model.run_table import RunRow, RunTable
from fp8verify.report.page import FAIR, GOOD, Grid, Page
from fp8verify.report.tables import millis, percent

_NAMES = ("verdict", "FP8", "lowest", "step ms", "GEMM ms", "casts", "gain", "run")
LEGEND = (
    "FP8: share of the GEMM time of linear layers; casts: share of GPU time; gain: GPU time "
    "against BF16, by estimate; times are of one step"
)


def run_table_page(found: RunTable, *, verbose: bool = False) -> Page:
    """Lay out a table of runs; with `verbose` the reason of each verdict stands below."""
    reasons = tuple(f"{run.name}: {run.reason}." for run in found.runs) if verbose else ()
    active = sum(run.verdict is Verdict.ACTIVE for run in found.runs)
    return Page(
        head="",
        verdict="",
        tone=GOOD if active == len(found.runs) else FAIR,
        reason=f"{active} of {len(found.runs)} runs ACTIVE",
        fails=bool(found.exit_code),
        name=f"{len(found.runs)} runs",
        body=(_grid(found)._replace(below=(*reasons, LEGEND)),),
    )


def _grid(found: RunTable) -> Grid:
    """Return the table; "lowest" is the FP8 share of the rank that has the least."""
    several = any(row.ranks > 1 for row in found.runs)
    names = tuple(name for name in _NAMES if several or name != "lowest")
    rows = tuple(tuple(map(_cells(row).__getitem__, names)) for row in found.runs)
    return Grid("Runs", names, ("verdict", "run"), rows, stretch=True)


def _cells(row: RunRow) -> dict[str, str]:
    return {
        "verdict": row.verdict.value,
        "FP8": percent(row.fp8_share_of_time),
        "lowest": percent(row.lowest_rank_share) if row.ranks > 1 else "-",
        "step ms": "-" if row.step_us is None else millis(row.step_us),
        "GEMM ms": "-" if row.gemm_us_per_step is None else millis(row.gemm_us_per_step),
        "casts": percent(row.casts_share_of_gpu_time),
        "gain": "-" if row.speedup_estimate is None else f"{row.speedup_estimate:.2f}x",
        "run": row.name,
    }

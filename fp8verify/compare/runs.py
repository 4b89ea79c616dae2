"""What a table of runs says of each."""

from __future__ import annotations

from fp8verify.compare.measure import measure
from fp8verify.report.clock import steps_shown
from fp8verify.report.model import Report, Severity
from fp8verify.report.model.run_table import RunRow
from fp8verify.report.payoff import payoff
from fp8verify.report.tables import layer_share, precision_rows
from fp8verify.verdict.assertions import lowest_share


def run_row(report: Report, name: str) -> RunRow:
    """Take from a report what its row shows."""
    measured = next(filter(None, map(measure, report.ranks)), None)
    rank = measured.rank if measured else None
    found = payoff(report)
    steps = measured.times.steps if measured else 0
    severities = [finding.severity for finding in report.findings]
    return RunRow(
        name=name,
        verdict=report.verdict,
        reason=report.reason,
        exit_code=report.exit_code,
        gpu=report.environment.gpu,
        ranks=len(report.ranks),
        steps=steps_shown(report).removeprefix("steps ").removeprefix("step "),
        fp8_share_of_time=layer_share(report),
        lowest_rank_share=lowest_share(report),
        precisions=tuple(row.precision for row in precision_rows(report)),
        scaling=tuple(report.recipe.time_us),
        step_us=measured.times.median_us if measured else None,
        gemm_us_per_step=round(sum(rank.gemm.time_us.values()) / steps, 3) if rank else None,
        tflops=_rate(report),
        casts_share_of_gpu_time=rank.tax.share_of_gpu_time if rank and rank.tax else None,
        speedup_estimate=found.speedup if found else None,
        errors=severities.count(Severity.ERROR),
        warnings=severities.count(Severity.WARNING),
        software=dict(report.environment.versions),
    )


def _rate(report: Report) -> float | None:
    """Return 10^12 operations a second of all GEMMs, where every shape is known."""
    gemm = report.gemm
    time_us = sum(gemm.time_us.values())
    if gemm.flops is None or gemm.flops_coverage < 1 or not time_us:
        return None
    return round(sum(gemm.flops.values()) / time_us / 1e6, 1)

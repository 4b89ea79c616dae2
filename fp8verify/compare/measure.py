"""What a step of one run costs: its time, its work and its budget."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from fp8verify.report.model import KernelRow, Leg, RankReport
from fp8verify.report.model.comparison import BudgetRow, StepTimes

GEMM, CASTS, ATTENTION = "GEMM", "casts and scales", "attention"
NETWORK, REST, IDLE = "exposed communication", "other kernels", "GPU idle or copying"


class Measured(NamedTuple):
    """One rank of a run, in µs a mean step.

    Attributes:
        times: of its steps.
        work: FLOPs of the forward GEMMs, which every linear layer runs once; None if unknown.
        gemms: GEMM kernels a step.
        budget: by kind of work; adds up to the mean step.
    """

    rank: RankReport
    times: StepTimes
    work: float | None
    gemms: float
    budget: dict[str, float]

    @property
    def busy(self) -> float:
        """Time in which kernels ran."""
        return sum(time_us for name, time_us in self.budget.items() if name != IDLE)


def measure(rank: RankReport) -> Measured | None:
    """Measure a rank; None where no GEMM of it was recorded."""
    if rank.payoff is None or not any(rank.gemm.kernels.values()):
        return None
    times, mean = _step_times(rank)
    return Measured(
        rank=rank,
        times=times,
        work=_work(rank, times.steps),
        gemms=sum(rank.gemm.kernels.values()) / times.steps,
        budget=_budget(rank, times.steps, mean),
    )


def _step_times(rank: RankReport) -> tuple[StepTimes, float]:
    """Return the step times and their mean."""
    on_gpu = [step.gpu_us for step in rank.steps if step.gpu_us is not None]
    on_cpu = [step.duration_us for step in rank.steps]
    times, measured = (on_gpu, "gpu") if on_gpu else (on_cpu, "cpu")
    if not any(times):
        times, measured = [_window(rank)], "window"
    found = StepTimes(
        measured=measured,
        steps=len(times),
        median_us=round(median(times), 3),
        min_us=min(times),
        max_us=max(times),
    )
    return found, sum(times) / len(times)


def _window(rank: RankReport) -> float:
    payoff = rank.payoff
    if payoff is None:
        return 0.0
    return payoff.gpu_busy_us / (1 - payoff.idle_share) if payoff.idle_share < 1 else 0.0


def _budget(rank: RankReport, steps: int, mean: float) -> dict[str, float]:
    busy = rank.payoff.gpu_busy_us / steps if rank.payoff else 0.0
    parts = {
        GEMM: sum(rank.gemm.time_us.values()) / steps,
        CASTS: rank.tax.time_us / steps if rank.tax else 0.0,
        ATTENTION: rank.gpu_time_us["attention"] / steps,
        NETWORK: rank.communication.exposed_us / steps if rank.communication else 0.0,
    }
    # Overlapping kernels make the parts add up to more than the whole: the rest is less by that.
    return {**parts, REST: busy - sum(parts.values()), IDLE: max(0.0, mean - busy)}


def _work(rank: RankReport, steps: int) -> float | None:
    forward = [row for row in products(rank) if row.leg is Leg.FPROP]
    flops = sum(2 * _product(row.shape or ()) * row.kernels for row in forward)
    return flops / steps if flops else None


def products(rank: RankReport) -> list[KernelRow]:
    """The GEMMs with a known shape, without the reductions of split-K ones."""
    return [row for row in rank.kernels if row.role.is_gemm and row.shape and row.tflops]


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def budget_rows(baseline: Measured, candidate: Measured) -> tuple[BudgetRow, ...]:
    """Lay both budgets side by side; kinds that neither has are left out."""
    return tuple(
        BudgetRow(
            name=name,
            baseline_us=round(before, 3),
            candidate_us=round(candidate.budget[name], 3),
            change_us=round(candidate.budget[name] - before, 3),
        )
        for name, before in baseline.budget.items()
        if before or candidate.budget[name]
    )

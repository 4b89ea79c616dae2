"""Why FP8 is not faster than its baseline: causes that the two traces bear out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fp8verify.analysis.small_side import SMALL_SIDE
from fp8verify.compare.measure import CASTS, GEMM, IDLE, NETWORK, REST, Measured
from fp8verify.report.model import Finding
from fp8verify.verdict.findings.payoff import (
    CASTS_REMEDY,
    IDLE_REMEDY,
    MOSTLY,
    SMALL_REMEDY,
    UNFUSED_REMEDY,
)
from fp8verify.verdict.findings_table import finding

# GEMMs of large layers get 1.6 to 2 times faster; below this they hardly do.
_HARDLY = 1.15
_NOTICEABLE = 0.1
NETWORK_REMEDY = (
    "Precompute the scales (precompute_float8_dynamic_scale_for_fsdp), gather weights in FP8 "
    "(enable_fsdp_float8_all_gather); ranks that wait for a slower one show here too."
)

_MORE_STEPS = "Record more steps of both runs: no kind of work takes longer than in the baseline."
_REST_REMEDY = "Compare these kernels in both reports with --verbose, or in a trace viewer."


class _Growth(NamedTuple):
    """Of two runs, what a step of the candidate takes longer at equal work, in µs."""

    baseline: Measured
    candidate: Measured
    work: float

    def of(self, name: str) -> float:
        """Return by how much a kind of work in the budget grew."""
        return self.candidate.budget[name] / self.work - self.baseline.budget[name]

    @property
    def gained(self) -> float:
        """Return what the GEMMs gain."""
        return self.baseline.budget[GEMM] - self.candidate.budget[GEMM] / self.work

    @property
    def cost(self) -> float:
        """Return what casts cost: fused ones do other kernels' work too, so both count."""
        return self.of(CASTS) + self.of(REST)

    @property
    def noticeable(self) -> float:
        """Return the least that is worth telling."""
        return _NOTICEABLE * self.candidate.times.median_us


def not_paying(baseline: Measured, candidate: Measured, work: float) -> Iterator[Finding]:
    """Name the causes, costs of kernels before waits of the GPU; times are at equal work."""
    growth = _Growth(baseline, candidate, work)
    causes = [*_costly_casts(growth), *_exposed_network(growth), *_longer_waits(growth)]
    yield from causes or [_no_single_cause(growth)]


def _costly_casts(growth: _Growth) -> Iterator[Finding]:
    if growth.cost >= max(growth.gained, 0.0):
        yield _finding(
            *_cast_cause(growth.candidate),
            f"casts and scales take {_more(growth.of(CASTS))} a step and other kernels, with which "
            f"they are fused, {_more(growth.of(REST))}; GEMMs gain {_ms(growth.gained)}",
        )


def _exposed_network(growth: _Growth) -> Iterator[Finding]:
    network = growth.of(NETWORK)
    if network >= max(growth.gained, growth.noticeable):
        yield _finding(
            "communication",
            NETWORK_REMEDY,
            f"{_ms(network)} a step more of it is exposed, GEMMs gain {_ms(growth.gained)}",
        )


def _longer_waits(growth: _Growth) -> Iterator[Finding]:
    waits = growth.of(IDLE)
    if waits >= max(MOSTLY * (growth.gained - growth.cost), growth.noticeable):
        yield _finding(
            "launch-bound", IDLE_REMEDY, f"the GPU waits {_ms(waits)} a step longer for the CPU"
        )


def _no_single_cause(growth: _Growth) -> Finding:
    gain = _ms(growth.gained)
    if growth.baseline.budget[GEMM] < _HARDLY * growth.candidate.budget[GEMM] / growth.work:
        return _finding("GEMMs no faster", SMALL_REMEDY, f"in FP8 they gain {gain} a step")
    return _finding(*_what_grew(growth), f"GEMMs gain {gain} a step")


def _what_grew(growth: _Growth) -> tuple[str, str]:
    """Name the kinds of work in the budget that take longer, the most first."""
    kinds = (name for name in growth.candidate.budget if name != GEMM)
    grown = {name: longer for name in kinds if (longer := growth.of(name)) > 0}
    if not grown:
        return "within the spread of the steps", _MORE_STEPS
    longest = sorted(grown, key=grown.__getitem__, reverse=True)
    told = ", ".join(f"{name} {_more(grown[name])}" for name in longest)
    return f"other work takes longer ({told})", _REST_REMEDY


def _cast_cause(candidate: Measured) -> tuple[str, str]:
    tax, payoff = candidate.rank.tax, candidate.rank.payoff
    if tax is not None and tax.unfused_us >= MOSTLY * tax.time_us:
        return "unfused eager casts", UNFUSED_REMEDY
    small = payoff.small_gemm_share if payoff is not None else None
    if small is not None and small >= MOSTLY:
        return f"small GEMMs (a side below {SMALL_SIDE})", SMALL_REMEDY
    return "costly casts", CASTS_REMEDY


def _finding(cause: str, remedy: str, figure: str) -> Finding:
    return finding("fp8-not-paying", "compared", cause=cause, figure=figure, remedy=remedy)


def _more(time_us: float) -> str:
    return f"{time_us / 1000:+.2f} ms"


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.2f} ms"

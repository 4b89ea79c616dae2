"""Why a run is not faster than its baseline: causes that the traces show, GEMMs first."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.compare.measure import ATTENTION, CASTS, GEMM, IDLE, NETWORK, REST, Measured
from fp8verify.compare.pairs import pair_gemms
from fp8verify.report.model.diagnosis import PayoffReport
from fp8verify.report.model.parts import Finding
from fp8verify.report.tables import layer_share
from fp8verify.verdict.findings.speed import cost_of_casts, gemms_are_small, payoff_remedy
from fp8verify.verdict.findings_table import finding

# FP8 GEMMs of large layers are 1.6 to 2 times as fast; a gain below this is hardly one.
_HARDLY = 1.15
_SLOWER = 0.95
_NOTICEABLE = 0.02  # of a step: work that grew by less explains nothing
_FELL = 0.1
_GEMM_REMEDY = (
    "Compare these GEMMs in both reports with --verbose: another layout, scaling or library; "
    "block scaling gains less than one scale a tensor. Check the GPU's clocks in both runs."
)
_RANK_REMEDY = "Find out what differs on this rank: its configuration, its modules, its log."
_SCALES_REMEDY = "Precompute the scales (precompute_float8_dynamic_scale_for_fsdp)"
_GATHER_REMEDY = ", gather weights in FP8 (enable_fsdp_float8_all_gather)"
_WAIT_REMEDY = "; ranks that wait for a slower one show here too."
_REST_REMEDY = "Compare these kernels in both reports with --verbose, or in a trace viewer."
_NO_CAUSE = "Record more steps of both runs, and compare what each kind of work takes."


def why_not_faster(before: Measured, after: Measured, work: float) -> Iterator[Finding]:
    """Name the causes in the order of what they cost, GEMMs first; times are at equal work."""
    growth = {name: time / work - before.budget[name] for name, time in after.budget.items()}
    least = _NOTICEABLE * after.times.mean_us / work
    lost = ranks_that_lost_fp8(before, after)
    causes = [_finding("less FP8 than in the baseline", _RANK_REMEDY, said) for said in lost]
    causes += _gemms(before, after, growth[GEMM], work, least)
    gain = f"GEMMs take {_more(growth[GEMM])} a step"
    for cost, cause, remedy in sorted(_others(after, growth), key=lambda other: -other[0]):
        if cost >= least:
            causes.append(_finding(cause, remedy, f"{_more(cost)} a step; {gain}"))
    if not causes:
        causes = [_finding("no single kind of work takes much longer", _NO_CAUSE, gain)]
    yield from causes


def ranks_that_lost_fp8(before: Measured, after: Measured) -> Iterator[str]:
    """Say which ranks run less of their GEMM time in FP8 than in the baseline."""
    for old, new in zip(before.ranks, after.ranks, strict=False):
        had, has = (layer_share(rank) or 0.0 for rank in (old, new))
        if len(before.ranks) > 1 and has < had - _FELL:
            yield (
                f"rank {new.rank} runs {has:.0%} of its GEMM time in FP8, {had:.0%} in the baseline"
            )


def _gemms(
    before: Measured, after: Measured, longer: float, work: float, least: float
) -> Iterator[Finding]:
    """Name GEMMs that became slower, or FP8 GEMMs that are hardly faster."""
    remedy = payoff_remedy("small") if gemms_are_small(_payoffs(after)) else _GEMM_REMEDY
    more_fp8 = after.fp8_share > before.fp8_share + _FELL
    if longer >= least:
        slow = [pair for pair in pair_gemms(before, after) if pair.speedup < _SLOWER]
        # By how many µs a step they became slower.
        slow.sort(key=lambda pair: pair.candidate_us * pair.candidate_calls * (pair.speedup - 1))
        worst = (f"{pair.n} x {pair.k} {pair.leg} {pair.speedup:.2f}x" for pair in slow[:3])
        which = ", ".join(worst)
        figure = f"they take {_ms(longer)} a step longer{f' ({which})' if which else ''}"
        yield _finding("slower GEMMs", remedy, figure)
    elif more_fp8 and before.budget[GEMM] < _HARDLY * after.budget[GEMM] / work:
        yield _finding("GEMMs no faster", remedy, f"in FP8 they gain {_ms(-longer)} a step")


def _others(after: Measured, growth: dict[str, float]) -> Iterator[tuple[float, str, str]]:
    """Yield cost, cause and remedy of each kind of work other than GEMMs."""
    gathers = [rank.communication.weight_gather for rank in after.ranks if rank.communication]
    in_fp8 = any(gather is not None and gather.fp8 for gather in gathers)
    network = f"{_SCALES_REMEDY}{'' if in_fp8 else _GATHER_REMEDY}{_WAIT_REMEDY}"
    yield growth[NETWORK], NETWORK, network
    yield growth[IDLE], "launch-bound", payoff_remedy("launch-bound")
    yield growth[ATTENTION], ATTENTION, _REST_REMEDY
    if after.budget[CASTS]:
        # Fused casts do other kernels' work too, so both count.
        cause, case = cost_of_casts([r.tax for r in after.ranks if r.tax], _payoffs(after))
        yield growth[CASTS] + growth[REST], cause, payoff_remedy(case)
    else:
        yield growth[REST], REST, _REST_REMEDY


def _payoffs(side: Measured) -> list[PayoffReport]:
    return [rank.payoff for rank in side.ranks if rank.payoff is not None]


def _finding(cause: str, remedy: str, figure: str) -> Finding:
    return finding("fp8-not-paying", "compared", cause=cause, figure=figure, remedy=remedy)


def _more(time_us: float) -> str:
    return f"{time_us / 1000:+.2f} ms"


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.2f} ms"

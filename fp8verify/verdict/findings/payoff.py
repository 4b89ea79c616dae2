"""Findings on FP8 that runs and does not pay, each with its figure and its remedy."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.payoff import Payoff
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.small_side import SMALL_SIDE
from fp8verify.report.model import Finding, Scaling
from fp8verify.verdict.findings_table import finding

MOSTLY = 0.5
_WAITS = 0.2
_MANY_SMALL = 0.25

UNFUSED_REMEDY = (
    "Compile the model (torch.compile): it fuses each cast and amax into one pass over the data."
)
SMALL_REMEDY = (
    "Leave small layers in BF16 (module_filter_fn, filter_fqns or auto_filter_small_kn), raise "
    "the tokens a step, or use a wider model."
)
CASTS_REMEDY = (
    "Try the tensorwise recipe, whose casts are cheapest; check that activations are not cast "
    "again under checkpointing; filter layers with few tokens."
)
CHEAP_CASTS_REMEDY = (
    "Check that activations are not cast again under checkpointing; filter layers with few tokens, "
    "or raise the tokens a step."
)
GRAPH_BREAK_REMEDY = (
    "Part of the model is compiled and most casts are not: compile whole layers, and look for "
    "graph breaks (TORCH_LOGS=graph_breaks)."
)
IDLE_REMEDY = (
    "The GPU waits for the CPU: compile with mode='reduce-overhead' (CUDA graphs), or raise the "
    "batch; until then no faster GEMM can show."
)


def fp8_not_paying(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """FP8 that costs more than it can save, by the ratio of the GPU's peaks."""
    found = facts.fp8_payoff
    if found is None:
        return
    tax = found.tax
    if found.kernels is not None and found.cost > found.saved:
        cause, remedy = _cause(found, facts)
        yield finding(
            "fp8-not-paying",
            cause=cause,
            up_to="up to " if tax.unfused_ns < tax.time_ns else "",
            cast_ms=tax.time_ns / 1e6,
            saved_ms=found.saved / 1e6,
            remedy=remedy,
        )
    elif found.waits and found.step and found.busy_in_step:
        yield finding(
            "fp8-not-paying",
            "cpu-bound",
            step_ms=found.step / 1e6,
            busy_ms=found.busy_in_step / 1e6,
            remedy=IDLE_REMEDY,
        )
    elif found.waits is None and found.idle >= MOSTLY and _times_are_whole(facts):
        yield finding("fp8-not-paying", "launch-bound", idle=found.idle, remedy=IDLE_REMEDY)


def gpu_waits(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """A GPU that is idle for a good part of an FP8 window, not yet most of it."""
    found = facts.fp8_payoff
    if found is None or found.waits is not None:
        return  # steps outside the window tell, without the profiler's waiting
    if _WAITS <= found.idle < MOSTLY and _times_are_whole(facts):
        yield finding("gpu-idle", idle=found.idle, remedy=IDLE_REMEDY)


def small_gemms(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """FP8 GEMMs many of which are too small to gain, while the whole may still pay."""
    found = facts.fp8_payoff
    if found is None or found.small is None or found.small < _MANY_SMALL:
        return
    if found.cost <= found.saved:
        yield finding("small-gemms", share=found.small, side=SMALL_SIDE, remedy=SMALL_REMEDY)


def _times_are_whole(facts: RankFacts) -> bool:
    """Whether pauses in the trace are pauses of the GPU, not lost kernels or broken clocks."""
    health = facts.rank.health
    return health.complete and not health.bad_durations


def _cause(found: Payoff, facts: RankFacts) -> tuple[str, str]:
    """Return what costs most, and a remedy that is not in force already."""
    if found.tax.unfused_ns >= MOSTLY * found.tax.time_ns:
        compiled = any(row.fused for row in found.tax.rows)
        return "unfused eager casts", GRAPH_BREAK_REMEDY if compiled else UNFUSED_REMEDY
    if found.small is not None and found.small >= MOSTLY:
        return f"small GEMMs (a side below {SMALL_SIDE})", SMALL_REMEDY
    scalings = {row.scaling for row in facts.rank.survey.gemms if row.scaling is not None}
    tensorwise = scalings <= {Scaling.TENSORWISE}
    return "costly casts", CHEAP_CASTS_REMEDY if tensorwise else CASTS_REMEDY

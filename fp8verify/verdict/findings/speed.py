"""Findings on speed: FP8 that costs more than it saves, and what else costs time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify import thresholds as limits
from fp8verify.analysis.gemms import gemm_totals
from fp8verify.analysis.payoff import added_us
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.weight_casts import weight_casts
from fp8verify.kernels.operators import find
from fp8verify.logs.messages import misses_fbgemm
from fp8verify.model.costs import PayoffReport, TaxReport
from fp8verify.model.verdict import Finding
from fp8verify.terms import Precision, Role, Scaling
from fp8verify.text import shown_size
from fp8verify.verdict.advice import (
    Fact,
    after_fusing,
    after_graphs,
    attention_share,
    costs_attention,
    facts_after,
    facts_of,
    gain_of_fusing,
    gain_of_graphs,
    may_be_captured,
    those_that_hold,
    times,
)
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings_table import cases_of, finding
from fp8verify.verdict.wording import ms_of

_OF_UNSLOTH = "_w8a8_block_fp8_matmul"
_MATH_BACKEND = "the math backend of scaled_dot_product_attention"


def payoff_remedy(case: str, holds: frozenset[str] = frozenset()) -> str:
    """Return what helps against a cause of FP8 that does not pay, as the table of findings says.

    Args:
        case: the cause.
        holds: facts of the run.
    """
    advice = cases_of("fp8-not-paying")[case].hint_for(_with_capturing(holds))
    return advice.replace("{gain}", "")


def _with_capturing(holds: frozenset[str]) -> frozenset[str]:
    """Return facts, and whether CUDA graphs may be captured where they hold."""
    return holds | those_that_hold({Fact.CAPTURABLE: may_be_captured(holds)})


def fp8_not_paying(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """FP8 that costs more than it can save, or whose gain is lost because the GPU waits."""
    figures = rank.gain.payoff
    if figures is None or not rank.ran_low:
        return
    holds = _facts_of(rank, requested)
    pauses = _pauses(rank, figures)
    saved_ns = rank.gain.saving.saved_ns
    overhead = rank.gain.tax
    casts_us = 0.0 if overhead is None else added_us(overhead.rows)
    pays = saved_ns is None or 1000 * casts_us <= saved_ns
    # Of several causes the one that costs most is named.
    idle_us = figures.idle_in_step_us * len(rank.trace.steps)
    costs_most = pays or idle_us >= max(casts_us, rank.gain.saving.lost_ns / 1000)
    if pauses >= limits.HALF:  # what the GPU computes decides nothing
        yield _waiting(rank, f"idle for {pauses:.0%} of the window", holds)
    elif figures.waits and figures.step_us and costs_most:
        step = figures.step_us / 1e3
        idle = figures.idle_in_step_us / 1e3
        waits = f"idle for {idle:.1f} ms of each {step:.1f} ms step (unprofiled)"
        yield _waiting(rank, waits, holds - {Fact.SLOW_GEMMS.value})
    elif overhead is not None and saved_ns is not None and not pays:
        yield _costly(rank, overhead, saved_ns)
    # Steps outside the window tell more, without the profiler's waiting.
    if limits.WAITING <= pauses < limits.HALF:
        yield finding("gpu-idle", idle=pauses, holds=holds)
    if (figures.small_gemm_share or 0.0) >= limits.MANY_SMALL and pays:
        yield finding("small-gemms", share=figures.small_gemm_share)


def _facts_of(rank: RankEvidence, requested: Requested) -> frozenset[str]:
    """Return what holds of a rank, and the framework that the log names."""
    frameworks = {claim.framework for claim in requested.claims}
    holds = facts_of(rank)
    if "Megatron-LM" in frameworks:
        holds |= {Fact.MEGATRON.value}
    return holds


def _pauses(rank: RankEvidence, figures: PayoffReport) -> float:
    """Return the share of the window in which the GPU did nothing, 0 where steps tell more."""
    # Otherwise pauses in the trace are lost kernels or broken clocks.
    health = rank.trace.health
    times_are_whole = health.complete and not health.bad_durations
    return figures.idle_share if figures.waits is None and times_are_whole else 0.0


def _waiting(rank: RankEvidence, waits: str, holds: frozenset[str]) -> Finding:
    """A GPU that waits for longer than FP8 can save."""
    is_of_library = not holds.isdisjoint((Fact.ENGINE.value, Fact.MEGATRON.value))
    fuses = Fact.UNFUSED.value in holds and not is_of_library
    then = after_graphs(rank, fuses=fuses)
    return finding(
        "fp8-not-paying",
        "launch-bound",
        waits=waits,
        gain=gain_of_graphs(rank),
        then=then,
        means="CUDA graphs and fused casts" if fuses else "CUDA graphs",
        holds=_with_capturing(holds) | facts_after(then),
    )


def _costly(rank: RankEvidence, overhead: TaxReport, saved_ns: float) -> Finding:
    """Casts that cost more than the GEMMs save, or GEMMs that lose more than casts cost."""
    payoffs = [rank.gain.payoff] if rank.gain.payoff is not None else []
    cause, case = cost_of_casts([overhead], payoffs)
    lost_ns = rank.gain.saving.lost_ns
    if lost_ns > 1000 * overhead.time_us:  # "fp8-gemm-slow" says what to do
        cause = "slow GEMMs"
        case = "slow-gemms"
    up_to = "up to " if overhead.unfused_us < overhead.time_us else ""
    then = after_fusing(rank)
    saved = f"save at most {ms_of(rank, saved_ns)}"
    if saved_ns < 0:
        saved = f"take {ms_of(rank, -saved_ns)} more than BF16 ones"
    return finding(
        "fp8-not-paying",
        case,
        cause=cause,
        up_to=up_to,
        took=ms_of(rank, 1000 * overhead.time_us),
        saved=saved,
        gain=gain_of_fusing(rank),
        then=then,
        fixes="both fixes" if costs_attention(rank) else "this fix alone",
        holds=facts_of(rank) | facts_after(then),
    )


def fp8_gemm_slow(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """GEMMs in low precision that take longer than BF16 takes at their size."""
    slow = rank.gain.saving.slow
    lost_ns = rank.gain.saving.lost_ns
    busy = rank.trace.timeline.busy
    if not slow or lost_ns < limits.LOST * busy:
        return
    worst = slow[0]
    shape = worst.total.shape
    scaling = worst.total.kind.classification.scaling
    line = _without_fbgemm(worst.total.kind.name, requested)
    found = {
        Fact.NO_FBGEMM: bool(line),
        Fact.SHORT_SIDE: min(shape[1:]) < limits.SMALL_SIDE,
        Fact.BLOCKS: scaling is Scaling.BLOCKWISE,
    }
    share = lost_ns / busy
    yield finding(
        "fp8-gemm-slow",
        gpu_share=share,
        holds=those_that_hold(found),
        size=shown_size(shape[1:]),
        fp8=worst.total.tflops,
        bf16=worst.bf16_tflops,
        kernel=worst.total.kind.name.partition("(")[0][:80],
        others=f", and in {len(slow) - 1} more sizes" if len(slow) > 1 else "",
        lost=ms_of(rank, lost_ns),
        line=line,
    )


def _without_fbgemm(kernel: str, requested: Requested) -> int:
    """Return the log line that says why unsloth's own kernel ran, 0 where none does.

    Source: unsloth 0050c73 unsloth/kernels/fp8.py: fbgemm_gpu from 1.4.0 on, else torchao's GEMM,
    else this kernel, which it says to be the slowest.
    """
    mention = requested.mention
    if mention is None or not misses_fbgemm(mention.text):
        return 0
    return mention.line if kernel.startswith(_OF_UNSLOTH) else 0


def cost_of_casts(
    overheads: Sequence[TaxReport], payoffs: Sequence[PayoffReport]
) -> tuple[str, str]:
    """Return what costs most, and the case with a remedy that is not in force already."""
    unfused_us = 0.0
    time_us = 0.0
    is_compiled = False
    for overhead in overheads:
        unfused_us += overhead.unfused_us
        time_us += overhead.time_us
        is_compiled = is_compiled or any(row.fused for row in overhead.rows)
    if unfused_us >= limits.HALF * time_us:
        remedy = "graph-breaks" if is_compiled else "compile"
        return "unfused eager casts", remedy
    if gemms_are_small(payoffs):
        return f"small GEMMs (a side below {limits.SMALL_SIDE})", "small"
    return "costly casts", "casts"


def gemms_are_small(payoffs: Sequence[PayoffReport]) -> bool:
    """Whether most of the FP8 GEMM time of any rank is in GEMMs too small to gain."""
    return any((payoff.small_gemm_share or 0.0) >= limits.HALF for payoff in payoffs)


def attention_unfused(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Products of attention as GEMMs of their own: their backend, and what they cost."""
    rows = rank.trace.attention
    if not rows:
        return
    totals = gemm_totals(rows)
    of_gpu = attention_share(rank)
    operators: set[str] = set()
    for row in rows:
        operators.update(row.kind.op.parents)
    backend = "bmm, softmax, bmm"
    if any(find(name).encloses is Role.ATTENTION for name in operators):
        backend = _MATH_BACKEND
    yield finding(
        "attention-unfused",
        "costly" if of_gpu >= limits.COSTLY else "",
        gpu_share=of_gpu,
        backend=backend,
        formats=" and ".join(
            p.value.upper() for p in Precision if totals.kernels[p.value]
        ),
        took=ms_of(rank, totals.total_ns),
        of_gpu=of_gpu,
        gain=_gain_without(of_gpu),
        holds=facts_of(rank),
    )


def _gain_without(share: float) -> str:
    """Say how much faster the GPU is at most without what takes a share of its time."""
    if share >= limits.NEARLY_ALL:
        return ""
    return f", for GPU work up to about {times(1 / (1 - share))} as fast as now"


def scalar_all_reduces(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """All-reduces of one element each, as torchao makes for the amax of every sharded weight."""
    calls = 0
    time_ns = 0
    for total in rank.trace.collectives:
        is_scalar = total.in_elements == total.out_elements == 1
        if is_scalar and "reduce" in total.name.lower():
            calls += total.calls
            time_ns += total.time_ns
    steps = max(1, len(rank.trace.steps))
    if rank.ran_low and calls >= limits.USUAL_SCALARS * steps:
        share = time_ns / rank.trace.timeline.busy
        took = ms_of(rank, time_ns)
        yield finding("scalar-all-reduces", calls=calls, took=took, share=share)


def weight_recast(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Weights that are cast in each micro-batch, though they change once a step."""
    found = weight_casts(rank.trace, rank.modules)
    gpu_ns = sum(rank.gpu_time.values())
    if found is None or not gpu_ns or found.casts < found.micro_batches:
        return
    share = found.time_ns * (1 - 1 / found.micro_batches) / gpu_ns
    if share >= limits.RECAST:
        casts = found.casts
        parts = found.micro_batches
        size = shown_size(found.size)
        figures = rank.gain.payoff
        # Then the saving shortens no step.
        cpu_limits = figures is not None and figures.cpu_limits
        yield finding(
            "weight-recast",
            "cpu-limits" if cpu_limits else "",
            gpu_share=share,
            casts=casts,
            micro_batches=parts,
            size=size,
            share=share,
            holds=facts_of(rank),
        )


def not_compiled(ranks: Sequence[RankEvidence], _: Requested) -> Iterator[Finding]:
    """What the compiler says in the log that it left uncompiled, else where it broke graphs."""
    signs = ranks[0].recorded.signs
    found = signs.left or signs.graph_breaks
    if not found:
        return
    where = f"log line {found[0].line}"
    if len(found) > 1:
        where += f", and {len(found) - 1} more"
    yield finding(
        "not-compiled",
        "" if signs.left else "graph-breaks",
        where=where,
        text=found[0].text,
    )


def known_warnings(ranks: Sequence[RankEvidence], _: Requested) -> Iterator[Finding]:
    """Warnings of the log whose meaning is known, each with how often it stands there."""
    for warned in ranks[0].recorded.signs.warned:
        where = f"log line {warned.line}"
        if warned.times > 1:
            where += f", {warned.times:,} times"
        yield finding(
            "known-warning",
            where=where,
            text=warned.text,
            cause=warned.known.cause,
            remedy=warned.known.remedy,
        )

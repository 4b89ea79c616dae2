"""What advice may be given to a run: facts of the run, which pieces of the table's hints need.

A hint of `findings.toml` is a sentence, or a list of pieces with the facts that each needs; "not "
before a fact means that it must not hold. `finding()` keeps the pieces whose facts hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from fp8verify.analysis.bf16_times import shape_of
from fp8verify.analysis.gemms import is_generated
from fp8verify.analysis.payoff import added_us
from fp8verify.analysis.rank import RankEvidence
from fp8verify.terms import LEGS, VAGUE_LEGS, Leg, Precision
from fp8verify.thresholds import (
    COSTLY,
    FP8_SIDE,
    FUSED_CASTS,
    HALF,
    LOST,
    NEARLY_ALL,
    NO_GAIN,
)
from fp8verify.verdict.selection import amount_of


class Fact(str, Enum):
    """What holds of a run; each is read from its kernels or its record, none is guessed."""

    GRAPHS = "graphs"  # CUDA graphs launch its kernels
    COMPILED = "compiled"  # TorchInductor generated some of its kernels
    UNFUSED = "unfused"  # most of the time of its casts is in kernels of one step each
    RECOMPUTES = "recomputes"  # it computes forward passes again
    TORCHAO = "torchao"  # torchao's layers train in it
    ENGINE = "transformer-engine"  # Transformer Engine's do
    MEGATRON = "megatron"  # Megatron-LM's do
    FROZEN = "frozen"  # its FP8 weights have no gradient
    WGRAD_ALONE = "wgrad-alone"  # wgrad is the only leg without FP8
    ATTENTION = "attention"  # its attention multiplies in GEMMs of its own
    PARALLEL = "parallel"  # its GPUs talk to each other
    WIDE = "wide"  # most of the time of its other GEMMs is in 32 bits
    ONE_SIZE = "one-size"  # all its FP8 layers have the same inputs and outputs
    SHAPES = "shapes"  # the sizes of its GEMMs are recorded
    SLOW_GEMMS = "slow-gemms"  # its FP8 GEMMs cost time over BF16 ones
    SHORT_SIDE = "short-side"  # the slowest of them have a short side
    TRITON = "triton"  # the kernel of unknown precision is Triton's by its name
    BLOCKS = "blocks"  # the slowest of them have scales by block
    CAPTURABLE = "capturable"  # CUDA graphs do not launch its kernels yet, and may
    # What FP8 brings over BF16, by an estimate, once the advice is followed:
    GAINS = "gains"  # a gain
    NO_GAIN = "no-gain"  # next to nothing
    LOSES = "loses"  # a loss
    # Of what ran in high precision though FP8 was expected:
    WHOLE = "whole-layers"  # all legs of it did
    FORWARD = "forward-alone"  # fprop alone did
    GRADIENT = "gradient-alone"  # dgrad or wgrad did, and not fprop
    RECOMPUTED = "recomputed"  # its recomputed forward passes did, among others
    ONE_RANK = "one-rank"  # other ranks ran it in FP8
    EXPERTS = "experts"  # it is the experts'
    SAME_CALLS = "same-calls"  # steps or ranks with the same GEMMs ran in FP8
    LATER = "later"  # a step before it is among these
    OTHER_CALLS = "other-calls"  # each of its calls ran in FP8 in other executions
    LISTED = "listed"  # the module list has its layers as converted
    UNLISTED = "listed-elsewhere"  # lists of other ranks do, those of its own do not
    PINNED = "others-pinned"  # the log keeps others in high precision, not it
    NO_FBGEMM = "no-fbgemm"  # the log says that unsloth found no fbgemm_gpu, and its own kernel ran
    UNALIGNED = "unaligned"  # its sides alone are no multiples of 16, as FP8 needs them


def facts_of(rank: RankEvidence) -> frozenset[str]:
    """Return what holds of a rank."""
    kernels = [total.kind.name for total in rank.trace.others]
    kernels += [row.kind.name for row in rank.trace.gemms]
    sources = {module.source or "" for module in rank.modules}
    calls = rank.recorded.meta.api_calls
    tax = rank.gain.tax
    found = {
        Fact.GRAPHS: rank.trace.health.kernels_in_graphs > 0,
        Fact.COMPILED: any(map(is_generated, kernels)),
        Fact.UNFUSED: tax is not None and tax.unfused_us >= HALF * tax.time_us,
        Fact.RECOMPUTES: recomputes(rank),
        Fact.TORCHAO: _any_from("torchao", sources) or _any_from("torchao", calls),
        Fact.ENGINE: _any_from("transformer_engine", sources)
        or any(map(is_of_engine, kernels)),
        Fact.MEGATRON: _any_from("megatron", sources),
        Fact.FROZEN: _has_frozen_base(rank),
        Fact.WGRAD_ALONE: _legs_without_low(rank) == {Leg.WGRAD},
        Fact.ATTENTION: bool(rank.trace.attention),
        Fact.PARALLEL: bool(rank.trace.collectives),
        Fact.WIDE: _is_wide(rank),
        Fact.ONE_SIZE: len(_low_sizes(rank)) == 1,
        Fact.SHAPES: any(row.shape is not None for row in rank.trace.gemms),
        Fact.SLOW_GEMMS: rank.gain.saving.lost_ns
        >= LOST * rank.trace.timeline.busy
        > 0,
    }
    return those_that_hold(found)


def those_that_hold(found: Mapping[Fact, bool]) -> frozenset[str]:
    """Return the names of the facts that hold."""
    return frozenset(fact.value for fact, holds in found.items() if holds)


def may_be_captured(holds: frozenset[str]) -> bool:
    """Whether CUDA graphs may launch the kernels of a run, and do not yet.

    Transformer Engine's own graphs do not record passes that are computed again.
    """
    if Fact.GRAPHS.value in holds:
        return False
    is_of_engine_alone = Fact.ENGINE.value in holds and Fact.MEGATRON.value not in holds
    return not (is_of_engine_alone and Fact.RECOMPUTES.value in holds)


def recomputes(rank: RankEvidence) -> bool:
    """Whether a forward pass is computed again, by its GEMMs or casts."""
    legs = {row.leg for row in rank.trace.gemms}
    tax = rank.gain.tax
    if tax is not None:
        legs.update(row.leg for row in tax.rows)
    return Leg.RECOMPUTE in legs


def is_of_engine(kernel: str) -> bool:
    """Whether a kernel's name is of Transformer Engine."""
    return "transformer_engine::" in kernel


def _any_from(package: str, names: Iterable[str]) -> bool:
    return any(name.partition(".")[0] == package for name in names)


def _has_frozen_base(rank: RankEvidence) -> bool:
    """Whether no layer that runs forward in FP8 has a wgrad of its size, though others have."""
    forward: set[tuple[int, int]] = set()
    trained: set[tuple[int, int]] = set()
    legs: set[Leg] = set()
    for row in rank.trace.gemms:
        legs.add(row.leg)
        shape = shape_of(row)
        if shape is not None and row.leg is Leg.FPROP and row.precision.is_low:
            forward.update(shape.layer_sizes(row.leg))
        if shape is not None and row.leg is Leg.WGRAD:
            trained.update(shape.layer_sizes(row.leg))
    is_certain = Leg.DGRAD in legs and legs.isdisjoint(VAGUE_LEGS)
    return bool(forward) and is_certain and forward.isdisjoint(trained)


def _low_sizes(rank: RankEvidence) -> set[tuple[int, ...]]:
    """Return outputs and inputs of the layers that run forward in low precision, where known."""
    sizes: set[tuple[int, ...]] = set()
    for row in rank.trace.gemms:
        if row.leg is Leg.FPROP and row.precision.is_low:
            shape = shape_of(row)
            if shape is None:
                return set()
            sizes.add((shape.n, shape.k))
    return sizes


def is_unaligned(rank: RankEvidence, legs: Collection[Leg], launches: float) -> bool:
    """Whether as many launches of some legs have a side that FP8 GEMMs do not take, and no low one.

    Args:
        rank: whose GEMMs they are.
        legs: of what ran in high precision.
        launches: how many did, though FP8 was expected.
    """
    odd = 0
    for row in rank.trace.gemms:
        shape = shape_of(row)
        if shape is None or not (shape.n % FP8_SIDE or shape.k % FP8_SIDE):
            continue
        if row.precision.is_low:
            return False
        if row.leg in legs:
            odd += row.calls
    return odd >= launches > 0


def _is_wide(rank: RankEvidence) -> bool:
    """Whether most of the time of GEMMs in high precision is in FP32 or TF32."""
    time_us = rank.linear.time_us
    wide = _time_in(time_us, Precision.FP32, Precision.TF32)
    narrow = _time_in(time_us, Precision.BF16, Precision.FP16)
    return wide > narrow


def _time_in(time_us: Mapping[str, float], *precisions: Precision) -> float:
    time = 0.0
    for precision in precisions:
        time += time_us.get(precision.value, 0.0)
    return time


def _legs_without_low(rank: RankEvidence) -> set[Leg]:
    low = set()
    high = set()
    for row in rank.trace.trained:
        if row.precision.is_low:
            low.add(row.leg)
        elif row.precision is Precision.BF16:
            high.add(row.leg)
    return (high - low) & set(LEGS)


# ---- what a remedy brings


def gain_of_fusing(rank: RankEvidence) -> str:
    """Say how much faster a step is with fused casts, as compiled ones are; nothing if unknown.

    With unfused attention it is said of both, too: each alone says little of what can be reached.
    """
    figures = rank.gain.payoff
    if rank.gain.tax is None or figures is None:
        return ""
    fused_us = figures.gpu_busy_us - _saved_by_fusing(rank)
    both_us = fused_us - _costly_attention_us(rank)
    faster = times(figures.gpu_busy_us / fused_us)
    gain = f", for GPU work up to about {faster} as fast as now"
    if both_us in (0, fused_us):
        return gain
    return f"{gain} ({times(figures.gpu_busy_us / both_us)} with fused attention)"


def gain_of_graphs(rank: RankEvidence) -> str:
    """Say how much faster a step is if its GPU never waits; nothing if step times are unknown.

    It is the ratio of the two times that the line of the speed gives.
    """
    figures = rank.gain.payoff
    if figures is None or not figures.step_us or not figures.gpu_busy_in_step_us:
        return ""
    faster = times(figures.step_us / figures.gpu_busy_in_step_us)
    return f", for steps up to about {faster} as fast as now, in BF16 too"


def after_graphs(rank: RankEvidence, *, fuses: bool) -> float | None:
    """Return how fast FP8 is over BF16 if the GPU never waits; None where that is unknown.

    Args:
        rank: whose kernels they are.
        fuses: whether the advice fuses its casts, too.
    """
    return _ratio_afterwards(rank, fuses=fuses)


def after_fusing(rank: RankEvidence) -> float | None:
    """Return how fast it is once its casts are fused, and its attention where that costs much."""
    return _ratio_afterwards(rank, fuses=True, less_us=_costly_attention_us(rank))


def facts_after(ratio: float | None) -> frozenset[str]:
    """Return what holds of FP8 that is so fast over BF16; nothing where that is unknown."""
    if ratio is None:
        return frozenset()
    found = {
        Fact.GAINS: ratio > 1 + NO_GAIN,
        Fact.NO_GAIN: abs(ratio - 1) <= NO_GAIN,
        Fact.LOSES: ratio < 1 - NO_GAIN,
    }
    return those_that_hold(found)


def _ratio_afterwards(
    rank: RankEvidence, *, fuses: bool, less_us: float = 0.0
) -> float | None:
    """Return how fast the kernels are over BF16's; None where it cannot be estimated.

    Args:
        rank: whose kernels they are.
        fuses: whether its casts are fused.
        less_us: µs that it spends no longer, in whatever format it multiplies.
    """
    figures = rank.gain.payoff
    saved_ns = rank.gain.saving.saved_ns
    tax = rank.gain.tax
    if figures is None or saved_ns is None or figures.no_estimate:
        return None
    cost_us = 0.0 if tax is None else added_us(tax.rows)
    fp8_us = figures.gpu_busy_us - less_us
    bf16_us = fp8_us - cost_us + saved_ns / 1000
    if fuses:
        fp8_us -= _saved_by_fusing(rank)
    return bf16_us / fp8_us


def costs_attention(rank: RankEvidence) -> bool:
    """Whether its attention costs much because it is not fused."""
    return _costly_attention_us(rank) > 0


def attention_share(rank: RankEvidence) -> float:
    """Return the share of GPU time that GEMMs of attention's own take."""
    attention_ns = amount_of(rank.trace.attention)
    gpu_ns = sum(rank.gpu_time.values())
    return attention_ns / (gpu_ns or 1)


def _costly_attention_us(rank: RankEvidence) -> float:
    """Return the µs of the window that attention costs because it is not fused, 0 for little."""
    figures = rank.gain.payoff
    share = attention_share(rank)
    if figures is None or not COSTLY <= share < NEARLY_ALL:
        return 0.0
    return share * figures.gpu_busy_us


def times(ratio: float) -> str:
    """Return an estimated ratio in two digits at the most: "1.6x", "15x"."""
    if ratio < 9.95:
        return f"{ratio:.1f}x"
    return f"{ratio:.0f}x"


def _saved_by_fusing(rank: RankEvidence) -> float:
    """Return the µs of the window that a compiler saves by fusing eager casts."""
    tax = rank.gain.tax
    return 0.0 if tax is None else (1 - FUSED_CASTS) * tax.unfused_us

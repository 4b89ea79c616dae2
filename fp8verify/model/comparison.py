"""The structs of a comparison (two runs, their steps, what makes the difference) and of a table."""

from __future__ import annotations

from enum import Enum

import msgspec

from fp8verify.model.verdict import Finding
from fp8verify.terms import Verdict


class Outcome(str, Enum):
    """Whether the candidate is faster at equal work, by a 95% interval; SAME within 5%."""

    FASTER = "FASTER"
    SAME = "SAME"
    SLOWER = "SLOWER"
    UNDECIDED = "UNDECIDED"
    NOT_COMPARABLE = "NOT_COMPARABLE"


class ComparedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the compared steps in µs: without the profiler where both runs know such.

    Attributes:
        measured: outside (wall time of steps without the profiler), log (as the training logged
            them), gpu or cpu (as profiled), or window if no step was recorded.
        steps: how many steps.
        left_out: further steps that took more than 1.5 times the median.
        mean_us: mean step in microseconds.
        deviation_us: standard deviation of a step; null of a single one.
        median_us: median step in microseconds.
        min_us: shortest step in microseconds.
        max_us: longest step in microseconds.
    """

    measured: str
    steps: int
    left_out: int
    mean_us: float
    deviation_us: float | None
    median_us: float
    min_us: float
    max_us: float


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs: its name, the rank that is compared, its verdict and its steps.

    Attributes:
        name: what the run is called: its folder, or --name.
        source: file of the trace.
        rank: first rank that is compared.
        ranks: all ranks that are compared.
        verdict: ACTIVE, PARTIAL, INACTIVE, CONTRADICTED, EMULATED or INCONCLUSIVE.
        gpu: name of the GPU; null where not known.
        fp8_share_of_time: FP8 share of GEMM time; null without GEMMs.
        step: times of its steps.
        flops_per_step: forward GEMM operations of a step; null where not known.
    """

    name: str
    source: str
    rank: int | None
    ranks: tuple[int, ...]
    verdict: Verdict
    gpu: str | None
    fp8_share_of_time: float | None
    step: ComparedSteps
    flops_per_step: float | None


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """µs of a mean step that one kind of work takes; the rows of a side add up to its mean step.

    Attributes:
        name: kind of work: GEMM, casts and scales, attention, exposed communication and so on.
        baseline_us: microseconds in the baseline.
        candidate_us: microseconds in the candidate.
        change_us: microseconds of the candidate less those of the baseline.
    """

    name: str
    baseline_us: float
    candidate_us: float
    change_us: float


class GemmPair(msgspec.Struct, frozen=True, kw_only=True):
    """GEMMs of one pass of the layers of `n` outputs and `k` inputs, in both runs.

    Times are µs of one GEMM with its split-K reduction; `speedup` is of the rate where `tokens`
    differ, else of the time. `calls` are a step's.

    Attributes:
        leg: pass of a GEMM: fprop, dgrad, wgrad, backward, recompute or unknown.
        n: outputs of the layers.
        k: inputs of the layers.
        baseline_tokens: tokens of a GEMM in the baseline.
        candidate_tokens: tokens of a GEMM in the candidate.
        baseline_precision: precision class in the baseline.
        candidate_precision: precision class in the candidate.
        baseline_us: microseconds in the baseline.
        candidate_us: microseconds in the candidate.
        baseline_calls: GEMMs of a step in the baseline.
        candidate_calls: GEMMs of a step in the candidate.
        speedup: how many times as fast a GEMM is, per token.
    """

    leg: str
    n: int
    k: int
    baseline_tokens: int
    candidate_tokens: int
    baseline_precision: str
    candidate_precision: str
    baseline_us: float
    candidate_us: float
    baseline_calls: float
    candidate_calls: float
    speedup: float


class LegPair(msgspec.Struct, frozen=True, kw_only=True):
    """µs a step of all GEMMs of one pass, and how many times faster they are at equal work.

    Attributes:
        leg: pass of a GEMM: fprop, dgrad, wgrad, backward, recompute or unknown.
        baseline_us: microseconds in the baseline.
        candidate_us: microseconds in the candidate.
        speedup: how many times as fast.
    """

    leg: str
    baseline_us: float
    candidate_us: float
    speedup: float | None


class RankPair(msgspec.Struct, frozen=True, kw_only=True):
    """µs of the mean step of a rank that both runs have, as profiled.

    Attributes:
        rank: number of the rank; null where not known.
        baseline_us: microseconds in the baseline.
        candidate_us: microseconds in the candidate.
        step_speedup: how many times as fast a step is.
        baseline_fp8_share: FP8 share of GEMM time in the baseline; null without GEMMs.
        candidate_fp8_share: FP8 share of GEMM time in the candidate; null without GEMMs.
    """

    rank: int
    baseline_us: float
    candidate_us: float
    step_speedup: float
    baseline_fp8_share: float | None
    candidate_fp8_share: float | None


class MemoryPair(msgspec.Struct, frozen=True, kw_only=True):
    """Peak GPU memory of the fullest rank of each run, in bytes.

    Attributes:
        rank: the candidate's fullest rank; null where not known.
        baseline_allocated: bytes of tensors in the baseline.
        candidate_allocated: bytes of tensors in the candidate.
        baseline_reserved: bytes that torch held in the baseline.
        candidate_reserved: bytes that torch held in the candidate.
        total: bytes of the GPU.
        why: what FP8 has to do with it.
    """

    rank: int | None
    baseline_allocated: int
    candidate_allocated: int
    baseline_reserved: int
    candidate_reserved: int
    total: int
    why: tuple[str, ...]


class LayerPair(msgspec.Struct, frozen=True, kw_only=True):
    """The GEMMs of one layer by name in both runs; the slowest of all layers first.

    Times are µs of its GEMMs in a step, None if the layers of a run were named in an eager step.

    Attributes:
        layer: name of the layer.
        baseline_precision: precision class in the baseline.
        candidate_precision: precision class in the candidate.
        baseline_us: microseconds in the baseline.
        candidate_us: microseconds in the candidate.
        speedup: how many times as fast.
    """

    layer: str
    baseline_precision: str
    candidate_precision: str
    baseline_us: float | None
    candidate_us: float | None
    speedup: float | None


class LossPair(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of both logs at the steps that both have.

    Gaps are candidate less baseline, over the steps at which both are finite. `counted` says that
    the steps are counted lines. `curve` are (step, baseline, candidate), of many steps some.

    Attributes:
        frameworks: whose wording the loss lines have, baseline first.
        steps: how many steps have a finite loss in both logs.
        first_step: first step that both logs have.
        last_step: last step that both logs have.
        last_baseline: the baseline's loss at the last step that both logs have.
        last_candidate: the candidate's loss there.
        mean_gap: mean gap of the losses, candidate less baseline.
        largest_gap: largest gap of the losses, candidate less baseline.
        largest_gap_step: step of the largest gap.
        first_bad_step: first step whose loss is not finite.
        counted: whether steps are counted lines, since the log has no numbers.
        curve: step, loss of the baseline, loss of the candidate; of many steps some.
        relative_gap: median gap of the last half of the steps, over the baseline's loss there.
        trend: growing, steady or shrinking: the relative gap of the last third of the steps against
            that of the first; unknown if there are few steps.
        diverged_step: the first from which on the candidate's loss stays above the baseline's by
            more than 5%.
        first_bad_run: baseline, candidate or both: whose loss is not finite at `first_bad_step`.
        gap_is_noise: whether the gap of the last half is within the scatter of the losses, or
            there are too few steps to tell.
    """

    frameworks: tuple[str, str]
    steps: int
    first_step: int
    last_step: int
    last_baseline: float | None
    last_candidate: float | None
    mean_gap: float | None
    largest_gap: float | None
    largest_gap_step: int | None
    first_bad_step: int | None
    counted: bool
    curve: tuple[tuple[int, float | None, float | None], ...] = ()
    relative_gap: float | None = None
    trend: str = "unknown"
    diverged_step: int | None = None
    first_bad_run: str | None = None
    gap_is_noise: bool = False

    def place_of(self, step: int | None) -> str:
        """Say of which step, or of which logged value where no line says its step."""
        return f"{'logged value' if self.counted else 'step'} {step}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared; `speedup` is at equal work, `step_speedup` of the steps.

    `busy_speedup` is at equal work and without the time in which the GPU waits, which profiling
    lengthens. `work_ratio` is the candidate's forward GEMM FLOPs a step over the baseline's, None
    if unknown.

    Attributes:
        schema_version: version of this document's schema.
        fp8verify_version: version of fp8verify that made the document.
        outcome: FASTER, SAME, SLOWER or NOT_COMPARABLE.
        reason: why, in a sentence.
        exit_code: exit code of the command.
        speedup: how many times as fast the candidate is, at equal work: a ratio of mean steps.
        interval: 95% bounds of `speedup`; null where a run has fewer than three steps.
        steps_needed: steps of each run that would tell; null where these do.
        step_speedup: how many times as fast a step is.
        busy_speedup: speed-up at equal work without the time in which the GPU waits.
        work_ratio: forward GEMM operations of the candidate's step over the baseline's.
        gemm_speedup: how many times as fast all GEMMs of a step are, at equal work.
        baseline: the run to compare with; null where nothing can be compared.
        candidate: the run in question; null where nothing can be compared.
        names: what the baseline and the candidate are called.
        budget: what a mean step is made of.
        legs: GEMM time a step by leg.
        gemms: GEMMs of both runs, paired by layer size and leg.
        layers: layers of both runs, paired by name.
        ranks: ranks of both runs, if there are several.
        memory: peaks of GPU memory; null where either is not known.
        loss: losses of both logs at equal steps; null if there are none.
        findings: causes, and demands that are not met.
        notes: further remarks.
    """

    schema_version: int
    fp8verify_version: str
    outcome: Outcome
    reason: str
    exit_code: int
    names: tuple[str, str]
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    steps_needed: int | None = None
    step_speedup: float | None = None
    busy_speedup: float | None = None
    work_ratio: float | None = None
    gemm_speedup: float | None = None
    baseline: Side | None = None
    candidate: Side | None = None
    budget: tuple[BudgetRow, ...] = ()
    legs: tuple[LegPair, ...] = ()
    gemms: tuple[GemmPair, ...] = ()
    layers: tuple[LayerPair, ...] = ()
    ranks: tuple[RankPair, ...] = ()
    memory: MemoryPair | None = None
    loss: LossPair | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run at a glance; what is not known is None.

    `lowest_rank_share` is that of the rank with the least FP8. `step_us` is the median step of the
    first rank on the GPU (on the CPU where the GPU's is not known), `speedup_estimate` over BF16
    the least of all ranks', `errors` and `warnings` count findings.

    Attributes:
        name: what the run is called: its folder, or --name.
        verdict: ACTIVE, PARTIAL, INACTIVE, CONTRADICTED, EMULATED or INCONCLUSIVE.
        reason: why, in a sentence.
        exit_code: exit code of the command.
        gpu: name of the GPU; null where not known.
        ranks: how many ranks.
        steps: recorded steps, such as 10-12.
        fp8_share_of_time: FP8 share of GEMM time; null without GEMMs.
        lowest_rank_share: FP8 share of the rank that has the least.
        precisions: precision classes of the GEMMs, the most time first.
        scaling: as the modules' recipes say, else the kinds of scaling of the FP8 GEMMs.
        step_us: median step in microseconds; null where not known.
        gemm_us_per_step: microseconds of GEMMs in a step.
        tflops: 10^12 operations a second of all GEMMs; null where not known.
        casts_share_of_gpu_time: casts and scales as a share of GPU time.
        speedup_estimate: speed-up of GPU time over BF16 (estimate); null where not known.
        speed: whether FP8 pays, as the report says it; empty where that is not known.
        errors: findings of severity error.
        warnings: findings of severity warning.
        software: versions by name.
    """

    name: str
    verdict: Verdict
    reason: str
    exit_code: int
    gpu: str | None
    ranks: int
    steps: str
    fp8_share_of_time: float | None
    lowest_rank_share: float | None
    precisions: tuple[str, ...]
    scaling: tuple[str, ...]
    step_us: float | None
    gemm_us_per_step: float | None
    tflops: float | None
    casts_share_of_gpu_time: float | None
    speedup_estimate: float | None
    speed: str = ""
    errors: int
    warnings: int
    software: dict[str, str]


class RunTable(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in the order in which they were given; the exit code is the worst of theirs.

    Attributes:
        schema_version: version of this document's schema.
        fp8verify_version: version of fp8verify that made the document.
        exit_code: largest exit code of the runs.
        runs: runs in the order in which they were given.
    """

    schema_version: int
    fp8verify_version: str
    exit_code: int
    runs: tuple[RunRow, ...]

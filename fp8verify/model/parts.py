"""What a report is made of: frozen, typed, without behavior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from fp8verify.capture.schema import GradientRecord, RecipeRecord, TensorRecord
from fp8verify.terms import (
    Leg,
    Precision,
    Role,
    Severity,
    Shape,
    Verdict,
    fp8_share,
    low_precision_share,
)
from fp8verify.text import label_of_ranks
from fp8verify.thresholds import HALF, TOLERANCE

_Number = TypeVar("_Number", int, float)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something the reader should know, with what to do about it.

    Attributes:
        code: what kind of finding it is; docs/findings explains them.
        severity: error, warning or info.
        message: the fact, in one sentence; of the first of `ranks` if it is `per_rank`.
        hint: what to do about it, empty if nothing is to be done.
        ranks: the ranks that it is about, none if it is about the run.
        layers: the layers that it is about, by their exact names.
        per_rank: whether it holds on each of the ranks by itself.
        verdict: what it makes of its ranks, such as PARTIAL; null where they may be ACTIVE.
    """

    code: str
    severity: Severity
    message: str
    hint: str
    ranks: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    per_rank: bool = False
    verdict: Verdict | None = None

    def sentence(self, *, alone: bool) -> str:
        """Return the message, with the ranks that it holds on unless there is only one.

        Args:
            alone: whether the run has no other rank.
        """
        if alone or not self.per_rank or not self.ranks:
            return self.message
        return f"{label_of_ranks(self.ranks)}: {self.message}"


class PrecisionRow(NamedTuple):
    """GEMM time in µs of one precision class; `tflops` is None unless shapes cover all of it."""

    precision: str
    kernels: int
    time_us: float
    share: float
    tflops: float | None


class GemmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """GEMM totals by precision class.

    Attributes:
        time_us: GEMM time in µs by precision class.
        kernels: launches by precision class.
        flops: floating-point operations by precision class, as far as recorded shapes give them;
            null where no GEMM has recorded shapes.
        fp8_share_of_time: share of GEMM time in `fp8` and `mxfp8`, null without GEMMs.
        low_precision_share_of_time: the same with the FP4 formats, which the verdict judges by.
        fp8_share_of_flops: null unless the FLOPs of (nearly) all GEMM time are known.
        unknown_share_of_time: share of GEMM time in kernels of unknown precision.
        flops_coverage: share of GEMM time whose FLOPs are known.
    """

    time_us: dict[str, float]
    kernels: dict[str, int]
    flops: dict[str, float] | None
    fp8_share_of_time: float | None
    low_precision_share_of_time: float | None
    fp8_share_of_flops: float | None
    unknown_share_of_time: float
    flops_coverage: float

    @property
    def total_ns(self) -> int:
        """The time of all of them, in ns."""
        return round(1000 * sum(self.time_us.values()))

    @property
    def launches(self) -> int:
        """How many there are."""
        return sum(self.kernels.values())

    @property
    def rows(self) -> list[PrecisionRow]:
        """The precision classes that ran, the most time first."""
        total = sum(self.time_us.values())
        flops = self.flops if self.flops_coverage >= 1 else None
        rows = [
            PrecisionRow(
                precision=name,
                kernels=self.kernels[name],
                time_us=us,
                share=us / total if total else 0.0,
                tflops=flops.get(name, 0.0) / us / 1e6
                if flops is not None and us
                else None,
            )
            for name, us in self.time_us.items()
            if self.kernels.get(name)
        ]
        return sorted(rows, key=lambda row: -row.time_us)

    def less(self, *parts: GemmSummary) -> GemmSummary:
        """Return the totals without some of the GEMMs."""
        flops = self.flops if self.flops_coverage >= 1 else None
        time_us = _less(self.time_us, *(part.time_us for part in parts))
        return msgspec.structs.replace(
            self,
            time_us=time_us,
            kernels=_less(self.kernels, *(part.kernels for part in parts)),
            flops=flops and _less(flops, *(part.flops or {} for part in parts)),
            fp8_share_of_time=fp8_share(time_us),
            low_precision_share_of_time=low_precision_share(time_us),
        )


def _less(
    whole: Mapping[str, _Number], *parts: Mapping[str, _Number]
) -> dict[str, _Number]:
    return {
        name: value - sum(part.get(name, 0) for part in parts)
        for name, value in whole.items()
    }


class LegRow(msgspec.Struct, frozen=True, kw_only=True):
    """GEMM time of one GEMM pass, by precision class.

    Attributes:
        leg: fprop, dgrad, wgrad, backward (dgrad or wgrad), recompute, attention (products of
            attention that no fused kernel computes), optimizer or unknown.
        time_us: µs by precision class.
        kernels: launches by precision class.
    """

    leg: Leg
    time_us: dict[str, float]
    kernels: dict[str, int]


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of kernel launched by one kind of operator.

    Attributes:
        name: the kernel's.
        role: what it does.
        precision: class of the operands of a GEMM; of other kernels, of what they write.
        library: where the kernel comes from.
        op: the operator that launched it, null where not known.
        leg: its GEMM pass, null if it is not a GEMM.
        dims: the operator's input shapes.
        shape: (batch, m, n, k) of a GEMM; a kernel that adds up the parts of one has its shape.
        kernels: launches.
        time_us: µs of all launches.
        tflops: 10^12 operations a second of all launches together.
        percent_of_peak: that over the GPU's dense peak of the precision.
        decided_by: who says the precision: name, op, name+op, library, code, or none.
        reason: how that was read.
    """

    name: str
    role: Role
    precision: Precision
    library: str
    op: str | None
    leg: Leg | None
    dims: tuple[Shape, ...] | None
    shape: Shape | None
    kernels: int
    time_us: float
    tflops: float | None
    percent_of_peak: float | None
    decided_by: str
    reason: str


class RecipeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How the GEMMs in low precision were scaled, by the kernels.

    Attributes:
        time_us: GEMM time in µs by scaling.
        fast_accumulation: by GEMM pass, whether fast accumulation was on.
    """

    time_us: dict[str, float]
    fast_accumulation: dict[str, bool]


class ProofRow(msgspec.Struct, frozen=True, kw_only=True):
    """The GEMMs of layers that train at one value of a coordinate.

    Attributes:
        value: the step, rank, micro-batch, leg, layer or format, as a table names it.
        low: launches in FP8 or FP4.
        high: launches in high precision.
        unknown: launches of unknown precision.
        time_us: µs of all of them.
        flops: floating-point operations of all of them, null unless those of all are known.
        short: whether less ran in FP8 than was expected of it; null where this is open.
        note: what else is known of it, or empty.
    """

    value: str
    low: int
    high: int
    unknown: int
    time_us: float
    flops: float | None
    short: bool | None = False
    note: str = ""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The table that decides: the GEMMs of layers that train, along one coordinate.

    Attributes:
        coordinate: step, rank, micro-batch, leg, layer or format, or two of these, as
            "layer, leg".
        rows: its values in their order, those that are short among them.
        left_out: further values that ran like those of the table.
        ranks: the ranks that it adds up, none if their numbers are not known.
    """

    coordinate: str
    rows: tuple[ProofRow, ...]
    left_out: int = 0
    ranks: tuple[int, ...] = ()


class LibraryLogReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the BLAS library logged of a rank's windows, against the kernels of the trace.

    Attributes:
        products: in the log.
        gemms: GEMM kernels in the trace, of any library.
        vouched: those of `gemms` whose precision the log confirms.
        settled: those of `vouched` whose precision is known from the log alone.
        disputed: kernels whose precision the log contradicts.
        note: why the log could not be joined to the kernels, null if it was.
    """

    products: int
    gemms: int = 0
    vouched: int = 0
    settled: int = 0
    disputed: int = 0
    note: str | None = None


class CompiledCodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine code that compilers left on disk says of a rank's kernels.

    Attributes:
        gemms: launches of products of Triton's, or of nobody's that is known.
        vouched: those of `gemms` whose precision the code shows.
        settled: those of `vouched` whose precision is known from the code alone.
        disputed: those of `vouched` whose names say another precision.
        differing: kernels that were left as they are, because codes of their name and launch
            differ in precision.
    """

    gemms: int
    vouched: int = 0
    settled: int = 0
    disputed: int = 0
    differing: int = 0


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One training step.

    Attributes:
        step: the profiler's number of it.
        duration_us: its µs on the CPU.
        gpu_us: from the end of the step before it on the GPU (of the first one, from its first
            kernel) to the end of its last kernel; null where it launched none.
        gemm: the model's GEMMs that it launched.
        trains: whether any of them is of a layer that trains.
        whole: whether all its kernels were read, as far as a damaged trace shows.
    """

    step: int
    duration_us: float
    gpu_us: float | None
    gemm: GemmSummary
    trains: bool = True
    whole: bool = True


class StepStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Step times as a mean with what its uncertainty follows from.

    Attributes:
        count: steps.
        left_out: further steps, which took more than 1.5 times the median.
        mean_us: mean step in microseconds.
        deviation_us: standard deviation of a step; null of a single one.
        effective: number of independent steps that would tell the mean as well.
        median_us: median step in microseconds.
        min_us: shortest step in microseconds.
        max_us: longest step in microseconds.
    """

    count: int
    left_out: int
    mean_us: float
    deviation_us: float | None
    effective: float
    median_us: float
    min_us: float
    max_us: float


class TimelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPU spent one trace, in buckets; the first begins with the first kernel.

    Kernels that overlap on several streams add up to more than a bucket is long.

    Attributes:
        bucket_us: length of a bucket.
        fp8_us: µs of GEMMs in FP8 by bucket.
        other_precision_us: µs of GEMMs in other known precisions.
        unknown_precision_us: µs of GEMMs of unknown precision.
        rest_us: µs of all other kernels.
        steps: (step, begin, end) in µs of the kernels that each step launched.
    """

    bucket_us: float
    fp8_us: tuple[float, ...]
    other_precision_us: tuple[float, ...]
    unknown_precision_us: tuple[float, ...]
    rest_us: tuple[float, ...]
    steps: tuple[tuple[int, float, float], ...]


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """How whole the trace is: each kind of damage, counted.

    Attributes:
        events: records read.
        skipped_events: records that could not be decoded.
        truncated: whether the file ends early.
        kernels: GPU kernels in the file.
        kernels_without_launch: kernels whose launch is not in the file.
        kernels_without_op: kernels without a known operator.
        kernels_before_window: kernels launched before the window, which do not count.
        kernels_in_graphs: kernels that a CUDA graph launched.
        bad_durations: kernels with times that cannot be.
        notes: what else was seen.
    """

    events: int
    skipped_events: int
    truncated: bool
    kernels: int
    kernels_without_launch: int
    kernels_without_op: int
    kernels_before_window: int
    kernels_in_graphs: int
    bad_durations: int
    notes: tuple[str, ...]


class ModulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's linear modules were.

    Attributes:
        counts: modules by state.
        names: names of the modules of each state.
        recipes: recipes that the modules say.
        scalings: how their recipes scale, as configured.
        unknown_classes: classes of modules whose precision the module list cannot tell: their GEMMs
            decide.
        storage: what is only kept or sent in FP8, in words.
    """

    counts: dict[str, int]
    names: dict[str, tuple[str, ...]]
    recipes: tuple[str, ...]
    scalings: tuple[str, ...] = ()
    unknown_classes: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()


class WindowReport(msgspec.Struct, frozen=True, kw_only=True):
    """A window that `fp8verify run` was to record, and what the framework calls its steps.

    Attributes:
        first: its first step, from 1.
        last: its last step, inclusive.
        state: complete, cut, dropped, skipped or never.
        framework: the training framework that numbers steps too, null if there is none.
        counter: what it calls its counter, such as "global_step".
        framework_first: its number of the first step.
        framework_last: its number of the last step.
    """

    first: int
    last: int
    state: str
    framework: str | None
    counter: str | None
    framework_first: int | None
    framework_last: int | None


class ClockReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `fp8verify run` counted as a training step of a rank.

    Attributes:
        source: optimizer or, where the script announced its steps, explicit.
        counts: the call that was counted, such as "AdamW.step".
        steps_seen: steps counted.
        steps_skipped: those without an update, by a GradScaler.
        updates: calls of `step` by optimizer class.
        windows: what became of the windows.
    """

    source: str
    counts: str | None
    steps_seen: int
    steps_skipped: int
    updates: dict[str, int]
    windows: tuple[WindowReport, ...]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A log line that says something about FP8 or FP4, or a call that the run recorded.

    Attributes:
        line: its number, from 1; 0 for a call.
        text: the line.
        framework: whose message it is.
        says: fp8 (a low precision is on), not_fp8 (it is off or fell back), scope (it limits where)
            or revoked (a later line takes it back).
        recipe: the recipe that it names.
        all_gather: whether FP8 weights are gathered, null where it does not say.
        source: name of the log.
        format: the one promised (fp8, mxfp8, nvfp4, mxfp4, fp4), null where the line promises none.
        legs: fprop, dgrad and wgrad with a format or high_precision, where the line tells them
            apart.
        converted: linear layers converted, where the line counts them.
        total: linear layers in all, where the line counts them.
        strength: claim (the program's own sentence) or configuration (a setting asks for it).
    """

    line: int
    text: str
    framework: str
    says: str
    recipe: str | None = None
    all_gather: bool | None = None
    source: str = "log"
    format: str | None = None
    legs: dict[str, str] = {}
    converted: int | None = None
    total: int | None = None
    strength: str = "claim"

    @property
    def place(self) -> str:
        """Its place: the line of the log, or the call."""
        return f"line {self.line}" if self.line else self.source


class Mention(msgspec.Struct, frozen=True, kw_only=True):
    """A log line that names FP8 or FP4 and claims nothing.

    Attributes:
        line: its number, from 1.
        text: the line.
        source: name of the log.
    """

    line: int
    text: str
    source: str


# ---- what FP8 costs, moves and can gain; layers; numbers of a run


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives alike in kind, on this rank.

    Attributes:
        name: NCCL's name, or the kernel's.
        dtype: element type, null where not recorded.
        group_size: ranks that took part.
        calls: how many.
        bytes_in: bytes sent in all calls, null where not recorded.
        bytes_out: bytes received in all calls.
        time_us: µs of their kernels.
    """

    name: str
    dtype: str | None
    group_size: int | None
    calls: int
    bytes_in: int | None
    bytes_out: int | None
    time_us: float


class WeightGather(msgspec.Struct, frozen=True, kw_only=True):
    """What all-gathers of weights sent.

    Attributes:
        fp8: whether FP8 weights traveled, null where the bytes may be anything.
        eight_bit_bytes: bytes in 8-bit elements.
        wider_bytes: bytes in wider elements.
        bytes_per_parameter: 1 for FP8, 2 for BF16, null where not known.
    """

    fp8: bool | None
    eight_bit_bytes: int
    wider_bytes: int
    bytes_per_parameter: float | None


class CommunicationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank; overlaps count once.

    Attributes:
        time_us: µs in which communication ran.
        exposed_us: µs in which nothing but communication ran.
        collectives: the collectives by kind.
        weight_gather: what all-gathers of weights sent, null where there were none.
    """

    time_us: float
    exposed_us: float
    collectives: tuple[CollectiveRow, ...]
    weight_gather: WeightGather | None


class TaxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Casts, amax reductions, scale arithmetic or layout copies of one operator and pass.

    Attributes:
        purpose: cast, amax, scale or transpose.
        op: the operator, null where not known.
        leg: the pass in which they ran.
        fused: whether a compiler or library made them one pass over the data.
        kernels: launches.
        time_us: µs of all of them.
    """

    purpose: str
    op: str | None
    leg: Leg
    fused: bool
    kernels: int
    time_us: float


class TaxReport(msgspec.Struct, frozen=True, kw_only=True):
    """What FP8 costs in addition to its GEMMs; fused kernels also do work that BF16 needs.

    Attributes:
        time_us: µs, the most that it can be.
        unfused_us: µs of kernels that each do one step of a cast.
        share_of_gpu_time: over the time of all kernels.
        saved_at_most_us: estimate of what FP8 GEMMs save over BF16 ones of their sizes, negative
            where they are slower; 0 if it is not known.
        share_of_saving: `time_us` over `saved_at_most_us`, null if nothing is saved.
        rows: by purpose, operator and pass.
    """

    time_us: float
    unfused_us: float
    share_of_gpu_time: float
    saved_at_most_us: float
    share_of_saving: float | None
    rows: tuple[TaxEntry, ...]


class PayoffReport(msgspec.Struct, frozen=True, kw_only=True):
    """What FP8 can gain, estimated by what BF16 takes at the sizes of its GEMMs.

    Attributes:
        gpu_busy_us: µs in which a kernel ran.
        idle_share: share of the window in which the GPU did nothing.
        fp8_gemm_share: share of busy time in FP8 GEMMs.
        sixteen_bit_gemm_share: share of busy time in BF16 and FP16 GEMMs.
        bandwidth_bound_share: share of busy time in kernels that memory bandwidth limits.
        small_gemm_share: share of FP8 GEMM time in GEMMs too small to gain, null without shapes.
        ceiling: the most that GPU time can be faster than in BF16, with every 16-bit GEMM in FP8
            and no casts (Amdahl's law).
        speedup_estimate: what the GPU time of the run as it is may be over BF16; null where it is
            not known, or the GPU waits for the CPU, which decides.
        step_us: median wall time of a step outside the window, null where not recorded.
        gpu_busy_in_step_us: µs that the GPU works in a step, null without steps.
        waits: whether the GPU waits in a step for more than FP8 saves, null where not known.
        step_speedup_estimate: what a step may be over BF16; null where the CPU decides it.
        no_estimate: why nothing is known of the gain, empty if it is or no GEMM ran in FP8.
    """

    gpu_busy_us: float
    idle_share: float
    fp8_gemm_share: float
    sixteen_bit_gemm_share: float
    bandwidth_bound_share: float
    small_gemm_share: float | None
    ceiling: float | None
    speedup_estimate: float | None
    step_us: float | None = None
    gpu_busy_in_step_us: float | None = None
    waits: bool | None = None
    step_speedup_estimate: float | None = None
    no_estimate: str = ""


class ExpectedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was to run in low precision, by module list, recipe and log, against what did.

    Attributes:
        share_of_flops: of the FLOPs of the GEMMs that train, what was to run in FP8 or FP4.
        measured_share_of_flops: what did.
        left_out: the layers that were to stay in high precision.
        stated: whether the log names these layers, or the steps; less than half is expected only
            where it does.
    """

    share_of_flops: float
    measured_share_of_flops: float
    left_out: tuple[str, ...]
    stated: bool

    @property
    def is_met(self) -> bool:
        """Whether as much ran in low precision as was to, but for rounding of shapes."""
        return self.measured_share_of_flops >= self.share_of_flops - TOLERANCE

    @property
    def decides(self) -> bool:
        """Whether a run is judged by it: less than half is believed only where the log says so."""
        return self.share_of_flops >= HALF or self.stated


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Linear layers of one size, and the GEMMs of that size by GEMM pass.

    Attributes:
        n: outputs.
        k: inputs.
        modules: modules of the list.
        converted: those of them that are set for FP8.
        names: their names, shortened.
        passes: how often each module ran forward in the window, null where not known.
        passes_per_step: the same in a step, once for each micro-batch.
        observed: GEMMs that ran, by GEMM pass.
        in_fp8: those of them in FP8 or FP4, by GEMM pass.
        expected: GEMMs that the modules should have run, by GEMM pass; empty if
            unknown.
        share_of_flops: over the FLOPs of all GEMMs of layers, null unless (nearly) all are known.
    """

    n: int
    k: int
    modules: int
    converted: int
    names: tuple[str, ...]
    passes: int | None
    passes_per_step: float | None
    observed: dict[str, int]
    in_fp8: dict[str, int]
    expected: dict[str, int]
    share_of_flops: float | None


class LayersReport(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a rank by size.

    Attributes:
        rows: the sizes, the most FLOPs first.
        not_joined: modules whose size no GEMM has.
        experts: 3-D parameters of experts.
        note: where modules and kernels could not be joined, else null.
    """

    rows: tuple[LayerRow, ...]
    not_joined: tuple[str, ...]
    experts: tuple[str, ...]
    note: str | None


class NamedLayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What ran for one linear layer.

    Attributes:
        layer: its name in the model.
        n: outputs, null where the module list does not know the layer.
        k: inputs.
        state: what the module list says of it.
        legs: its GEMMs.
        casts_us: µs that FP8 cost in addition to the GEMMs, null where it did not run.
    """

    layer: str
    n: int | None
    k: int | None
    state: str | None
    legs: tuple[LegRow, ...]
    casts_us: float | None


class NamedLayersReport(msgspec.Struct, frozen=True, kw_only=True):
    """The GEMMs of each layer by name, as `fp8verify run --layers` records them.

    Attributes:
        source: window, or step for the eager step after the windows of compiled code: its kernels
            and times are not the run's, its precisions are.
        step: the number of that step.
        rows: the layers in the order in which they ran.
        gemms: GEMMs seen.
        unjoined: those that belong to no layer, or to none for certain.
        note: what is missing, else null.
    """

    source: str
    step: int | None
    rows: tuple[NamedLayerRow, ...]
    gemms: int
    unjoined: int
    note: str | None


class ScaleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A scale that Transformer Engine keeps from step to step.

    Attributes:
        layer: name in the model.
        tensor: input, weight, output, grad_output or grad_input.
        gemm: which of the layer's GEMMs, from 0.
        format: e4m3 or e5m2.
        scale: what values are multiplied by, null if it is infinite.
        amax: of the newest step, null if none was recorded.
        headroom_octaves: how much amax may grow before values are clipped.
        changed: whether the scale moved within the window, null where not known.
    """

    layer: str
    tensor: str
    gemm: int
    format: str
    scale: float | None
    amax: float | None
    headroom_octaves: float | None
    changed: bool | None


class TrendPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured step of a long run.

    Attributes:
        step: its number.
        scalars: values by name, such as fp8/amax_fwd; docs/live.md lists the names.
    """

    step: int
    scalars: dict[str, float]


class NumericsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one rank.

    Attributes:
        step: the step that was measured after the windows, null if none was.
        reason: why none was measured, null if one was or none was requested.
        rows: measured tensors, in the order in which they were met.
        recipes: recipes of Transformer Engine.
        scales: those that delayed scaling keeps.
        loss_scales: of torch's GradScalers at the end of the last window.
        gradients: gradient norms by step.
        trend: what --numerics-every saw.
        notes: what could not be measured.
    """

    step: int | None
    reason: str | None
    rows: tuple[TensorRecord, ...]
    recipes: tuple[RecipeRecord, ...]
    scales: tuple[ScaleRow, ...]
    loss_scales: tuple[float | None, ...] = ()
    gradients: tuple[GradientRecord, ...]
    trend: tuple[TrendPoint, ...]
    notes: tuple[str, ...]


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The most GPU memory that a rank had used by the end of its last window, in bytes.

    Attributes:
        allocated_peak: of tensors, by torch's own counter.
        reserved_peak: of what torch kept for tensors.
        total: of the GPU.
        why: what FP8 has to do with it, by the modules that were converted.
    """

    allocated_peak: int
    reserved_peak: int
    total: int
    why: tuple[str, ...]


# ---- the names under which figures of a run are watched over time
#
# Guides of FP8 training plot these; every sink of metrics takes them from here. docs/live.md says
# what each means.

FORWARD = ("input", "weight")
BACKWARD = ("grad_output",)


class Worst(NamedTuple):
    """A figure of the worst tensor of a measured step, by which it stands for all layers.

    Attributes:
        worst: which of several values is the worst, `min` or `max`.
        of: the figure of a measured tensor.
        tensors: of which it is taken.
        kept: the same of a scale that delayed scaling keeps, None if that has no such figure.
    """

    worst: Callable[[Iterable[float]], float]
    of: Callable[[TensorRecord], float | None]
    tensors: tuple[str, ...]
    kept: Callable[[ScaleRow], float | None] | None = None


OF_TENSORS = {
    "fp8/fwd_scale": Worst(
        min, lambda row: row.scale, FORWARD, lambda kept: kept.scale
    ),
    "fp8/bwd_scale": Worst(
        min, lambda row: row.scale, BACKWARD, lambda kept: kept.scale
    ),
    "fp8/amax_fwd": Worst(max, lambda row: row.amax, FORWARD, lambda kept: kept.amax),
    "fp8/amax_bwd": Worst(max, lambda row: row.amax, BACKWARD, lambda kept: kept.amax),
    "fp8/underflow_fwd": Worst(max, lambda row: row.flushed, FORWARD),
    "fp8/underflow_bwd": Worst(max, lambda row: row.flushed, BACKWARD),
    "fp8/sqnr_fwd_db": Worst(min, lambda row: row.sqnr_db, FORWARD),
    "fp8/sqnr_bwd_db": Worst(min, lambda row: row.sqnr_db, BACKWARD),
    "fp8/not_finite_fwd": Worst(max, lambda row: row.not_finite, FORWARD),
    "fp8/not_finite_bwd": Worst(max, lambda row: row.not_finite, BACKWARD),
}
GRAD_NORM = "train/grad_norm"
GRAD_NORM_CLIP_RATIO = "train/grad_norm_clip_ratio"
LOSS = "train/loss"

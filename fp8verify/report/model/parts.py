"""What a report is made of: frozen, typed, without behavior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

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
                tflops=flops.get(name, 0.0) / us / 1e6 if flops is not None and us else None,
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


def _less(whole: Mapping[str, _Number], *parts: Mapping[str, _Number]) -> dict[str, _Number]:
    return {name: value - sum(part.get(name, 0) for part in parts) for name, value in whole.items()}


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
        decided_by: who says the precision: name, op, name+op, library, or none.
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

"""The nouns that every room of fp8verify shares: frozen, typed, without behaviour to speak of."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from fp8verify.diagnosis import (
    CommunicationReport,
    LayersReport,
    NamedLayersReport,
    PayoffReport,
    TaxReport,
)

if TYPE_CHECKING:
    from fp8verify.frames import Frames

Shape = tuple[int, ...]


class Precision(str, Enum):
    """The number format in which a matrix multiplication reads its operands."""

    FP8 = "fp8"
    MXFP8 = "mxfp8"
    FP4 = "fp4"
    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    FP32 = "fp32"
    FP64 = "fp64"
    INT8 = "int8"
    UNKNOWN = "unknown"

    @property
    def is_fp8(self) -> bool:
        """Whether the class counts into the FP8 share (`fp8` and `mxfp8`)."""
        return self in (Precision.FP8, Precision.MXFP8)


class Role(str, Enum):
    """What a GPU kernel does in a training step."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped_gemm"
    ATTENTION = "attention"
    CONV = "conv"
    CAST_QUANTIZE = "cast_quantize"
    AMAX_REDUCE = "amax_reduce"
    TRANSPOSE = "transpose"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    OTHER = "other"

    @property
    def is_gemm(self) -> bool:
        """Whether the kernel's time is GEMM time."""
        return self in (Role.GEMM, Role.GROUPED_GEMM)


class Leg(str, Enum):
    """Which of a linear layer's GEMMs a kernel computes."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    UNKNOWN = "unknown"


class Scaling(str, Enum):
    """How the low-precision operands of a GEMM are scaled."""

    TENSORWISE = "tensorwise"
    ROWWISE = "rowwise"
    BLOCKWISE = "blockwise"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


class Verdict(str, Enum):
    """The answer; exit codes are in `fp8verify.verdict.EXIT_CODES`."""

    ACTIVE = "ACTIVE"
    PARTIAL = "PARTIAL"
    INACTIVE = "INACTIVE"
    CONTRADICTED = "CONTRADICTED"
    EMULATED = "EMULATED"
    INCONCLUSIVE = "INCONCLUSIVE"


class Severity(str, Enum):
    """How much a finding weighs."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class KernelName(msgspec.Struct, frozen=True, kw_only=True):
    """What the name of a kernel alone says.

    `precision` is the class of the operands that are multiplied (for kernels that multiply
    nothing: of the data they write). `a`, `b` and `out` are element types such as "e4m3",
    "e5m2", "bf16", or None where the name does not say.
    """

    name: str
    role: Role
    precision: Precision
    library: str
    reason: str
    a: str | None = None
    b: str | None = None
    out: str | None = None
    scaling: Scaling | None = None
    fast_accum: bool | None = None
    tokens: tuple[tuple[str, str], ...] = ()


class OpContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where on the CPU a kernel came from: the innermost operator and what encloses it.

    `types` and `dims` are Kineto's "Input type" and "Input Dims" of that operator, empty where
    not recorded. `parents` are the enclosing operators and annotations of the same thread,
    innermost first. `backward` is whether autograd's backward pass ran it.
    """

    name: str
    types: tuple[str, ...] = ()
    dims: tuple[Shape, ...] = ()
    parents: tuple[str, ...] = ()
    backward: bool = False


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of NCCL collective: sizes in elements of `dtype`, as NCCL's own metadata says."""

    name: str
    dtype: str
    in_elements: int
    out_elements: int
    group_size: int


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A log line that says something about FP8; `line` counts from 1.

    `says` is "fp8" (it is on), "not_fp8" (it is off or fell back) or "scope" (it limits where).
    """

    line: int
    text: str
    framework: str
    says: str
    recipe: str | None = None
    all_gather: bool | None = None
    source: str = "log"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something the reader should know, with what to do about it."""

    code: str
    severity: Severity
    message: str
    hint: str


class GemmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """GEMM totals by precision class: times in µs, FLOPs as recorded shapes give them.

    `flops` is None where no GEMM has recorded shapes; `flops_coverage` is the share of GEMM
    time whose FLOPs are known, and `fp8_share_of_flops` is None unless it is (nearly) all of it.
    """

    time_us: dict[str, float]
    kernels: dict[str, int]
    flops: dict[str, float] | None
    fp8_share_of_time: float | None
    fp8_share_of_flops: float | None
    unknown_share_of_time: float
    flops_coverage: float


class LegRow(msgspec.Struct, frozen=True, kw_only=True):
    """GEMM time in µs of one leg, by precision class."""

    leg: str
    time_us: dict[str, float]
    kernels: dict[str, int]


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of kernel launched by one kind of operator; `time_us` is its sum.

    `dims` are the input shapes of the operator, `tflops` what the launches reached together in
    10^12 operations a second, `percent_of_peak` that over the dense peak of the precision. `shape`
    of a GEMM is (batch, m, n, k); a kernel that adds up the parts of a split-K GEMM has its shape,
    and no `tflops`.
    """

    name: str
    role: str
    precision: str
    library: str
    op: str | None
    leg: str | None
    dims: tuple[Shape, ...] | None
    shape: Shape | None
    kernels: int
    time_us: float
    tflops: float | None
    percent_of_peak: float | None
    decided_by: str
    reason: str


class RecipeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How the FP8 GEMMs were scaled: GEMM time in µs by scaling; fast accumulation by leg."""

    time_us: dict[str, float]
    fast_accumulation: dict[str, bool]


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One training step; `duration_us` is its time on the CPU.

    `gpu_us` is from the end of the step before it on the GPU (of the first one, from its first
    kernel) to the end of its last kernel, None where it launched none.
    """

    step: int
    duration_us: float
    gpu_us: float | None
    gemm: GemmSummary


class TimelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPU spent one trace: kernel time in µs by bucket of `bucket_us`.

    The first bucket begins with the first kernel.
    GEMMs are split into FP8, other known precisions and unknown ones; `rest_us` is of all other
    kernels. Kernels that overlap on several streams add up to more than a bucket is long. `steps`
    are (step, begin, end) in µs of the kernels that each step launched.
    """

    bucket_us: float
    fp8_us: tuple[float, ...]
    other_precision_us: tuple[float, ...]
    unknown_precision_us: tuple[float, ...]
    rest_us: tuple[float, ...]
    steps: tuple[tuple[int, float, float], ...]


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """How whole the trace is: each kind of damage, counted."""

    events: int
    skipped_events: int
    truncated: bool
    kernels: int
    kernels_without_launch: int
    kernels_without_op: int
    bad_durations: int
    notes: tuple[str, ...]


class ModulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's linear modules were: counts by state, and the names of each state."""

    counts: dict[str, int]
    names: dict[str, tuple[str, ...]]
    recipes: tuple[str, ...]


class WindowReport(msgspec.Struct, frozen=True, kw_only=True):
    """A window that `fp8verify run` was to record, and what the training framework calls its steps.

    `state` is "complete", "cut", "dropped", "skipped" or "never"; the framework's own numbers of
    `first` and `last` by its `counter`, such as "global_step", are None where it is not known.
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

    `source` is "optimizer" or, where the script announced its steps, "explicit"; `counts` is the
    call that was counted, such as "AdamW.step" or "fp8verify.step". `steps_skipped` of
    `steps_seen` had no update, by a GradScaler; `updates` are calls of `step` by optimizer class.
    """

    source: str
    counts: str | None
    steps_seen: int
    steps_skipped: int
    updates: dict[str, int]
    windows: tuple[WindowReport, ...]


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and the figures of one rank; `clock` is of `fp8verify run` alone."""

    rank: int | None
    source: str
    verdict: Verdict
    reason: str
    gemm: GemmSummary
    gpu_time_us: dict[str, float]
    copy_time_us: dict[str, float]
    legs: tuple[LegRow, ...]
    recipe: RecipeSeen
    steps: tuple[StepReport, ...]
    timelines: tuple[TimelineReport, ...]
    kernels: tuple[KernelRow, ...]
    communication: CommunicationReport | None
    tax: TaxReport | None
    payoff: PayoffReport | None
    layers: LayersReport | None
    named_layers: NamedLayersReport | None
    modules: ModulesReport | None
    health: HealthReport
    clock: ClockReport | None = None


class RankBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's GPU time by HolisticTraceAnalysis, in µs.

    `span_us` is from its first kernel to the end of its last, and the sum of the other three;
    kernels that overlap count once. `communication_overlap_percent` is how much of communication
    ran beside computation, None where there was none.
    """

    rank: int
    span_us: float
    idle_us: float
    compute_us: float
    non_compute_us: float
    communication_overlap_percent: float | None


class BreakdownReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--breakdown` adds; `notes` say of which ranks HTA gives no figures."""

    hta_version: str
    ranks: tuple[RankBreakdown, ...]
    notes: tuple[str, ...]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of the trace."""

    gpu: str | None = None
    compute_capability: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The finished report: the one contract of every output."""

    schema_version: int
    fp8verify_version: str
    verdict: Verdict
    reason: str
    exit_code: int
    gemm: GemmSummary
    gpu_time_us: dict[str, float]
    legs: tuple[LegRow, ...]
    recipe: RecipeSeen
    ranks: tuple[RankReport, ...]
    claims: tuple[Claim, ...]
    findings: tuple[Finding, ...]
    environment: Environment
    notes: tuple[str, ...] = ()
    breakdown: BreakdownReport | None = None

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        from fp8verify.report.json_form import to_json

        return to_json(self)

    def to_pandas(self) -> Frames:
        """Return kernels, GEMMs, steps, layers and ranks as DataFrames: `fp8verify.frames`.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.frames import to_frames

        return to_frames(self)

    def _repr_html_(self) -> str:
        from fp8verify.report.notebook import to_notebook

        return to_notebook(self)

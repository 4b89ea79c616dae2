"""The finished report, and one rank of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from fp8verify.model.claims import Claim, Mention
from fp8verify.model.costs import (
    CommunicationReport,
    MemoryReport,
    PayoffReport,
    TaxReport,
)
from fp8verify.model.kernels import (
    CompiledCodeReport,
    GemmSummary,
    HealthReport,
    KernelRow,
    LegRow,
    LibraryLogReport,
    PrecisionRow,
    RecipeSeen,
)
from fp8verify.model.layers import LayersReport, ModulesReport, NamedLayersReport
from fp8verify.model.ledger import LedgerReport
from fp8verify.model.numerics import NumericsReport
from fp8verify.model.steps import (
    ClockReport,
    StepReport,
    StepStatistics,
    TimelineReport,
)
from fp8verify.model.verdict import CountedGemms, ExpectedReport, Finding, Proof
from fp8verify.terms import TRAINING_LEGS, Verdict
from fp8verify.text import label_of_rank

if TYPE_CHECKING:
    import pandas as pd


class Frames(NamedTuple):
    """One DataFrame for each kind of row; `rank` is the rank's number, None if not known.

    Attributes:
        kernels: a row for each kind of kernel on each rank: the columns are the attributes of
            `fp8verify.model.kernels.KernelRow`.
        gemms: those of the kernels that are GEMMs; `is_fp8` is whether a row counts into the FP8
            share.
        steps: training steps. step: the profiler's number; fp8_share_of_time: FP8 share of the
            step's GEMM time, None without GEMMs; gemm_us: GEMM time in µs; cpu_us: duration on
            the CPU in µs; gpu_us: on the GPU, None if it launched no kernel.
        layers: linear modules of the model. layer: the name; state: fp8, fp8_emulated,
            fp8_module_off, fp4, fp4_emulated, high_precision or unknown.
        named_layers: GEMMs by layer. layer: the name; leg: fprop, dgrad, wgrad, backward,
            recompute or unknown; precision: class of the operands; kernels: launches; time_us: µs
            of all launches; source: window, or step for an eager step, whose times are not the
            run's.
        numerics: tensors of FP8 layers: the columns are the attributes of
            `fp8verify.capture.schema.TensorRecord`.
        ranks: the ranks. source: file of the trace; verdict and reason: the rank's own;
            fp8_share_of_time: FP8 share of GEMM time, None without GEMMs; gemm_us: GEMM time in
            µs; gpu_us: time of all kernels in µs; kernels: how many kernels the trace holds.
    """

    kernels: pd.DataFrame
    gemms: pd.DataFrame
    steps: pd.DataFrame
    layers: pd.DataFrame
    named_layers: pd.DataFrame
    numerics: pd.DataFrame
    ranks: pd.DataFrame


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a run and each of its ranks have: a verdict, and the GEMMs that it rests on.

    Attributes:
        verdict: the answer.
        reason: one sentence.
        cause: code of the finding that gives the reason, or whose shortfall would; else null.
        gemm: the model's GEMMs, those of linear layers and unfused attention.
        attention_gemm: those of `gemm` that are products of attention, outside of the verdict.
        untrained_gemm: those of `gemm` of layers that only run forward (a teacher, a rollout, an
            evaluation), or that no operator shows to be the run's, outside of the verdict.
        optimizer_gemm: GEMMs of the optimizer's step, which are not in `gemm`.
        gpu_time_us: µs of all kernels by what they are for.
        legs: GEMM time by leg and precision class.
        recipe: how the GEMMs were scaled.
    """

    verdict: Verdict
    reason: str
    gemm: GemmSummary
    attention_gemm: GemmSummary
    untrained_gemm: GemmSummary
    optimizer_gemm: GemmSummary
    gpu_time_us: dict[str, float]
    legs: tuple[LegRow, ...]
    recipe: RecipeSeen
    cause: str | None = None

    @property
    def layer_gemm(self) -> GemmSummary:
        """The GEMMs of linear layers that train, by which the verdict judges."""
        return self.gemm.less(self.attention_gemm, self.untrained_gemm)

    @property
    def layer_share(self) -> float | None:
        """The share of their time in FP8 or FP4; None without any."""
        return self.layer_gemm.low_precision_share_of_time

    @property
    def other_gemms(self) -> list[tuple[str, PrecisionRow]]:
        """The GEMMs that the verdict is not about, by what they are for."""
        others = {
            "attention": self.attention_gemm,
            "forward only": self.untrained_gemm,
            "optimizer": self.optimizer_gemm,
        }
        return [(what, row) for what, gemm in others.items() for row in gemm.rows]


class RankReport(Judged, frozen=True, kw_only=True):
    """The verdict and the figures of one rank.

    Attributes:
        rank: its number, null where not known.
        source: its trace files.
        settled: whether the verdict is the same whatever share is required.
        shortfall: what keeps a rank whose share suffices from being ACTIVE, null if nothing does.
        rest: cause of a share below 100%: layers or a leg in high precision; null where
            unknown.
        opaque_us: µs in unrecognized kernels.
        copy_time_us: µs of memory copies by kind.
        steps: the training steps.
        steps_outside: wall time of the steps that were neither profiled nor measured; null where
            none were timed.
        timelines: how the GPU spent each trace.
        kernels: all kinds of kernel, the longest first.
        communication: what collectives moved, null where there were none.
        tax: what FP8 costs in addition to its GEMMs, null where none ran.
        payoff: what FP8 can gain, null without GEMMs.
        layers: linear layers by size, null where unknown.
        named_layers: linear layers by name, null where the run recorded none.
        modules: the list of modules, null without a capture.
        health: completeness of the trace.
        clock: what `fp8verify run` counted as a step, null without a capture.
        numerics: scales, tensors and gradients of `fp8verify run`, null without a capture.
        memory: the peak of GPU memory, null without a capture.
        expected: what was to run in low precision against what did, null where not known.
        counted: the GEMMs that should have run in FP8 or FP4; null unless all that did are stated.
        judged: whether the rank can lack FP8: not where it trains no layer that other ranks run in
            FP8, as a pipeline stage with the output head alone, nor where it only runs forward
            while others train.
        library_log: what the BLAS library logged of the windows, null without its log.
        compiled_code: what the machine code of Triton's kernels says of them, null without it.
        unplaced_us: µs in GEMMs in high precision that may be no layer's, since the source
            recorded no operators.
        low_share: share of the work of the GEMMs of layers that ran in FP8 or FP4 at least: of
            FLOPs, or of launches where not all shapes are recorded; null without any. Half of it is
            expected where nothing says more.
        unknown_share: the share of that work that may have run in them too.
    """

    rank: int | None
    source: str
    settled: bool
    shortfall: str | None
    rest: str | None
    opaque_us: float
    copy_time_us: dict[str, float]
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
    numerics: NumericsReport | None = None
    memory: MemoryReport | None = None
    library_log: LibraryLogReport | None = None
    compiled_code: CompiledCodeReport | None = None
    unplaced_us: float = 0.0
    judged: bool = True
    expected: ExpectedReport | None = None
    counted: CountedGemms | None = None
    low_share: float | None = None
    unknown_share: float = 0.0
    steps_outside: StepStatistics | None = None

    @property
    def label(self) -> str:
        """What it is called: by its number, else by its file."""
        return label_of_rank(self.rank, self.source)

    @property
    def may_train(self) -> bool:
        """Whether GEMMs of its layers are of a backward pass, or may be."""
        return any(row.leg in TRAINING_LEGS for row in self.legs)


class RankBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's GPU time by HolisticTraceAnalysis, in µs; kernels that overlap count once.

    Attributes:
        rank: its number.
        span_us: from its first kernel to the end of its last, the sum of the other three.
        idle_us: no kernel ran.
        compute_us: computation ran.
        non_compute_us: only communication or copies ran.
        communication_overlap_percent: how much of communication overlapped computation; null
            if there was none.
    """

    rank: int
    span_us: float
    idle_us: float
    compute_us: float
    non_compute_us: float
    communication_overlap_percent: float | None


class BreakdownReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--breakdown` adds.

    Attributes:
        hta_version: of HolisticTraceAnalysis.
        ranks: its figures of each rank.
        notes: the ranks without figures, and why.
    """

    hta_version: str
    ranks: tuple[RankBreakdown, ...]
    notes: tuple[str, ...]


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ran when and on what, as far as it was recorded; what is not known is left out.

    Attributes:
        gpu: name of the GPU, null where not known.
        compute_capability: as PyTorch reports it, such as "9.0"; null where not known.
        versions: versions of the run's software by name, such as "torch".
        recorded: when the first kernel of the traces began, such as "2026-11-23T21:17:05Z".
        command: the command of `fp8verify run`; values that may be secret are "***".
    """

    gpu: str | None
    compute_capability: str | None
    versions: dict[str, str] = {}
    recorded: str | None = None
    command: str | None = None


class Report(Judged, frozen=True, kw_only=True):
    """The finished report: the one contract of every output.

    Attributes:
        schema_version: of this document; it changes when a property changes its meaning.
        name: what the run is called: its folder or file, or what --name says.
        fp8verify_version: the version that wrote it.
        exit_code: of the command.
        exit_reason: why the exit code is what it is, empty for a run that passes by its verdict.
        fails: whether the run fails what is asked of it; the exit code says so too, unless
            --exit-zero was given.
        ranks: each rank.
        claims: what the log says of FP8.
        logs: names of the logs that were read.
        findings: the findings, most severe first.
        environment: GPU and software.
        notes: remarks on what was read and recorded.
        mention: a log line that names FP8 and claims nothing, the first one; null without one.
        training_exit_code: the run's own, where `fp8verify run` started one, else null.
        breakdown: what --breakdown adds, else null.
        proof: the table that decides, null where no GEMM of a layer ran.
        measure: "time", or "flops" for a log of a BLAS library: then each µs is a GFLOP.
        ledger: what ran in each call of a layer, null where no GEMM of a layer ran.
    """

    schema_version: int
    name: str
    fp8verify_version: str
    exit_code: int
    fails: bool
    ranks: tuple[RankReport, ...]
    claims: tuple[Claim, ...]
    findings: tuple[Finding, ...]
    environment: Environment
    notes: tuple[str, ...] = ()
    mention: Mention | None = None
    training_exit_code: int | None = None
    breakdown: BreakdownReport | None = None
    proof: Proof | None = None
    exit_reason: str = ""
    logs: tuple[str, ...] = ()
    measure: str = "time"
    ledger: LedgerReport | None = None

    @property
    def lowest_rank(self) -> RankReport | None:
        """The rank with the smallest FP8 share of GEMM time; None if any has no GEMM."""
        if not all(rank.layer_share is not None for rank in self.ranks):
            return None
        return min(self.ranks, key=lambda rank: rank.layer_share or 0.0, default=None)

    @property
    def lowest_share(self) -> float | None:
        """The smallest FP8 share of GEMM time among the ranks; None if any has no GEMM."""
        rank = self.lowest_rank
        return None if rank is None else rank.layer_share

    @property
    def layer_states(self) -> dict[str, str]:
        """The state of each linear layer by name; "fp8" only if it is that on every rank."""
        states_of: dict[str, set[str]] = defaultdict(set)
        for rank in self.ranks:
            for state, names in (
                rank.modules.names.items() if rank.modules is not None else ()
            ):
                for name in names:
                    states_of[name].add(state)
        return {
            name: min(states - {"fp8"}, default="fp8")
            for name, states in states_of.items()
        }


AnyReport = TypeVar("AnyReport", bound=Report)
"""What takes a report and returns one of the same class."""

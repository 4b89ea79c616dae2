"""Everything known about one rank, gathered once and then only read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct

from fp8verify.analysis.gather import TraceEvidence
from fp8verify.analysis.gemms import GPU_TIME_KEYS, GemmRow, gemm_totals, gpu_time_key
from fp8verify.analysis.gpus import multiplies
from fp8verify.analysis.inputs import is_unrecognized
from fp8verify.analysis.kinds import KindTotal
from fp8verify.analysis.layers import Layers, join_by_size
from fp8verify.analysis.payoff import Gain, payoff
from fp8verify.analysis.purpose import QUANTIZING, of_the_model
from fp8verify.capture.schema import (
    ModuleRecord,
    NumericsRecord,
    RankMeta,
    RankNumerics,
)
from fp8verify.logs.losses import LossSeries
from fp8verify.logs.signs import LogSigns
from fp8verify.model.kernels import GemmSummary
from fp8verify.terms import Precision
from fp8verify.text import MEASURES, Measure, label_of_rank
from fp8verify.thresholds import GEMMS_PER_CAST

NO_META = RankMeta(
    schema=0,
    rank=-1,
    steps_seen=0,
    windows=(),
    modules_listed=False,
)
_NOTHING = NumericsRecord(
    schema=0,
    rank=-1,
    windows=(),
    measured=None,
    reason=None,
)
NO_NUMERICS = RankNumerics(record=_NOTHING)
NO_LOSSES = LossSeries("", {}, counted=False)
NO_SIGNS = LogSigns()


class Recorded(Struct, frozen=True, eq=False):
    """What was recorded of a rank beside its traces; empty where `fp8verify run` did not run it.

    Attributes:
        meta: the agent's record.
        numerics: its records of scales and tensors.
        losses: the losses in the run's log, kept with the first rank.
        signs: what the log says of lost steps and uncompiled code, kept with it too.
    """

    meta: RankMeta = NO_META
    numerics: RankNumerics = NO_NUMERICS
    losses: LossSeries = NO_LOSSES
    signs: LogSigns = NO_SIGNS

    @property
    def observed(self) -> bool:
        """Whether the agent ran in the process of the rank."""
        return self.meta is not NO_META


class RankEvidence(Struct, frozen=True, eq=False, dict=True):
    """One rank: what its traces show, what was recorded, and what follows from these."""

    trace: TraceEvidence
    recorded: Recorded = Recorded()

    @cached_property
    def gpu_time(self) -> Mapping[str, int]:
        """Kernel time in ns by purpose; the values add up to all kernel time."""
        time_ns = dict.fromkeys(GPU_TIME_KEYS.values(), 0)
        for row in (*self.trace.gemms, *self.trace.optimizer):
            time_ns["gemm"] += row.amount
        for total in self.trace.others:
            key = gpu_time_key(total.kind, casts=self.ran_or_cast_low)
            time_ns[key] += total.amount
        return time_ns

    @cached_property
    def layers(self) -> Layers:
        """Linear layers by size."""
        modules = self.modules if self.recorded.observed else None
        return join_by_size(self.trace.trained, modules, len(self.trace.steps))

    @cached_property
    def gain(self) -> Gain:
        """What FP8 can gain, and what it costs."""
        if self.trace.in_flops:
            return Gain()
        times = self.recorded.meta.steps_outside
        step_ns = times.median_ns if times is not None else None
        return payoff(self.trace, self.gpu_time, step_ns, casts=self.ran_or_cast_low)

    @property
    def ran_or_cast_low(self) -> bool:
        """Whether it ran or cast low precision, so kernels can be overhead of FP8."""
        return self.ran_low or self.made_fp8_tensors

    @property
    def measure(self) -> Measure:
        """In what the work of its kernels is measured."""
        return MEASURES["flops" if self.trace.in_flops else "time"]

    @property
    def unreadable(self) -> str | None:
        """Why a trace of the rank could not be read, as a part of a longer sentence."""
        if self.trace.error is None:
            return None
        return self.trace.error.fact.rstrip(".")

    @property
    def label(self) -> str:
        """How messages name the rank."""
        return label_of_rank(self.trace.rank, self.trace.source)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rank's number, as findings name their ranks; empty if not known."""
        return () if self.trace.rank is None else (self.trace.rank,)

    @property
    def modules(self) -> tuple[ModuleRecord, ...]:
        """The module list of the rank, empty if there is none."""
        return self.recorded.meta.modules

    @cached_property
    def ran_low(self) -> bool:
        """Whether any GEMM of a layer ran in FP8 or FP4."""
        return any(row.precision.is_low for row in self.trace.trained)

    @cached_property
    def gemm(self) -> GemmSummary:
        """The sums of the model's GEMMs."""
        return gemm_totals(self.trace.gemms)

    @cached_property
    def linear(self) -> GemmSummary:
        """Sums of the GEMMs of layers, which decide the rank's verdict."""
        return gemm_totals(self.trace.trained)

    @property
    def share(self) -> float:
        """The share of low precision in the time of the GEMMs of layers, 0 of nothing."""
        return self.linear.low_precision_share_of_time or 0.0

    @cached_property
    def linears(self) -> list[ModuleRecord]:
        """The linear modules of its list."""
        return [module for module in self.modules if module.kind == "linear"]

    @cached_property
    def unrecognized(self) -> list[KindTotal]:
        """Unrecognized kernels of the model, the longest first."""
        found = [total for total in self.trace.others if is_unrecognized(total.kind)]
        return sorted(found, key=lambda total: -total.amount)

    @property
    def opaque_ns(self) -> int:
        """The time of unrecognized kernels."""
        return sum(total.amount for total in self.unrecognized)

    @cached_property
    def upcast(self) -> list[GemmRow]:
        """GEMMs in formats that the GPU cannot multiply, whose operands were converted first."""
        return [row for row in self.trace.gemms if row.kind.classification.upcast_from]

    @cached_property
    def made_fp8_tensors(self) -> bool:
        """Whether casts to FP8 feed as many GEMMs of layers as a recipe's casts would."""
        return self.trace.fed_by_casts * GEMMS_PER_CAST >= self.linear.launches > 0

    def quantizes(self) -> bool:
        """Whether as many kernels compute scales or cast as GEMMs in eight bits would need.

        Inductor's names do not say to which type they cast; a few clamps are not a recipe.
        """
        if any(row.precision.is_low for row in self.trace.gemms):
            return False
        casts = 0
        for total in self.trace.others:
            if total.kind.role in QUANTIZING and of_the_model(total.kind.op):
                casts += total.kernels
        return casts * GEMMS_PER_CAST >= self.gemm.launches > 0

    @property
    def has_fp8_units(self) -> bool:
        """Whether the GPU may multiply in FP8; True if not known."""
        capability = self.trace.compute_capability
        return multiplies(self.trace.gpu, capability, Precision.FP8) is not False

"""Everything known about one rank, gathered once and then only read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fp8verify.analysis import timeline
from fp8verify.analysis.communication import CollectiveTotal
from fp8verify.analysis.gemms import GemmRow, KindTotal, Survey, gemm_totals
from fp8verify.analysis.gpus import multiplies
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.layers import Layers, NamedLayers
from fp8verify.analysis.purpose import of_the_model
from fp8verify.analysis.reclassify import is_unrecognized
from fp8verify.analysis.timeline import Timeline
from fp8verify.capture.schema import ModuleRecord, RankMeta, RankNumerics
from fp8verify.errors import InputError
from fp8verify.logs.losses import LossSeries
from fp8verify.report.model.diagnosis import PayoffReport, TaxReport
from fp8verify.report.model.parts import GemmSummary, LibraryLogReport, TimelineReport
from fp8verify.terms import Leg, Precision, Role
from fp8verify.text import label_of_rank
from fp8verify.trace import Health, Step

# A cast may feed several GEMMs (q, k and v of attention, dgrad and wgrad): four at the most.
_CASTS_PER_GEMM = 4
QUANTIZING = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)


class RankEvidence(NamedTuple):
    """One rank: its kernels by kind and step, and the runner's records.

    It contains sums instead of kernels, so a thousand ranks fit into memory.

    Attributes:
        copies: ns of memcpy and memset.
        error: why a trace of the rank could not be read.
        casts: ns in casts and scales by layer, where the trace names layers.
        naming: the eager step that named the layers, if one did.
        process: the number of the process.
        bounds: when its first kernel began and its last one ended, in ns.
        began_ns: when its first kernel began, in ns since 1970, if the source says so.
        guessed: whether the rank's number is only its position among the files.
        fed: launches of layers' GEMMs in high precision that casts to FP8 feed.
        backward: whether a kernel of a backward pass ran, or may have.
        updates: whether an optimizer's step was seen.
        trains: whether a kernel proves that a backward pass ran.
        seen_nodes: calls of the autograd nodes of GEMMs that the source lists without kernels.
        remarks: what the source does not record.
        in_flops: whether times are FLOPs: the source is a log of a BLAS library.
        library_log: what such a log says of the kernels.
        numerics: the runner's records of scales and tensors, if any.
        losses: the losses in the run's log, kept with the first rank.
        gpu_time: kernel time in ns by purpose.
        layers: linear layers by size.
        payoff: what FP8 can gain, None if no GEMM ran.
        tax: what FP8 costs in addition to its GEMMs, None for nothing.
    """

    source: str
    rank: int | None
    world_size: int | None
    gpu: str | None
    compute_capability: str | None
    health: Health
    copies: Counter[str]
    collectives: tuple[CollectiveTotal, ...]
    timeline: Timeline
    survey: Survey
    steps: tuple[Step, ...]
    meta: RankMeta | None = None
    error: InputError | None = None
    buckets: tuple[TimelineReport, ...] = ()
    casts: Counter[str] = Counter()  # noqa: RUF012  (never changed)
    naming: NamedLayers | None = None
    process: int | None = None
    bounds: tuple[int, int] | None = None
    began_ns: int | None = None
    guessed: bool = False
    fed: int = 0
    backward: bool = True
    updates: bool = True
    trains: bool = True
    remarks: tuple[str, ...] = ()
    seen_nodes: int = 0
    in_flops: bool = False
    library_log: LibraryLogReport | None = None
    numerics: RankNumerics | None = None
    losses: LossSeries | None = None
    gpu_time: Mapping[str, int] = {}
    layers: Layers = Layers()
    payoff: PayoffReport | None = None
    tax: TaxReport | None = None

    @property
    def named(self) -> NamedLayers | None:
        """The layers by name, if they have names."""
        gemms = [row for row in self.survey.gemms if row.leg is not Leg.ATTENTION]
        rows = [row for row in gemms if row.layer is not None]
        return NamedLayers(rows, self.casts) if rows else self.naming

    @property
    def unreadable(self) -> str | None:
        """Why a trace of the rank could not be read, as a part of a longer sentence."""
        return None if self.error is None else self.error.fact.rstrip(".")

    @property
    def label(self) -> str:
        """How messages name the rank."""
        return label_of_rank(self.rank, self.source)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rank's number, as findings name their ranks; empty if not known."""
        return () if self.rank is None else (self.rank,)

    @property
    def modules(self) -> tuple[ModuleRecord, ...]:
        """The module list of the rank, empty if there is none."""
        return self.meta.modules if self.meta is not None else ()

    @property
    def ran_low(self) -> bool:
        """Whether any GEMM of a layer ran in FP8 or FP4."""
        return any(row.precision.is_low for row in self.survey.linear)

    @property
    def gemm(self) -> GemmSummary:
        """The sums of the model's GEMMs."""
        return gemm_totals(self.survey.gemms)

    @property
    def linear(self) -> GemmSummary:
        """Sums of the GEMMs of layers, which decide the rank's verdict."""
        return gemm_totals(self.survey.linear)

    @property
    def unrecognized(self) -> list[KindTotal]:
        """Unrecognized kernels of the model, the longest first."""
        found = [total for total in self.survey.others if is_unrecognized(total.kind)]
        return sorted(found, key=lambda total: -total.time_ns)

    @property
    def upcast(self) -> list[GemmRow]:
        """GEMMs in formats that the GPU cannot multiply, whose operands were converted first."""
        return [row for row in self.survey.gemms if row.kind.classification.upcast_from]

    @property
    def made_fp8_tensors(self) -> bool:
        """Whether casts to FP8 feed as many GEMMs of layers as a recipe's casts would."""
        return self.fed * _CASTS_PER_GEMM >= self.linear.launches > 0

    def quantizes(self) -> bool:
        """Whether as many kernels compute scales or cast as GEMMs in eight bits would need.

        Inductor's names do not say to which type they cast; a few clamps are not a recipe.
        """
        casts = sum(
            total.calls
            for total in self.survey.others
            if total.kind.classification.role in QUANTIZING and of_the_model(total.kind.op)
        )
        low = any(row.precision.is_low for row in self.survey.gemms)
        gemms = sum(row.calls for row in self.survey.gemms)
        return not low and casts * _CASTS_PER_GEMM >= gemms > 0

    @property
    def has_fp8_units(self) -> bool:
        """Whether the GPU may multiply in FP8; True if not known."""
        return multiplies(self.gpu, self.compute_capability, Precision.FP8) is not False

    def main_precision(self) -> Precision:
        """The precision class with the most time in GEMMs of layers, or else the most launches."""
        time_us, kernels = self.linear.time_us, self.linear.kernels
        return max(Precision, key=lambda one: (time_us[one.value], kernels[one.value]))

    @property
    def main_high(self) -> Precision:
        """The class of high precision with the most time in GEMMs of layers."""
        high = [p for p in Precision if not p.is_low and p is not Precision.UNKNOWN]
        time_us = self.linear.time_us
        return max(high, key=lambda one: time_us[one.value])


def merge_windows(parts: Sequence[RankEvidence]) -> RankEvidence:
    """Join the evidence of one rank's traces, in order: windows of a run, or runs after another."""
    if len(parts) == 1:
        return parts[0]
    health = Health()
    for part in parts:
        health.add(part.health)
    bounds = [part.bounds for part in parts if part.bounds is not None]
    return parts[0]._replace(
        source=", ".join(part.source for part in parts),
        health=health,
        copies=sum((part.copies for part in parts), Counter()),
        bounds=(min(bounds)[0], max(end for _, end in bounds)) if bounds else None,
        collectives=tuple(total for part in parts for total in part.collectives),
        timeline=timeline.join([part.timeline for part in parts]),
        buckets=tuple(one for part in parts for one in part.buckets),
        survey=_joined_survey(parts),
        steps=tuple(step for part in parts for step in part.steps),
        casts=sum((part.casts for part in parts), Counter()),
        fed=sum(part.fed for part in parts),
        backward=any(part.backward for part in parts),
        updates=any(part.updates for part in parts),
        trains=any(part.trains for part in parts),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
        library_log=_joined_log([part.library_log for part in parts if part.library_log]),
    )


def _joined_log(logs: Sequence[LibraryLogReport]) -> LibraryLogReport | None:
    """Add up what was logged in several windows."""
    if not logs:
        return None
    names = ("products", "gemms", "vouched", "settled", "disputed")
    sums = {name: sum(getattr(log, name) for log in logs) for name in names}
    return LibraryLogReport(**sums, note=next((log.note for log in logs if log.note), None))


def _joined_survey(parts: Sequence[RankEvidence]) -> Survey:
    """Join the rows; the steps of a window are numbered after those of the windows before it."""
    gemms: list[GemmRow] = []
    optimizer: list[GemmRow] = []
    others: dict[Kind, KindTotal] = {}
    steps = 0
    for part in parts:
        for rows, found in ((gemms, part.survey.gemms), (optimizer, part.survey.optimizer)):
            rows += [row._replace(step=row.step + steps if row.step >= 0 else -1) for row in found]
        for total in part.survey.others:
            known = others.get(total.kind, KindTotal(total.kind, 0, 0))
            calls, time_ns = known.calls + total.calls, known.time_ns + total.time_ns
            others[total.kind] = KindTotal(total.kind, calls, time_ns)
        steps += len(part.steps)
    return Survey(gemms, list(others.values()), optimizer)

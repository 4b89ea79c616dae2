"""Everything known about one rank, gathered once and then only read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fp8verify.capture.numerics import RankNumerics
from fp8verify.capture.schema import ModuleRecord, RankMeta
from fp8verify.evidence import communication, timeline
from fp8verify.evidence.backward import is_of_backward
from fp8verify.evidence.buckets import Buckets, bucket_times, with_steps
from fp8verify.evidence.communication import CollectiveTotal
from fp8verify.evidence.feeding import fed_gemms
from fp8verify.evidence.gemms import (
    GemmLabel,
    GemmRow,
    Kind,
    Kinds,
    KindTotal,
    Survey,
    label_gemms,
    survey,
)
from fp8verify.evidence.layers_by_name import NamedLayers, join_named
from fp8verify.evidence.name_layers import name_layers
from fp8verify.evidence.opaque import is_opaque
from fp8verify.evidence.optimizers import range_of
from fp8verify.evidence.purpose import of_the_model
from fp8verify.evidence.timeline import Timeline
from fp8verify.evidence.totals import GemmTotals, gemm_totals
from fp8verify.evidence.units import multiplies
from fp8verify.evidence.window import within_window
from fp8verify.logs.losses import LossSeries
from fp8verify.model import VAGUE_LEGS, Leg, Precision, Role
from fp8verify.trace import Health, Step, Trace
from fp8verify.trace.team import call_all
from fp8verify.wording import label_of_rank

# What only an optimizer's step runs, by its operator or its kernel: torch's fused and foreach
# loops, and those of Apex, DeepSpeed and Transformer Engine. Of the foreach loops (addcmul,
# addcdiv, lerp), the kernels' names say only the functor (ATen/native/cuda/ForeachPointwiseOp.cu).
_UPDATES = re.compile(
    r"aten::_fused_(?:adamw?|sgd|adagrad)_|aten::_foreach_(?:addcdiv|addcmul|lerp)|"
    r"aten::addc(?:div|mul)_|triton_for_fused_|"
    r".*multi_tensor_apply_kernel<.*(?:PointwiseOpScalar|LerpFunctor)|"
    r".*(?<![a-z])(?:fused)?(?:adam[wx]?|adagrad|adafactor|muon|lamb|lion|sgd|optimi[sz]er)"
    r"(?![a-z])",
    re.IGNORECASE,
)
# A cast may feed several GEMMs (q, k and v of attention, dgrad and wgrad): four at the most.
_CASTS_PER_GEMM = 4
_QUANTIZING = (Role.CAST_QUANTIZE, Role.AMAX_REDUCE)


class RankEvidence(NamedTuple):
    """One rank: its kernels by kind and step, and what the runner noted beside its trace.

    It holds sums, not kernels, so that those of a thousand ranks fit.

    Attributes:
        copies: (count, nanoseconds, bytes) of memcpy and memset.
        gemm: the sums of the model's GEMMs.
        unreadable: why a trace of the rank could not be read.
        named: the layers, if they have names.
        process: the number of the process.
        bounds: when its first kernel began and its last one ended, in ns.
        guessed: whether the rank's number is its place among the files alone.
        fed: launches of layers' GEMMs in high precision that casts to FP8 feed.
        backward: whether a kernel of a backward pass ran, or may have.
        updates: whether an optimizer's step was seen.
        trains: whether a kernel proves that a backward pass ran.
        remarks: what the source does not record.
        numerics: what the runner noted of scales and tensors, if it did.
        losses: those of the run's log, beside the first rank.
    """

    source: str
    rank: int | None
    world_size: int | None
    gpu: str | None
    compute_capability: str | None
    health: Health
    copies: dict[str, tuple[int, int, int]]
    collectives: tuple[CollectiveTotal, ...]
    timeline: Timeline
    survey: Survey
    gemm: GemmTotals
    steps: tuple[tuple[Step, GemmTotals], ...]
    meta: RankMeta | None
    unreadable: str | None = None
    buckets: tuple[Buckets, ...] = ()
    named: NamedLayers | None = None
    process: int | None = None
    bounds: tuple[int, int] | None = None
    guessed: bool = False
    fed: int = 0
    backward: bool = True
    updates: bool = True
    trains: bool = True
    remarks: tuple[str, ...] = ()
    numerics: RankNumerics | None = None
    losses: LossSeries | None = None

    @property
    def saw_no_gpu(self) -> bool:
        """Whether the runner knows that torch found no GPU."""
        return self.meta is not None and self.meta.environment.sees_gpu is False

    @property
    def label(self) -> str:
        """How messages name the rank."""
        return label_of_rank(self.rank, self.source)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rank's number, as findings name their ranks; nothing where it is not known."""
        return () if self.rank is None else (self.rank,)

    @property
    def modules(self) -> tuple[ModuleRecord, ...]:
        """The census of the rank, empty where there is none."""
        return self.meta.modules if self.meta is not None else ()

    @property
    def ran_low(self) -> bool:
        """Whether any GEMM of a layer ran in FP8 or FP4."""
        return any(row.precision.is_low for row in self.survey.linear)

    @property
    def linear(self) -> GemmTotals:
        """The sums of the GEMMs of layers, by which the rank is judged."""
        return gemm_totals(self.survey.linear)

    @property
    def opaque(self) -> list[KindTotal]:
        """Kernels of the model that nobody recognises, the longest first."""
        found = [total for total in self.survey.others if is_opaque(total.kind)]
        return sorted(found, key=lambda total: -total.time_ns)

    @property
    def upcast(self) -> list[GemmRow]:
        """GEMMs in formats that the GPU cannot multiply, whose operands were converted first."""
        return [row for row in self.survey.gemms if row.kind.classification.upcast_from]

    def made_fp8_tensors(self) -> bool:
        """Whether casts to FP8 feed as many GEMMs of layers as a recipe's casts would."""
        return self.fed * _CASTS_PER_GEMM >= self.linear.kernels.total() > 0

    def quantizes(self) -> bool:
        """Whether as many kernels compute scales or cast as GEMMs in eight bits would need.

        Inductor's names do not say to which type; a clamp here and there is no recipe.
        """
        casts = sum(
            total.calls
            for total in self.survey.others
            if total.kind.classification.role in _QUANTIZING and of_the_model(total.kind.op)
        )
        return casts * _CASTS_PER_GEMM >= sum(row.calls for row in self.survey.gemms) > 0

    @property
    def has_fp8_units(self) -> bool:
        """Whether the GPU may multiply in FP8: True where that is not known."""
        return multiplies(self.gpu, self.compute_capability, Precision.FP8) is not False

    def main_precision(self) -> Precision:
        """The precision class with the most time in GEMMs of layers, or else the most launches."""
        linear = self.linear
        return max(Precision, key=lambda one: (linear.time_ns[one], linear.kernels[one]))

    @property
    def main_high(self) -> Precision:
        """The class of high precision with the most time in GEMMs of layers."""
        high = [p for p in Precision if not p.is_low and p is not Precision.UNKNOWN]
        return max(high, key=self.linear.time_ns.__getitem__)


def gather(
    trace: Trace, meta: RankMeta | None = None, *, layers: bool = False, workers: int = 1
) -> RankEvidence:
    """Classify the kernels of a trace and add them up.

    Args:
        trace: one window of the rank.
        meta: what the runner noted of it.
        layers: add them up by layer as well; the trace was read so.
        workers: how many processes may be forked to do it.
    """
    trace = within_window(trace)
    kinds = Kinds(trace)
    roles = kinds.roles()
    sums: tuple[Callable[[], Any], ...] = (
        partial(timeline.measure, trace, roles),
        partial(bucket_times, trace, kinds),
        partial(timeline.step_bounds, trace),
        partial(communication.collective_totals, trace, roles),
        partial(_bounds, trace),
        partial(_surveyed, trace, kinds),
    )
    measured, buckets, steps, collectives, bounds, surveyed = call_all(sums, workers=workers)
    labels, found, gemm, by_step = surveyed
    return RankEvidence(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        gpu=trace.gpu,
        compute_capability=trace.compute_capability,
        health=trace.health,
        copies=trace.copies,
        process=trace.process,
        bounds=bounds,
        collectives=collectives,
        timeline=measured._replace(steps=timeline.step_times(steps)),
        buckets=(with_steps(buckets, trace, steps, bounds[0]),) if buckets else (),
        survey=found,
        gemm=gemm,
        steps=by_step,
        meta=meta,
        named=name_layers(trace, kinds, labels) if layers else None,
        fed=0 if _any_low(found) else fed_gemms(trace, kinds, labels),
        backward=_runs_backward(kinds.kinds, labels),
        updates=any(map(_is_update, kinds.kinds)),
        trains=any(map(_proves_training, kinds.kinds)),
        remarks=tuple(trace.remarks),
    )


class _Surveyed(NamedTuple):
    """The GEMMs of a rank: each one, all of them summed up, and those of each step."""

    labels: list[GemmLabel]
    survey: Survey
    gemm: GemmTotals
    steps: tuple[tuple[Step, GemmTotals], ...]


def _surveyed(trace: Trace, kinds: Kinds) -> _Surveyed:
    labels = list(label_gemms(trace, kinds))
    found = survey(trace, kinds, labels)
    return _Surveyed(labels, found, gemm_totals(found.gemms), _by_step(trace, found.gemms))


def _bounds(trace: Trace) -> tuple[int, int] | None:
    columns = trace.kernels
    if not len(columns):
        return None
    ends = map(int.__add__, columns.start_ns, columns.duration_ns)
    return min(columns.start_ns), max(ends)


def _any_low(found: Survey) -> bool:
    return any(row.precision.is_low for row in found.gemms)


def _runs_backward(kinds: Sequence[Kind], labels: Iterable[GemmLabel]) -> bool:
    """Whether a kernel ran in a backward pass, or a GEMM of which that is not known."""
    if any(kind.op is not None and kind.op.backward for kind in kinds):
        return True
    vague = (*VAGUE_LEGS, Leg.DGRAD, Leg.WGRAD, Leg.RECOMPUTE)
    return any(label.leg in vague for label in labels)


def _is_update(kind: Kind) -> bool:
    around = () if kind.op is None else (kind.op.name, *kind.op.parents)
    if any("zero_grad" in name for name in around):
        return False
    if kind.op is not None and range_of(kind.op) is not None:
        return True
    return any(map(_UPDATES.match, (kind.name[:400], *around)))


def _proves_training(kind: Kind) -> bool:
    """Whether a kernel is of a backward pass, or of the optimizer's step that follows one."""
    ran_backward = kind.op is not None and kind.op.backward
    return ran_backward or is_of_backward(kind) or _is_update(kind)


def merge_windows(parts: Sequence[RankEvidence]) -> RankEvidence:
    """Join the evidence of one rank's traces, in order: windows of a run, or runs after another."""
    if len(parts) == 1:
        return parts[0]
    gemms: list[GemmRow] = []
    optimizer: list[GemmRow] = []
    health, steps = Health(), 0
    for part in parts:
        health.add(part.health)
        gemms += _moved(part.survey.gemms, steps)
        optimizer += _moved(part.survey.optimizer, steps)
        steps += len(part.steps)
    return parts[0]._replace(
        source=", ".join(part.source for part in parts),
        health=health,
        copies=_add_up(part.copies for part in parts),
        bounds=_joined_bounds([part.bounds for part in parts if part.bounds is not None]),
        collectives=communication.join(part.collectives for part in parts),
        timeline=timeline.join([part.timeline for part in parts]),
        buckets=tuple(one for part in parts for one in part.buckets),
        survey=Survey(gemms, _join_totals(parts), optimizer),
        gemm=gemm_totals(gemms),
        steps=tuple(step for part in parts for step in part.steps),
        named=join_named(part.named for part in parts),
        fed=sum(part.fed for part in parts),
        backward=any(part.backward for part in parts),
        updates=any(part.updates for part in parts),
        trains=any(part.trains for part in parts),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
    )


def _joined_bounds(bounds: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    if not bounds:
        return None
    return min(begin for begin, _ in bounds), max(end for _, end in bounds)


def _moved(rows: Iterable[GemmRow], steps: int) -> list[GemmRow]:
    """Number the steps of a window after those of the windows before it."""
    return [row._replace(step=row.step + steps if row.step >= 0 else -1) for row in rows]


def _add_up(parts: Iterable[dict[str, tuple[int, int, int]]]) -> dict[str, tuple[int, int, int]]:
    total: dict[str, tuple[int, int, int]] = {}
    for part in parts:
        for name, (count, time_ns, size) in part.items():
            known = total.get(name, (0, 0, 0))
            total[name] = (known[0] + count, known[1] + time_ns, known[2] + size)
    return total


def _join_totals(parts: Iterable[RankEvidence]) -> list[KindTotal]:
    total: dict[Kind, KindTotal] = {}
    for found in (found for part in parts for found in part.survey.others):
        known = total.get(found.kind)
        total[found.kind] = (
            found
            if known is None
            else KindTotal(found.kind, known.calls + found.calls, known.time_ns + found.time_ns)
        )
    return list(total.values())


def _by_step(trace: Trace, rows: Sequence[GemmRow]) -> tuple[tuple[Step, GemmTotals], ...]:
    members: dict[int, list[GemmRow]] = defaultdict(list)
    for row in rows:
        members[row.step].append(row)
    return tuple((step, gemm_totals(members[i])) for i, step in enumerate(trace.steps))

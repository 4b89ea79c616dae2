"""From a trace of one rank to what it shows, which a worker sends to the process that judges."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from itertools import compress
from operator import add, or_
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import asdict, replace

from fp8verify.analysis import purpose, timeline
from fp8verify.analysis.calls import Execution, executions_of
from fp8verify.analysis.code_report import code_report, joined_reports
from fp8verify.analysis.code_word import words_on_kernels
from fp8verify.analysis.fed_gemms import fed_gemms
from fp8verify.analysis.gemms import GemmRow, classify_kernels, gemm_rows
from fp8verify.analysis.kinds import (
    Kind,
    Kinds,
    KindTotal,
)
from fp8verify.analysis.layers import NamedLayers, name_casts
from fp8verify.analysis.library_log import remark, settle_by_library
from fp8verify.analysis.placing import Placed, place
from fp8verify.capture.files import distinct
from fp8verify.errors import InputError
from fp8verify.kernels.code_files import NO_CODE, CacheContents
from fp8verify.model.kernels import CompiledCodeReport, LibraryLogReport
from fp8verify.model.steps import TimelineReport, are_whole
from fp8verify.terms import GRADIENT_LEGS, VAGUE_LEGS, Leg
from fp8verify.trace import Health, Step, Trace
from fp8verify.trace.contexts import BACKWARD
from fp8verify.trace.tables import Kernels, Launch, TraceHead

if TYPE_CHECKING:
    from fp8verify.capture.schema import CompiledKernel
    from fp8verify.trace.blas_log import Product


_Row = TypeVar("_Row", GemmRow, Execution)

# What holds of a rank if it holds of any window, and what adds up.
_FACTS: Final = ("backward", "updates", "trains")
_SUMS: Final = (
    "gemms",
    "executions",
    "optimizer",
    "copies",
    "collectives",
    "buckets",
    "steps",
    "casts",
    "fed_by_casts",
)
# Legs of which a backward pass runs each, or may.
_MAY_BE_BACKWARD: Final = (
    *VAGUE_LEGS,
    *GRADIENT_LEGS,
    Leg.RECOMPUTE,
)


class TraceEvidence(  # type: ignore[misc]  # msgspec lets a frozen class extend another
    TraceHead, frozen=True, eq=False, kw_only=True, dict=True
):
    """What the traces of one rank show, as sums, so a thousand ranks fit into memory.

    Attributes:
        gemms: the model's GEMMs: those of its linear layers and, without a fused attention kernel,
            those of attention, whose leg is ATTENTION.
        others: other kernels by kind.
        executions: the calls of layers that train, in the order of the executions.
        optimizer: the GEMMs of the optimizer.
        copies: ns by kind, "memcpy" and "memset".
        error: why a trace of the rank could not be read.
        casts: ns in casts and scales by layer, where the trace names layers.
        naming: the eager step that named the layers, if one did.
        bounds: when its first kernel began and its last one ended, in ns.
        began_ns: when its first kernel began, in ns since 1970, if the source says so.
        guessed: whether the rank's number is only its position among the files.
        fed_by_casts: launches of layers' GEMMs in high precision that casts to FP8 feed.
        backward: whether a kernel of a backward pass ran, or may have.
        updates: whether an optimizer's step was seen.
        trains: whether a kernel proves that a backward pass ran.
        seen_nodes: calls of the autograd nodes of GEMMs that the source lists without kernels.
        remarks: what the source does not record.
        library_log: what such a log says of the kernels.
        compiled_code: what the machine code of Triton's kernels says of them.
        compiled: that code, as far as it was looked for.
        beside: GEMMs of a run in BF16, by which the gain is estimated.
    """

    bounds: tuple[int, int] | None
    began_ns: int | None
    gemms: list[GemmRow]
    executions: list[Execution]
    others: list[KindTotal]
    optimizer: list[GemmRow]
    copies: Counter[str]
    collectives: tuple[timeline.CollectiveTotal, ...]
    timeline: timeline.Timeline
    buckets: tuple[TimelineReport, ...]
    steps: tuple[Step, ...]
    casts: Counter[str]
    fed_by_casts: int
    backward: bool
    updates: bool
    trains: bool
    seen_nodes: int
    remarks: tuple[str, ...]
    library_log: LibraryLogReport | None
    compiled_code: CompiledCodeReport | None
    compiled: tuple[CompiledKernel, ...]
    error: InputError | None = None
    naming: NamedLayers | None = None
    guessed: bool = False
    beside: tuple[GemmRow, ...] = ()

    @cached_property
    def trained(self) -> list[GemmRow]:
        """The GEMMs of layers that train, by which a run is judged."""
        return [row for row in self._of_layers if row.trained]

    @cached_property
    def untrained(self) -> list[GemmRow]:
        """The GEMMs of layers that only run forward, or without evidence that they train."""
        return [row for row in self._of_layers if not row.trained]

    @property
    def _of_layers(self) -> list[GemmRow]:
        """The GEMMs of layers."""
        return [row for row in self.gemms if row.leg is not Leg.ATTENTION]

    @property
    def unexplained(self) -> list[GemmRow]:
        """The GEMMs outside of operators of which nothing shows whether they train."""
        return [row for row in self.untrained if row.leg is Leg.UNKNOWN]

    @cached_property
    def attention(self) -> list[GemmRow]:
        """The products of attention."""
        return [row for row in self.gemms if row.leg is Leg.ATTENTION]

    @cached_property
    def named(self) -> NamedLayers | None:
        """The layers by name, if they have names."""
        rows = [row for row in self._of_layers if row.layer is not None]
        if not rows:
            return self.naming
        return NamedLayers(rows, self.casts)


def gather(
    trace: Trace,
    logged: Sequence[tuple[int, Product]] | None = None,
    compiled: CacheContents = NO_CODE,
) -> TraceEvidence:
    """Classify the kernels of a trace, one window of a rank, and add them up.

    Args:
        trace: the window.
        logged: what the BLAS library logged of it, by thread.
        compiled: the machine code of kernels that may be of it.
    """
    trace = within_window(trace)
    words = words_on_kernels(trace, compiled.kernels)
    kinds = classify_kernels(trace, words)
    if not are_whole(trace.steps):
        trace = _without_cut_steps(trace, kinds)
        words = words_on_kernels(trace, compiled.kernels)
        kinds = classify_kernels(trace, words)
    library_log = None
    if logged is not None:
        library_log = settle_by_library(trace, kinds, logged)
    steps = timeline.step_bounds(trace)
    gemms = place(trace, kinds)
    rows = gemm_rows(trace, gemms)
    measured = timeline.measure(trace, kinds, steps)
    bounds = None
    buckets: tuple[TimelineReport, ...] = ()
    if trace.kernels.start_ns:
        begin = min(trace.kernels.start_ns)
        bounds = (begin, begin + measured.span)
        if not trace.in_flops:
            times = timeline.bucket_times(
                trace,
                kinds,
                steps,
                measured.span,
            )
            buckets = (times,)
    began_ns = None
    if trace.base_ns and bounds is not None:
        began_ns = trace.base_ns + bounds[0]
    updates = any(map(purpose.is_update, kinds.rows))
    backward = any(map(_is_of_backward, kinds.rows))
    head = {name: getattr(trace, name) for name in TraceHead.__struct_fields__}
    return TraceEvidence(
        **head,
        copies=_copy_times(trace),
        bounds=bounds,
        began_ns=began_ns,
        collectives=timeline.collective_totals(trace, kinds),
        timeline=measured,
        buckets=buckets,
        gemms=[row for row in rows if row.leg is not Leg.OPTIMIZER],
        executions=executions_of(trace, gemms),
        others=kinds.others(),
        optimizer=[row for row in rows if row.leg is Leg.OPTIMIZER],
        steps=tuple(trace.steps),
        casts=name_casts(trace, kinds),
        fed_by_casts=_fed_gemms(trace, kinds, gemms, rows),
        backward=_runs_backward(kinds.rows, gemms),
        updates=updates or any(map(purpose.is_of_optimizer, trace.seen)),
        trains=updates or backward or any(map(BACKWARD.search, trace.seen)),
        seen_nodes=_seen_nodes(trace),
        remarks=_remarks(trace, library_log, compiled),
        library_log=library_log,
        compiled_code=code_report(kinds, words),
        compiled=compiled.kernels,
    )


def _copy_times(trace: Trace) -> Counter[str]:
    """Return the ns of memcpy and memset, by their names."""
    times = Counter[str]()
    for name, (_, time_ns, _) in trace.copies.items():
        times[name] = time_ns
    return times


def _runs_backward(kinds: Iterable[Kind], gemms: Iterable[Placed]) -> bool:
    """Whether a kernel ran in a backward pass, or is a GEMM for which this is not known."""
    if any(kind.op.backward for kind in kinds):
        return True
    return any(placed.leg in _MAY_BE_BACKWARD for placed in gemms)


def _is_of_backward(kind: Kind) -> bool:
    return kind.op.backward or purpose.is_of_backward(kind)


def _fed_gemms(
    trace: Trace,
    kinds: Kinds,
    gemms: Iterable[Placed],
    rows: Iterable[GemmRow],
) -> int:
    """Count the GEMMs that casts to FP8 feed, 0 where GEMMs ran in low precision."""
    if any(row.precision.is_low for row in rows):
        return 0
    return fed_gemms(trace, kinds, gemms)


def _seen_nodes(trace: Trace) -> int:
    """Count the calls of autograd nodes of GEMMs that the source lists without kernels."""
    calls = 0
    for name, count in trace.seen.items():
        if purpose.is_node_of_gemms(name):
            calls += count
    return calls


def _remarks(
    trace: Trace,
    library_log: LibraryLogReport | None,
    compiled: CacheContents,
) -> tuple[str, ...]:
    remarks = [*trace.remarks]
    if library_log is not None:
        remarks.append(remark(library_log))
    return (*remarks, *compiled.notes)


def merge_windows(parts: Sequence[TraceEvidence]) -> TraceEvidence:
    """Join the evidence of one rank's traces, in order: windows of a run, or runs after another.

    The steps of a window are numbered after those of the windows before it, and so are the
    micro-batches where it has no steps.
    """
    if len(parts) == 1:
        return parts[0]
    health = Health()
    for part in parts:
        health.add(part.health)
    library_logs = []
    remarks: dict[str, None] = {}
    for part in parts:
        remarks.update(dict.fromkeys(part.remarks))
        if part.library_log is not None:
            library_logs.append(part.library_log)
    facts = {}
    for name in _FACTS:
        facts[name] = any(getattr(part, name) for part in parts)
    sums = {}
    numbered = _numbered(parts)
    for name in _SUMS:
        values = (getattr(part, name) for part in numbered)
        sums[name] = reduce(add, values)
    return replace(
        parts[0],
        largest_gradient=_largest(part.largest_gradient for part in parts),
        source=", ".join(part.source for part in parts),
        health=health,
        bounds=_joined_bounds(parts),
        others=_joined_totals(parts),
        timeline=timeline.join([part.timeline for part in parts]),
        remarks=tuple(remarks),
        library_log=_joined_log(library_logs),
        compiled_code=joined_reports([part.compiled_code for part in parts]),
        compiled=distinct(kernel for part in parts for kernel in part.compiled),
        **facts,
        **sums,
    )


def _numbered(parts: Sequence[TraceEvidence]) -> list[TraceEvidence]:
    """Return windows whose steps, or micro-batches, go on from those of the windows before."""
    numbered: list[TraceEvidence] = []
    steps = 0
    micro_batches = 0
    for part in parts:
        gemms = _moved(part.gemms, steps, micro_batches)
        moved = replace(
            part,
            gemms=gemms,
            optimizer=_moved(part.optimizer, steps, micro_batches),
            executions=_moved(part.executions, steps, micro_batches),
        )
        numbered.append(moved)
        steps += len(part.steps)
        if gemms:
            last = max(row.micro_batch for row in gemms)
            micro_batches = last + 1
    return numbered


def _moved(
    rows: Iterable[_Row],
    steps: int,
    micro_batches: int,
) -> list[_Row]:
    """Return rows whose step comes after `steps` others; without one, so the micro-batch."""
    moved = []
    for row in rows:
        if row.step >= 0:
            step = row.step + steps
            moved.append(row._replace(step=step))
        else:
            micro_batch = row.micro_batch + micro_batches
            moved.append(row._replace(micro_batch=micro_batch))
    return moved


def _joined_bounds(parts: Iterable[TraceEvidence]) -> tuple[int, int] | None:
    """Return when the first kernel of any window began and the last one ended."""
    begins = []
    ends = []
    for part in parts:
        if part.bounds is not None:
            begin, end = part.bounds
            begins.append(begin)
            ends.append(end)
    if not begins:
        return None
    return min(begins), max(ends)


def _joined_totals(parts: Iterable[TraceEvidence]) -> list[KindTotal]:
    """Add up the kernels that are no GEMMs by kind."""
    launches = Counter[Kind]()
    amounts = Counter[Kind]()
    for part in parts:
        for total in part.others:
            launches[total.kind] += total.kernels
            amounts[total.kind] += total.amount
    totals = []
    for kind, amount in amounts.items():
        totals.append(KindTotal(kind, launches[kind], amount))
    return totals


def _largest(known: Iterable[int | None]) -> int | None:
    """Return the largest number, None if one is not known."""
    largest = 0
    for number in known:
        if number is None:
            return None
        largest = max(largest, number)
    return largest


def _joined_log(logs: Sequence[LibraryLogReport]) -> LibraryLogReport | None:
    """Add up what was logged in several windows."""
    if not logs:
        return None
    sums = Counter[str]()
    note = None
    for log in logs:
        note = note or log.note
        sums["products"] += log.products
        sums["gemms"] += log.gemms
        sums["vouched"] += log.vouched
        sums["settled"] += log.settled
        sums["disputed"] += log.disputed
    return LibraryLogReport(**sums, note=note or None)


def within_window(trace: Trace) -> Trace:
    """Return the trace without the kernels that were launched outside its window.

    A profiler that starts while the GPU is busy also records earlier kernels: their launch is not
    in the trace, or is before the first step. If several ranks are recorded together, the recording
    is also longer than the steps of each rank.
    """
    columns = trace.kernels
    if not len(columns) or min(columns.step) >= 0:
        return trace
    launched = []
    for step, launch in zip(columns.step, columns.launch, strict=True):
        if trace.steps:
            launched.append(step >= 0)
        else:
            launched.append(step >= 0 or launch != Launch.NONE)
    starts = columns.start_ns
    begin = min(compress(starts, launched), default=min(starts))
    after_begin = map(begin.__le__, starts)
    inside = list(map(or_, launched, after_begin))
    if all(inside):
        return trace
    health = replace(
        trace.health,
        kernels_before_window=inside.count(False),
    )
    cut = _with_kernels(trace, inside)
    return replace(cut, health=health)


def _without_cut_steps(trace: Trace, kinds: Kinds) -> Trace:
    """Return a damaged trace without the kernels of steps that are not whole, if any step is.

    A step that ran GEMMs and none in low precision, as whole steps did, stays: it lacks them.
    """
    whole = {index for index, step in enumerate(trace.steps) if step.whole}
    if not whole:
        return trace
    step_of = trace.kernels.step
    low_gemms = kinds.started(_is_low_gemm)
    low = {step_of[index] for index in low_gemms}
    stays = whole
    if not low.isdisjoint(whole):
        stays = whole | set(step_of) - low
    inside = [step in stays for step in step_of]
    return _with_kernels(trace, inside)


def _is_low_gemm(kind: Kind) -> bool:
    return kind.is_gemm and kind.is_low


def _with_kernels(trace: Trace, inside: Sequence[bool]) -> Trace:
    """Return the trace with some of its kernels."""
    columns: dict[str, array[Any]] = asdict(trace.kernels)
    kept = {}
    for name, values in columns.items():
        chosen = compress(values, inside)
        kept[name] = array(values.typecode, chosen)
    kernels = Kernels(**kept)
    return replace(trace, kernels=kernels)

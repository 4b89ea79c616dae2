"""Make the report from the evidence of all ranks and the results of the findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import convert

from fp8verify.analysis import recorded
from fp8verify.analysis.gather import TraceEvidence
from fp8verify.analysis.gemms import GemmRow, gemm_totals, micros
from fp8verify.analysis.gpus import Peak, peak_of, peak_tflops
from fp8verify.analysis.kinds import KindTotal, grouped
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.timeline import communication_report
from fp8verify.model.kernels import HealthReport, KernelRow, LegRow, RecipeSeen
from fp8verify.model.layers import LayersReport, NamedLayerRow, NamedLayersReport
from fp8verify.model.report import RankReport
from fp8verify.model.steps import StepReport
from fp8verify.report.results import Report
from fp8verify.terms import Leg, Verdict
from fp8verify.text import patterns
from fp8verify.verdict.assessment import Assessment, Judgement
from fp8verify.verdict.expected import Requested
from fp8verify.verdict.findings.operators import unplaced_ns
from fp8verify.version import __version__

SCHEMA_VERSION = 2


def assemble(
    ranks: Sequence[RankEvidence],
    judgement: Judgement,
    requested: Requested,
    notes: Sequence[str] = (),
    *,
    name: str,
    logs: Sequence[str] = (),
) -> Report:
    """Return a report, still without its verdict, from the evidence of all ranks.

    Args:
        ranks: their evidence.
        judgement: what it shows.
        requested: what the log and the model request.
        notes: remarks on what was read and recorded.
        name: what the run is called.
        logs: names of the logs that were read.
    """
    gpu_time_us = {}
    for purpose in ranks[0].gpu_time:
        time_ns = sum(rank.gpu_time[purpose] for rank in ranks)
        gpu_time_us[purpose] = micros(time_ns)
    reports = []
    for rank, assessed in zip(ranks, judgement.ranks, strict=True):
        reports.append(_rank_report(rank, assessed, requested))
    return Report(
        schema_version=SCHEMA_VERSION,
        name=name,
        fp8verify_version=__version__,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        exit_code=0,
        fails=False,
        **_sums([rank.trace for rank in ranks]),
        gpu_time_us=gpu_time_us,
        ranks=tuple(reports),
        claims=requested.claims,
        mention=requested.mention,
        findings=judgement.findings,
        environment=recorded.environment(ranks),
        measure="flops" if any(rank.trace.in_flops for rank in ranks) else "time",
        notes=tuple(notes),
        logs=tuple(logs),
        proof=judgement.proof,
        ledger=judgement.ledger,
    )


def _rank_report(
    rank: RankEvidence,
    assessed: Assessment,
    requested: Requested,
) -> RankReport:
    trace = rank.trace
    meta = rank.recorded.meta
    gain = rank.gain
    return RankReport(
        rank=trace.rank,
        source=trace.source,
        **assessed._asdict(),
        **_sums([trace]),
        opaque_us=micros(rank.opaque_ns),
        library_log=trace.library_log,
        compiled_code=trace.compiled_code,
        unplaced_us=micros(unplaced_ns(rank, requested)),
        gpu_time_us=_all_micros(rank.gpu_time),
        copy_time_us=_all_micros(trace.copies),
        steps=_step_reports(trace),
        timelines=trace.buckets,
        kernels=_kernel_rows(trace, timed=not trace.in_flops),
        communication=communication_report(trace.collectives, trace.timeline),
        tax=gain.tax,
        payoff=gain.payoff,
        layers=_layers_report(rank),
        named_layers=_named_layers_report(rank),
        modules=recorded.modules_report(rank),
        numerics=recorded.numerics_report(rank),
        memory=recorded.memory_report(meta),
        steps_outside=recorded.steps_outside(meta),
        health=convert(trace.health, HealthReport, from_attributes=True),
        clock=recorded.clock_report(rank.recorded),
    )


def _all_micros(times_ns: Mapping[str, int]) -> dict[str, float]:
    return {name: micros(time_ns) for name, time_ns in times_ns.items()}


def _sums(traces: Sequence[TraceEvidence]) -> dict[str, Any]:
    """Return the fields of a report, or of a rank's, that add up GEMMs."""
    gemms: list[GemmRow] = []
    attention: list[GemmRow] = []
    untrained: list[GemmRow] = []
    optimizer: list[GemmRow] = []
    for trace in traces:
        gemms += trace.gemms
        attention += trace.attention
        untrained += trace.untrained
        optimizer += trace.optimizer
    return {
        "gemm": gemm_totals(gemms),
        "attention_gemm": gemm_totals(attention),
        "untrained_gemm": gemm_totals(untrained),
        "optimizer_gemm": gemm_totals(optimizer),
        "legs": _leg_rows([*gemms, *optimizer]),
        "recipe": _recipe_seen(gemms),
    }


def _step_reports(trace: TraceEvidence) -> tuple[StepReport, ...]:
    training = {row.step for row in trace.trained}
    by_step = grouped(trace.gemms, lambda row: row.step)
    reports = []
    steps = zip(trace.steps, trace.timeline.steps, strict=True)
    for index, (step, gpu_ns) in enumerate(steps):
        reports.append(
            StepReport(
                step=step.number,
                duration_us=micros(step.end_ns - step.start_ns),
                gpu_us=None if gpu_ns is None else micros(gpu_ns),
                gemm=gemm_totals(by_step.get(index, ())),
                trains=index in training,
                whole=step.whole,
            )
        )
    return tuple(reports)


def _leg_rows(rows: Iterable[GemmRow]) -> tuple[LegRow, ...]:
    """Cross GEMM time and launches by leg and precision, in the order of the legs."""
    by_leg = grouped(rows, lambda row: row.leg)
    found = []
    for leg in filter(by_leg.__contains__, Leg):
        total = gemm_totals(by_leg[leg])
        kernels = {}
        time_us = {}
        for name, launches in sorted(total.kernels.items()):
            if launches or total.time_us[name]:
                kernels[name] = launches
                time_us[name] = total.time_us[name]
        found.append(
            LegRow(
                leg=leg,
                time_us=time_us,
                kernels=kernels,
            )
        )
    return tuple(found)


def _recipe_seen(rows: Iterable[GemmRow]) -> RecipeSeen:
    """Sum FP8 GEMM time by scaling, and say per leg whether fast accumulation was on."""
    time_ns: dict[str, int] = defaultdict(int)
    fast: dict[str, bool] = {}
    for row in rows:
        if row.scaling is None:
            continue
        time_ns[row.scaling.value] += row.amount
        accumulates_fast = row.kind.classification.fast_accum
        if accumulates_fast is not None:
            leg = row.leg.value
            fast[leg] = fast.get(leg, True) and accumulates_fast
    time_us = _all_micros(dict(sorted(time_ns.items())))
    return RecipeSeen(time_us=time_us, fast_accumulation=fast)


def _kernel_rows(trace: TraceEvidence, *, timed: bool) -> tuple[KernelRow, ...]:
    """List the kinds of kernel, the longest total time first; steps are added up."""
    every: list[GemmRow | KindTotal] = [*trace.gemms, *trace.optimizer, *trace.others]
    peaks = peak_of(trace.gpu)
    groups = grouped(every, lambda row: (row.kind, row.leg, row.shape))
    rows = [_kernel_row(alike, peaks, timed=timed) for alike in groups.values()]
    rows.sort(key=lambda row: (-row.time_us, row.name))
    return tuple(rows)


def _kernel_row(
    alike: Sequence[GemmRow | KindTotal],
    peaks: Peak | None,
    *,
    timed: bool,
) -> KernelRow:
    """Return the row of launches of one kind, leg and shape.

    Args:
        alike: sums of these.
        peaks: of the GPU, if they are known.
        timed: whether the trace has times, and not FLOPs.
    """
    first = alike[0]
    found = first.kind.classification
    op = first.kind.op
    launches = 0
    time_ns = 0
    flops = 0
    for row in alike:
        launches += row.kernels
        time_ns += row.amount
        flops += row.flops or 0
    tflops = None
    if flops and time_ns and timed:
        tflops = round(flops / time_ns / 1000, 1)
    percent_of_peak = None
    peak = peak_tflops(peaks, found.precision)
    if tflops and peak:
        percent_of_peak = round(100 * tflops / peak, 1)
    return KernelRow(
        name=first.kind.name,
        role=found.role,
        precision=found.precision,
        library=found.library,
        op=op.name or None,
        leg=first.leg,
        dims=op.dims[:4] if op.name and first.leg is not None else None,
        shape=None if first.shape is None else tuple(first.shape),
        kernels=launches,
        time_us=micros(time_ns),
        tflops=tflops,
        percent_of_peak=percent_of_peak,
        decided_by=found.source,
        reason=found.reason,
    )


def _layers_report(rank: RankEvidence) -> LayersReport | None:
    """Return the layers of a rank; None without shapes and module list."""
    layers = rank.layers
    # No single GEMM has the size of the 3-D parameters of experts.
    experts = [module.fqn for module in rank.modules if module.kind == "experts"]
    if not (layers.classes or layers.apart or experts):
        return None
    note = None
    if not rank.recorded.observed:
        note = "no module list: layers are identified by the sizes of their GEMMs only"
    elif not layers.classes:
        note = "no GEMM has the size of a layer (shapes not recorded, or layers that are split)"
    elif layers.apart:
        note = f"no GEMM has the size of {len(layers.apart)} of the modules"
    return LayersReport(
        rows=tuple(layer.row for layer in layers.classes),
        not_joined=tuple(patterns(module.fqn for module in layers.apart)),
        experts=tuple(patterns(experts)),
        note=note,
    )


def _named_layers_report(rank: RankEvidence) -> NamedLayersReport | None:
    """Return the GEMMs of each layer; None if the run did not record layer names."""
    named = rank.trace.named
    if named is None:
        return None
    modules = {module.fqn: module for module in rank.modules}
    casts = named.casts if rank.ran_or_cast_low else {}
    measured = rank.recorded.numerics.record.measured
    if measured is not None and measured.step == named.step:
        casts = {}  # `run --numerics` cast in that step too
    rows = []
    for layer, gemms in named.by_layer().items():
        module = modules.get(layer)
        rows.append(
            NamedLayerRow(
                layer=layer,
                n=module.out_features if module else None,
                k=module.in_features if module else None,
                state=module.state if module else None,
                legs=_leg_rows(gemms),
                casts_us=micros(casts[layer]) if layer in casts else None,
            )
        )
    note = named.note
    if not rows:
        note = note or "no GEMM could be joined to a layer"
    calls = 0
    unjoined = 0
    for row in named.rows:
        calls += row.calls
        if not row.layer:
            unjoined += row.calls
    return NamedLayersReport(
        source=named.source,
        step=named.step,
        rows=tuple(rows),
        gemms=calls,
        unjoined=unjoined,
        note=note,
    )

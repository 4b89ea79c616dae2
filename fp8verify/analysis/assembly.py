"""Lay evidence and judgement out as the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fp8verify.analysis.communication import ELEMENT_BYTES, CollectiveTotal, weight_gathers
from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import (
    GemmRow,
    KindTotal,
    Survey,
    add_totals,
    gemm_totals,
    micros,
    rounded,
)
from fp8verify.analysis.gpus import peak_of, peak_tflops
from fp8verify.analysis.layers import LayerClass, LayerGemms, Layers
from fp8verify.analysis.numerics import numerics_report
from fp8verify.analysis.payoff import Payoff
from fp8verify.analysis.promises import Promises, unplaced_ns
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import (
    clock_report,
    environment,
    memory_report,
    modules_report,
    step_reports,
    steps_outside,
    timeline_report,
)
from fp8verify.capture.schema import ModuleRecord
from fp8verify.layer_names import patterns
from fp8verify.report.model import (
    Finding,
    HealthReport,
    KernelRow,
    LegRow,
    RankReport,
    RecipeSeen,
    Report,
)
from fp8verify.report.model.diagnosis import (
    CollectiveRow,
    CommunicationReport,
    ExpectedReport,
    LayerRow,
    LayersReport,
    NamedLayerRow,
    NamedLayersReport,
    NamedLeg,
    PayoffReport,
    TaxEntry,
    TaxReport,
    WeightGather,
)
from fp8verify.terms import LEGS, Leg, Verdict
from fp8verify.trace import Health
from fp8verify.verdict.judge import Assessment
from fp8verify.version import __version__

SCHEMA_VERSION = 2


def assemble(
    ranks: Sequence[RankFacts],
    assessed: Sequence[Assessment],
    findings: tuple[Finding, ...],
    promises: Promises,
    notes: Sequence[str] = (),
    *,
    name: str,
) -> Report:
    """Lay out the facts of all ranks as a report whose verdict is still open.

    Args:
        ranks: the facts.
        assessed: what the findings settle for each rank.
        findings: on all ranks.
        promises: what the log and the model promised.
        notes: remarks on what was read and recorded.
        name: what the run is called.
    """
    surveys = [facts.rank.survey for facts in ranks]
    gemms = [row for survey in surveys for row in survey.gemms]
    optimizer = [row for survey in surveys for row in survey.optimizer]
    attention = [row for survey in surveys for row in survey.attention]
    untrained = [row for survey in surveys for row in survey.untrained]
    return Report(
        schema_version=SCHEMA_VERSION,
        name=name,
        fp8verify_version=__version__,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        exit_code=0,
        fails=False,
        gemm=add_totals(facts.rank.gemm for facts in ranks).summary(),
        attention_gemm=gemm_totals(attention).summary(),
        untrained_gemm=gemm_totals(untrained).summary(),
        optimizer_gemm=gemm_totals(optimizer).summary(),
        gpu_time_us=_gpu_time(ranks),
        legs=leg_rows([*gemms, *optimizer]),
        recipe=recipe_seen(gemms),
        ranks=tuple(
            _rank_report(facts, found, promises)
            for facts, found in zip(ranks, assessed, strict=True)
        ),
        claims=promises.claims,
        findings=findings,
        environment=environment([facts.rank for facts in ranks]),
        notes=tuple(notes),
    )


def _gpu_time(ranks: Sequence[RankFacts]) -> dict[str, float]:
    return {key: micros(sum(f.gpu_time[key] for f in ranks)) for key in ranks[0].gpu_time}


def _rank_report(facts: RankFacts, assessed: Assessment, promises: Promises) -> RankReport:
    rank, settled = facts.rank, assessed.settled
    return RankReport(
        rank=rank.rank,
        source=rank.source,
        verdict=settled.verdict if settled else Verdict.INCONCLUSIVE,
        reason=settled.reason if settled else "",
        settled=settled is not None,
        shortfall=assessed.shortfall,
        rest=assessed.rest,
        gemm=rank.gemm.summary(),
        attention_gemm=gemm_totals(rank.survey.attention).summary(),
        untrained_gemm=gemm_totals(rank.survey.untrained).summary(),
        optimizer_gemm=gemm_totals(rank.survey.optimizer).summary(),
        opaque_us=micros(sum(total.time_ns for total in rank.unrecognized)),
        unplaced_us=micros(unplaced_ns(rank, promises)),
        judged=assessed.judged,
        expected=None
        if facts.expected is None
        else ExpectedReport(
            share_of_flops=facts.expected.share,
            measured_share_of_flops=facts.expected.measured,
            left_out=facts.expected.left_out,
            stated=facts.expected.stated,
        ),
        gpu_time_us={key: micros(ns) for key, ns in facts.gpu_time.items()},
        copy_time_us={name: micros(copy[1]) for name, copy in rank.copies.items()},
        legs=leg_rows([*rank.survey.gemms, *rank.survey.optimizer]),
        recipe=recipe_seen(rank.survey.gemms),
        steps=step_reports(rank),
        timelines=tuple(map(timeline_report, rank.buckets)),
        kernels=kernel_rows(rank.survey, rank.gpu),
        communication=communication_report(rank),
        tax=tax_report(facts.payoff),
        payoff=payoff_report(facts.payoff),
        layers=layers_report(facts),
        named_layers=named_layers_report(facts),
        modules=modules_report(rank.meta),
        numerics=numerics_report(rank),
        memory=memory_report(rank.meta),
        steps_outside=steps_outside(rank.meta),
        health=_health_report(rank.health),
        clock=clock_report(rank.meta),
    )


def _health_report(health: Health) -> HealthReport:
    return HealthReport(
        events=health.events,
        skipped_events=health.skipped_events,
        truncated=health.truncated,
        kernels=health.kernels,
        kernels_without_launch=health.kernels_without_launch,
        kernels_without_op=health.kernels_without_op,
        kernels_before_window=health.kernels_before_window,
        bad_durations=health.bad_durations,
        notes=tuple(health.notes),
    )


_LEG_ORDER = tuple(Leg)


def leg_rows(rows: Iterable[GemmRow]) -> tuple[LegRow, ...]:
    """Cross GEMM time and launches by leg and precision, in the order of the legs."""
    time_ns: dict[Leg, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    kernels: dict[Leg, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        time_ns[row.leg][row.precision.value] += row.time_ns
        kernels[row.leg][row.precision.value] += row.calls
    return tuple(
        LegRow(
            leg=leg,
            time_us={name: micros(ns) for name, ns in sorted(time_ns[leg].items())},
            kernels=dict(sorted(kernels[leg].items())),
        )
        for leg in _LEG_ORDER
        if leg in time_ns
    )


def recipe_seen(rows: Iterable[GemmRow]) -> RecipeSeen:
    """Sum FP8 GEMM time by scaling, and say per leg whether fast accumulation was on."""
    time_ns: dict[str, int] = defaultdict(int)
    fast: dict[str, bool] = {}
    for row in rows:
        if row.scaling is None:
            continue
        time_ns[row.scaling.value] += row.time_ns
        accumulates_fast = row.kind.classification.fast_accum
        if accumulates_fast is not None:
            fast[row.leg.value] = fast.get(row.leg.value, True) and accumulates_fast
    return RecipeSeen(
        time_us={name: micros(ns) for name, ns in sorted(time_ns.items())}, fast_accumulation=fast
    )


def kernel_rows(survey: Survey, gpu: str | None) -> tuple[KernelRow, ...]:
    """List the kinds of kernel, the longest total time first; steps are added up."""
    merged: dict[tuple[object, ...], list[GemmRow]] = defaultdict(list)
    for row in (*survey.gemms, *survey.optimizer):
        merged[row.kind, row.leg, row.shape].append(row)
    rows = [_gemm_row(same, gpu) for same in merged.values()]
    rows += [_other_row(total) for total in survey.others]
    return tuple(sorted(rows, key=lambda row: (-row.time_us, row.name)))


def _gemm_row(same: Sequence[GemmRow], gpu: str | None) -> KernelRow:
    first = same[0]
    found, op = first.kind.classification, first.kind.op
    time_ns, count = sum(row.time_ns for row in same), sum(row.calls for row in same)
    flops = None if first.flops is None else sum(row.flops or 0 for row in same)
    tflops = round(flops / time_ns / 1000, 1) if flops and time_ns else None
    peak = peak_tflops(peak_of(gpu), found.precision)
    return KernelRow(
        name=first.kind.name,
        role=found.role,
        precision=found.precision,
        library=found.library,
        op=op.name if op else None,
        leg=first.leg,
        dims=op.dims[:4] if op else None,
        shape=None if first.shape is None else tuple(first.shape),
        kernels=count,
        time_us=micros(time_ns),
        tflops=tflops,
        percent_of_peak=round(100 * tflops / peak, 1) if tflops and peak else None,
        decided_by=found.source,
        reason=found.reason,
    )


def _other_row(total: KindTotal) -> KernelRow:
    found, op = total.kind.classification, total.kind.op
    return KernelRow(
        name=total.kind.name,
        role=found.role,
        precision=found.precision,
        library=found.library,
        op=op.name if op else None,
        leg=None,
        dims=None,
        shape=None,
        kernels=total.calls,
        time_us=micros(total.time_ns),
        tflops=None,
        percent_of_peak=None,
        decided_by=found.source,
        reason=found.reason,
    )


def communication_report(rank: RankEvidence) -> CommunicationReport | None:
    """Lay out the collectives of a rank, the longest first; None where there are none."""
    if not rank.collectives:
        return None
    merged: dict[tuple[str, str, int], list[CollectiveTotal]] = defaultdict(list)
    for total in rank.collectives:
        merged[total.name, total.dtype, total.group_size].append(total)
    rows = [_collective_row(same) for same in merged.values()]
    gathers = weight_gathers(rank.collectives)
    return CommunicationReport(
        time_us=micros(rank.timeline.communication),
        exposed_us=micros(rank.timeline.exposed),
        collectives=tuple(sorted(rows, key=lambda row: -row.time_us)),
        weight_gather=WeightGather(
            fp8=gathers.in_fp8,
            eight_bit_bytes=gathers.eight_bit,
            wider_bytes=gathers.wider,
            bytes_per_parameter=rounded(gathers.bytes_per_parameter),
        )
        if gathers.any
        else None,
    )


def _collective_row(same: list[CollectiveTotal]) -> CollectiveRow:
    first = same[0]
    sized = first.dtype in ELEMENT_BYTES
    return CollectiveRow(
        name=first.name,
        dtype=first.dtype or None,
        group_size=first.group_size or None,
        calls=sum(total.calls for total in same),
        bytes_in=sum(t.bytes_of(t.in_elements) for t in same) if sized else None,
        bytes_out=sum(t.bytes_of(t.out_elements) for t in same) if sized else None,
        time_us=micros(sum(total.time_ns for total in same)),
    )


def tax_report(found: Payoff | None) -> TaxReport | None:
    """Lay out what FP8 costs; None where it costs nothing."""
    if found is None or not found.tax.rows:
        return None
    tax, saved = found.tax, found.saved
    return TaxReport(
        time_us=micros(tax.time_ns),
        unfused_us=micros(tax.unfused_ns),
        share_of_gpu_time=round(tax.time_ns / found.busy, 6),
        saved_at_most_us=micros(saved),
        share_of_saving=rounded(tax.time_ns / saved) if saved else None,
        rows=tuple(
            TaxEntry(
                purpose=row.purpose,
                op=row.op,
                leg=row.leg,
                fused=row.fused,
                kernels=row.calls,
                time_us=micros(row.time_ns),
            )
            for row in tax.rows
        ),
    )


def payoff_report(found: Payoff | None) -> PayoffReport | None:
    """Lay out what FP8 can gain; None where no GEMM ran."""
    if found is None:
        return None
    return PayoffReport(
        gpu_busy_us=micros(found.busy),
        idle_share=round(found.idle, 6),
        fp8_gemm_share=round(found.fp8 / found.busy, 6),
        sixteen_bit_gemm_share=round(found.sixteen_bit / found.busy, 6),
        bandwidth_bound_share=round(found.bandwidth_bound, 6),
        small_gemm_share=rounded(found.small),
        ceiling=rounded(found.ceiling),
        speedup_estimate=rounded(found.kernels),
        step_us=None if found.step is None else micros(found.step),
        gpu_busy_in_step_us=None if found.busy_in_step is None else micros(found.busy_in_step),
        waits=found.waits,
        step_speedup_estimate=rounded(found.of_step),
    )


def layers_report(facts: RankFacts) -> LayersReport | None:
    """Lay out the layers of a rank; None where neither shapes nor a census tell of any."""
    rank, found = facts.rank, facts.layers
    if not (found.classes or found.apart or found.experts):
        return None
    return LayersReport(
        rows=tuple(_layer_row(found, layer, len(rank.steps)) for layer in found.classes),
        not_joined=tuple(patterns(module.fqn for module in found.apart)),
        experts=tuple(patterns(module.fqn for module in found.experts)),
        note=_note(rank, found),
    )


def named_layers_report(facts: RankFacts) -> NamedLayersReport | None:
    """Lay out what each layer ran; None where the run was not to name layers."""
    rank, named = facts.rank, facts.rank.named
    if named is None:
        return None
    modules = {module.fqn: module for module in rank.modules}
    casts = named.casts if rank.ran_low or facts.made_fp8_tensors else {}
    measured = rank.numerics.record.measured if rank.numerics is not None else None
    if measured is not None and measured.step == named.step:
        casts = {}  # `run --numerics` cast in that step too
    return NamedLayersReport(
        source=named.source,
        step=named.step,
        rows=tuple(
            _named_row(layer, gemms, modules.get(layer), casts.get(layer))
            for layer, gemms in named.by_layer().items()
        ),
        gemms=sum(gemms.calls for gemms in named.gemms) + named.unjoined,
        unjoined=named.unjoined,
        note=named.note,
    )


def _named_row(
    layer: str, gemms: Sequence[LayerGemms], module: ModuleRecord | None, casts: int | None
) -> NamedLayerRow:
    legs = [leg for leg in Leg if any(found.leg is leg for found in gemms)]
    return NamedLayerRow(
        layer=layer,
        n=module.out_features if module else None,
        k=module.in_features if module else None,
        state=module.state if module else None,
        legs=tuple(
            NamedLeg(
                leg=leg,
                kernels={g.precision.value: g.calls for g in gemms if g.leg is leg},
                time_us={g.precision.value: micros(g.time_ns) for g in gemms if g.leg is leg},
            )
            for leg in legs
        ),
        casts_us=None if casts is None else micros(casts),
    )


def _layer_row(found: Layers, layer: LayerClass, steps: int) -> LayerRow:
    expected = {leg.value: layer.expected(leg) for leg in LEGS}
    return LayerRow(
        n=layer.size.n,
        k=layer.size.k,
        modules=len(layer.modules),
        converted=len(layer.converted),
        names=tuple(patterns(module.fqn for module in layer.modules)),
        passes=layer.passes,
        passes_per_step=layer.passes / steps if layer.passes and steps else None,
        observed={leg.value: count for leg, count in layer.observed.items()},
        in_fp8={leg.value: count for leg, count in layer.in_fp8.items()},
        expected={leg: count for leg, count in expected.items() if count is not None},
        share_of_flops=rounded(found.share([layer])),
    )


def _note(rank: RankEvidence, found: Layers) -> str | None:
    if rank.meta is None:
        return "no census: layers are known by the sizes of their GEMMs alone"
    if not found.classes:
        return "no GEMM has the size of a layer (shapes not recorded, or layers that are split)"
    if found.apart:
        return f"{len(found.apart)} modules have no GEMM of their size"
    return None

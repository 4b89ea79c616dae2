"""Lay out the diagnosis of one rank: communication, tax, payoff and layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fp8verify.analysis.assembly.units import micros, rounded
from fp8verify.analysis.communication import ELEMENT_BYTES, CollectiveTotal, weight_gathers
from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.layers_by_name import LayerGemms
from fp8verify.analysis.layers_by_size import LayerClass, Layers
from fp8verify.analysis.payoff import Payoff
from fp8verify.analysis.rank import RankEvidence
from fp8verify.capture.schema import ModuleRecord
from fp8verify.layer_names import patterns
from fp8verify.report.model import LEGS, Leg
from fp8verify.report.model.diagnosis import (
    CollectiveRow,
    CommunicationReport,
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
        share_of_gpu_time=rounded(tax.time_ns / found.busy),
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
        idle_share=rounded(found.idle),
        fp8_gemm_share=rounded(found.fp8 / found.busy),
        sixteen_bit_gemm_share=rounded(found.sixteen_bit / found.busy),
        bandwidth_bound_share=rounded(found.bandwidth_bound),
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

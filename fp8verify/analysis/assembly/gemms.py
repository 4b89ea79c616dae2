"""Lay out the GEMMs: totals, legs, the recipe seen, and the kernels by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fp8verify.analysis.assembly.units import micros
from fp8verify.analysis.gemms import GemmRow, KindTotal, Survey
from fp8verify.analysis.peaks import peak_of, peak_tflops
from fp8verify.analysis.totals import GemmTotals
from fp8verify.report.model import (
    GemmSummary,
    KernelRow,
    Leg,
    LegRow,
    Precision,
    RecipeSeen,
)

_LEG_ORDER = tuple(Leg)


def gemm_summary(totals: GemmTotals) -> GemmSummary:
    """Lay out GEMM time, launches and FLOPs by precision class, all classes in their order."""
    return GemmSummary(
        time_us={p.value: micros(totals.time_ns[p]) for p in Precision},
        kernels={p.value: totals.kernels[p] for p in Precision},
        flops={p.value: float(totals.flops[p]) for p in Precision} if totals.covered_ns else None,
        fp8_share_of_time=totals.fp8_share_of_time,
        low_precision_share_of_time=totals.low_precision_share_of_time,
        fp8_share_of_flops=totals.fp8_share_of_flops,
        unknown_share_of_time=totals.unknown_share_of_time,
        flops_coverage=totals.flops_coverage,
    )


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

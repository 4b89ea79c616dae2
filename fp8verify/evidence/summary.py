"""Sums over a rank's kernels: GEMM totals, legs, the recipe seen, GPU time by role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fp8verify.evidence.flops import gemm_shape
from fp8verify.evidence.gemms import GemmRow, KindTotal, Survey
from fp8verify.evidence.peaks import peak_of, peak_tflops
from fp8verify.model import (
    GemmSummary,
    KernelRow,
    Leg,
    LegRow,
    Precision,
    RecipeSeen,
    Role,
    Shape,
)

# FLOP shares are quoted only where shapes cover this much of GEMM time.
_FULL_COVERAGE = 0.999
_LEG_ORDER = tuple(Leg)

GPU_TIME_KEYS: dict[Role, str] = {
    Role.GEMM: "gemm",
    Role.GROUPED_GEMM: "gemm",
    Role.ATTENTION: "attention",
    Role.CONV: "conv",
    Role.CAST_QUANTIZE: "quantize",
    Role.AMAX_REDUCE: "quantize",
    Role.TRANSPOSE: "transpose",
    Role.COMMUNICATION: "communication",
    Role.MEMORY: "memory",
    Role.ELEMENTWISE: "elementwise",
    Role.REDUCTION: "reduction",
    Role.OTHER: "other",
}


def micros(time_ns: int) -> float:
    """Nanoseconds to the report's µs, which keep three decimals."""
    return round(time_ns / 1000, 3)


def gemm_summary(rows: Iterable[GemmRow]) -> GemmSummary:
    """Sum GEMM time, launches and FLOPs by precision class."""
    time_ns: dict[Precision, int] = dict.fromkeys(Precision, 0)
    kernels: dict[Precision, int] = dict.fromkeys(Precision, 0)
    flops: dict[Precision, int] = dict.fromkeys(Precision, 0)
    covered_ns = 0
    for row in rows:
        time_ns[row.precision] += row.time_ns
        kernels[row.precision] += row.calls
        if row.flops is not None:
            flops[row.precision] += row.flops
            covered_ns += row.time_ns
    return _totals(time_ns, kernels, flops, covered_ns)


def merge_summaries(parts: Sequence[GemmSummary]) -> GemmSummary:
    """Add up the GEMM totals of several ranks."""
    time_ns = {p: sum(round(part.time_us[p.value] * 1000) for part in parts) for p in Precision}
    kernels = {p: sum(part.kernels[p.value] for part in parts) for p in Precision}
    flops = {
        p: sum(int(part.flops[p.value]) for part in parts if part.flops is not None)
        for p in Precision
    }
    covered = sum(part.flops_coverage * sum(part.time_us.values()) * 1000 for part in parts)
    return _totals(time_ns, kernels, flops, round(covered))


def _totals(
    time_ns: dict[Precision, int],
    kernels: dict[Precision, int],
    flops: dict[Precision, int],
    covered_ns: int,
) -> GemmSummary:
    total_ns = sum(time_ns.values())
    coverage = covered_ns / total_ns if total_ns else 0.0
    flops_share = _fp8_share(flops) if coverage >= _FULL_COVERAGE else None
    return GemmSummary(
        time_us={p.value: micros(time_ns[p]) for p in Precision},
        kernels={p.value: kernels[p] for p in Precision},
        flops={p.value: float(flops[p]) for p in Precision} if covered_ns else None,
        fp8_share_of_time=_fp8_share(time_ns),
        fp8_share_of_flops=flops_share,
        unknown_share_of_time=round(time_ns[Precision.UNKNOWN] / total_ns, 6) if total_ns else 0.0,
        flops_coverage=round(coverage, 6),
    )


def _fp8_share(amounts: dict[Precision, int]) -> float | None:
    total = sum(amounts.values())
    if not total:
        return None
    return round(sum(amount for p, amount in amounts.items() if p.is_fp8) / total, 6)


def gpu_time(survey: Survey) -> dict[str, int]:
    """Return kernel time in ns by what it was for; the values add up to all kernel time."""
    time_ns = dict.fromkeys(GPU_TIME_KEYS.values(), 0)
    for row in survey.gemms:
        time_ns["gemm"] += row.time_ns
    for total in survey.others:
        time_ns[GPU_TIME_KEYS[total.kind.classification.role]] += total.time_ns
    return time_ns


def leg_rows(rows: Iterable[GemmRow]) -> tuple[LegRow, ...]:
    """Cross GEMM time and launches by leg and precision, in the order of the legs."""
    time_ns: dict[Leg, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    kernels: dict[Leg, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        time_ns[row.leg][row.precision.value] += row.time_ns
        kernels[row.leg][row.precision.value] += row.calls
    return tuple(
        LegRow(
            leg=leg.value,
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
    merged: dict[tuple[object, Leg], list[GemmRow]] = defaultdict(list)
    for row in survey.gemms:
        merged[row.kind, row.leg].append(row)
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
        role=found.role.value,
        precision=found.precision.value,
        library=found.library,
        op=op.name if op else None,
        leg=first.leg.value,
        dims=op.dims[:4] if op else None,
        shape=_shape(first),
        kernels=count,
        time_us=micros(time_ns),
        tflops=tflops,
        percent_of_peak=round(100 * tflops / peak, 1) if tflops and peak else None,
        decided_by=found.source,
        reason=found.reason,
    )


def _shape(row: GemmRow) -> Shape | None:
    shape = gemm_shape(row.kind.op)
    return None if shape is None else tuple(shape)


def _other_row(total: KindTotal) -> KernelRow:
    found, op = total.kind.classification, total.kind.op
    return KernelRow(
        name=total.kind.name,
        role=found.role.value,
        precision=found.precision.value,
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

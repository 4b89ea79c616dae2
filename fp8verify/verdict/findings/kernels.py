"""Findings on kernels: unknown and disputed ones, and those that contradict what was promised."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from fp8verify.analysis.gemms import name_conflicts
from fp8verify.analysis.gpus import compiled_before, peak_of, runs_elsewhere
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import memory_report
from fp8verify.capture.schema import ModuleRecord
from fp8verify.frameworks.known import frameworks
from fp8verify.model.verdict import Finding
from fp8verify.terms import Precision, Role
from fp8verify.text import counted, listed, patterns
from fp8verify.thresholds import MANY_MISNAMED, MANY_OPAQUE, NEGLIGIBLE, PROOF_MARGIN
from fp8verify.verdict.expected import CONVERTED, Promises
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.reasons import (
    cause_without_fp8,
    opaque_share,
    ran_high,
    stored_weights,
)

# Classes that no GPU multiplies faster than BF16.
_SLOW = {Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32, Precision.FP64}
_NAMED = 3
_NAMED_EXPERTS = 2
# The architecture that kernels with FP8 or FP4 instructions are compiled for, in their names.
_ARCHITECTURE = re.compile(r"sm_?(?:89|9\d|1[0-2]\d)(?!\d)", re.IGNORECASE)
_NEEDS_FP8 = (
    "FP8 needs compute capability 8.9 (Ada, Hopper, Blackwell) or an MI300, which multiplies only "
    "float8_e4m3fnuz and float8_e5m2fnuz."
)
_NEEDS_BLOCKS = (
    "MXFP8, NVFP4 and MXFP4 need compute capability 10.0 (Blackwell) or an MI350."
)
_BLOCK_FORMATS = frozenset({"mxfp8", "nvfp4", "mxfp4"})


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:57] + "…"


# ---- FP8 that was promised, or made, and did not multiply


def emulated_or_contradicted(
    rank: RankEvidence, promises: Promises
) -> Iterator[Finding]:
    """No FP8 GEMM although FP8 was promised, or although tensors were cast to it."""
    if rank.ran_low or not rank.trace.trained:
        return
    # Names of compiled casts do not say whether they widen or round.
    rounds = promises.any and stored_weights(rank) is None and rank.quantizes()
    casts = rank.made_fp8_tensors or rounds
    is_promised = promises.is_due(rank) and not rank.trace.health.skipped_events
    ran = ran_high(rank)
    if promises.emulated or casts:
        what = "tensors were only rounded to FP8:"
        if promises.emulated:
            emulated = promises.emulated
            verb = "emulates" if len(emulated) == 1 else "emulate"
            what = f"the model's {_modules(emulated)} {verb} FP8:"
        claims = f"{_promise(promises)}, but " if promises.claim and is_promised else ""
        case = "" if rank.has_fp8_units else "no-units"
        yield finding("emulated", case, promise=claims, what=what, ran=ran)
    elif is_promised:
        case, cause = cause_without_fp8(rank, promises)
        if not rank.has_fp8_units:
            case = "no-units"
            cause = ""
        name = promises.name
        said = _promise(promises)
        why = f": {cause}" if cause else ""
        yield finding(
            "claimed-not-active",
            case,
            format=name,
            promise=said,
            ran=ran,
            cause=why,
        )


def stored_only(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Weights that are kept in FP8 and widened before each product."""
    stored = stored_weights(rank)
    if stored is None or rank.ran_low or not rank.trace.trained:
        return
    saved = stored.elements
    memory = memory_report(rank.recorded.meta)
    peak = memory.allocated_peak if memory else 0
    saves = f" ({saved / 1e9:.2g} GB, {saved / (saved + peak):.0%})" if peak else ""
    holders = counted(stored.count, "linear layer")
    ran = ran_high(rank)
    yield finding(
        "fp8-storage-only",
        holders=holders,
        dtype=stored.dtype,
        ran=ran,
        saves=saves,
    )


def _promise(promises: Promises) -> str:
    claim = promises.claim
    if claim is None:
        modules = promises.converted or promises.emulated
        return f"the model has {_modules(modules)} set for {promises.name}"
    if not claim.line:
        return f"the script asks {claim.framework} for {promises.name} ({claim.text})"
    return f"the log claims {promises.name} ({claim.place})"


def _modules(modules: Sequence[ModuleRecord]) -> str:
    return counted(modules, f"{modules[0].class_name} module")


def no_fp8_units(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """GEMMs, or a promise, in a format that the GPU cannot multiply."""
    rows = rank.upcast
    formats = {row.kind.classification.upcast_from for row in rows}
    names = sorted(found.value for found in formats if found is not None)
    elsewhere = _of_other_hardware(rank)
    gpu = rank.trace.gpu
    if elsewhere:
        yield finding("no-fp8-units", "other-gpu", gpu=gpu, kernel=_short(elsewhere[0]))
    elif rows:
        case = "" if rank.ran_low else "alone"
        count = sum(row.calls for row in rows)
        shown = " and ".join(names).upper()
        needs = _needs(names)
        yield finding(
            "no-fp8-units",
            case,
            count=count,
            formats=shown,
            gpu=gpu,
            needs=needs,
        )
    elif promises.any and not rank.has_fp8_units and rank.trace.trained:
        needs = _needs([name for names in promises.formats.values() for name in names])
        yield finding(
            "no-fp8-units",
            "promised",
            format=promises.name,
            gpu=gpu,
            needs=needs,
        )


def _needs(formats: Collection[str]) -> str:
    return _NEEDS_BLOCKS if _BLOCK_FORMATS.intersection(formats) else _NEEDS_FP8


def _of_other_hardware(rank: RankEvidence) -> list[str]:
    """Return the names of kernels that libraries compile for other GPUs, and convert nothing."""
    gpu = rank.trace.gpu, rank.trace.compute_capability
    names = (row.kind.name for row in rank.upcast)
    return [
        name
        for name in names
        if _ARCHITECTURE.search(name) or runs_elsewhere(name, *gpu)
    ]


def grouped_high_precision(rank: RankEvidence, promises: Promises) -> Iterator[Finding]:
    """Grouped GEMMs, as of MoE experts, outside FP8 in a run that promised or ran FP8."""
    high = (row for row in rank.trace.gemms if not row.precision.is_low)
    known = (row for row in high if row.precision is not Precision.UNKNOWN)
    rows = [row for row in known if row.kind.classification.role is Role.GROUPED_GEMM]
    if not rows or not (rank.ran_low or promises.any):
        return
    op = rows[0].kind.op.name
    experts = [
        m.fqn for m in rank.modules if m.kind == "experts" and m.state not in CONVERTED
    ]
    names = patterns(experts)[:_NAMED_EXPERTS]
    by_recipe = all(promises.leaves_high(row.leg) for row in rows)
    claiming = {claim.framework for claim in promises.claims}
    leaving = (
        one.name for one in frameworks() if one.leaves_experts and one.name in claiming
    )
    framework = next(leaving, "")
    yield finding(
        "grouped-gemm-high-precision",
        "by-design" if framework else "by-recipe" if by_recipe else "",
        count=sum(row.calls for row in rows),
        experts=f"MoE experts {', '.join(names)}" if names else "MoE experts",
        op=f", {op}" if op else "",
        precision=rows[0].precision.value.upper(),
        work=rank.measure.amount(sum(row.time_ns for row in rows)),
        framework=framework,
        layers=experts,
    )


# ---- kernels that are not known


def unknown_gemms(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """GEMM kernels whose precision neither their name nor their operator shows."""
    unknown = (row for row in rank.trace.gemms if row.precision is Precision.UNKNOWN)
    rows = [row for row in unknown if not row.kind.classification.upcast_from]
    if rows:
        share = sum(row.time_ns for row in rows) / (rank.gemm.total_ns or 1)
        worst = max(rows, key=lambda row: row.time_ns)
        case = "cut" if worst.kind.name.endswith(("...", "…")) else ""
        kernel = _short(worst.kind.name)
        measure = rank.measure.name
        yield finding("unknown-gemm", case, share=share, measure=measure, kernel=kernel)


def opaque_kernels(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """Kernels that neither a name nor an operator explains, which may be GEMMs of any precision."""
    share = opaque_share(rank)
    found = rank.unrecognized
    if share >= NEGLIGIBLE:
        time_ns = rank.opaque_ns
        gemm_ns = rank.linear.total_ns
        kinds = (one.kind for one in found)
        names = [
            _short(x.name) + (f" ({_short(x.op.name)})" if x.op.name else "")
            for x in kinds
        ]
        case = "many" if share >= MANY_OPAQUE else ""
        count = sum(total.calls for total in found)
        of = f", {time_ns / gemm_ns:.1%} of GEMM time" if gemm_ns else ""
        shown = listed(names, _NAMED)
        yield finding(
            "opaque-kernels",
            case,
            count=count,
            ms=time_ns / 1e6,
            share=of,
            kernels=shown,
        )


def conflicts(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """The first kernel whose name and operator disagree; of many such, that they prove nothing."""
    trace = rank.trace
    disputed, compared = name_conflicts([*trace.gemms, *trace.optimizer], trace.others)
    if disputed > MANY_MISNAMED * compared:
        yield finding("name-op-conflict", "many", disputed=disputed, compared=compared)
        return
    kinds = [
        row.kind
        for row in rank.trace.gemms
        if row.kind.classification.conflict is not None
    ]
    for kind in kinds[:1]:
        conflict = kind.classification.conflict
        case = "code" if kind.classification.source == "code" else ""
        name = _short(kind.name)
        yield finding("name-op-conflict", case, conflict=conflict, kernel=name)


def beyond_bf16_peak(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """GEMMs faster than BF16 can be on this GPU, which no name has to be believed for.

    Not grouped ones: what is known of their FLOPs is an upper bound (rows of padding, experts
    without tokens). Where any rate is beyond all formats of the GPU, or that of a GEMM in high
    precision beyond theirs, shapes, times or GPU are not what ran, and no rate proves anything.
    """
    peak = peak_of(rank.trace.gpu)
    if peak is None or not peak.proves:
        return
    gemms = rank.trace.gemms
    rates = [(x, x.flops / x.time_ns / 1e3) for x in gemms if x.flops and x.time_ns]
    fast = ((row, rate) for row, rate in rates if rate > peak.bf16 * PROOF_MARGIN)
    proven = [
        (row, rate) for row, rate in fast if row.kind.classification.role is Role.GEMM
    ]
    highest = max(peak.fp8, peak.bf16, peak.fp4) * PROOF_MARGIN
    impossible = any(rate > highest for _, rate in rates)
    disproved = impossible or any(row.precision in _SLOW for row, _ in proven)
    if proven and not disproved and not _of_other_hardware(rank):
        count = sum(row.calls for row, _ in proven)
        rate = max(rate for _, rate in proven)
        yield finding("faster-than-bf16", count=count, peak=peak.bf16, rate=rate)


def of_older_gpus(rank: RankEvidence, _: Promises) -> Iterator[Finding]:
    """FP8 GEMMs in kernels of an older generation, as cuBLAS 12 runs Ada's on newer GPUs."""
    gpu = rank.trace.gpu
    found = []
    for row in rank.trace.gemms:
        if not row.precision.is_fp8:
            continue
        arch = compiled_before(row.kind.name, gpu, rank.trace.compute_capability)
        if arch is not None:
            found.append((arch, row))
    if found:
        arch, first = found[0]
        count = sum(row.calls for _, row in found)
        kernel = _short(first.kind.name)
        yield finding("older-kernels", count=count, arch=arch, gpu=gpu, kernel=kernel)

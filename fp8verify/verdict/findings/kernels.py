"""Findings on kernels: unknown and disputed ones, and those that contradict what was requested."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from fp8verify.analysis.gemms import GemmRow, name_conflicts
from fp8verify.analysis.gpus import compiled_before, peak_of, runs_elsewhere
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.recorded import memory_report
from fp8verify.capture.schema import ModuleRecord
from fp8verify.frameworks.known import frameworks
from fp8verify.model.verdict import Finding
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import Precision, Role
from fp8verify.text import counted, listed, patterns
from fp8verify.thresholds import MANY_MISNAMED, MANY_OPAQUE, NEGLIGIBLE, PROOF_MARGIN
from fp8verify.verdict.advice import Fact, facts_of, those_that_hold
from fp8verify.verdict.clauses import by_number, first_said, optional
from fp8verify.verdict.expected import CONVERTED, Requested
from fp8verify.verdict.findings_table import finding, told
from fp8verify.verdict.reasons import (
    cause_without_fp8,
    longest,
    longest_name,
    opaque_share,
    ran_high,
    short_name,
    stored_weights,
    unknown_rows,
    unknown_work,
)
from fp8verify.verdict.selection import (
    amount_of,
    calls_of,
    high_of,
    low_of,
    names_of,
)

# Classes that no GPU multiplies faster than BF16.
_SLOW = {Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32, Precision.FP64}
_NAMED = 3
_NAMED_EXPERTS = 2
# The architecture that kernels with FP8 or FP4 instructions are compiled for, in their names.
_ARCHITECTURE = lazy_pattern(r"sm_?(?:89|9\d|1[0-2]\d)(?!\d)", re.IGNORECASE)
_NEEDS_FP8 = (
    "FP8 needs compute capability 8.9 (Ada, Hopper, Blackwell) or an MI300, which multiplies only "
    "float8_e4m3fnuz and float8_e5m2fnuz."
)
_NEEDS_BLOCKS = (
    "MXFP8, NVFP4 and MXFP4 need compute capability 10.0 (Blackwell) or an MI350."
)
_BLOCK_FORMATS = frozenset({"mxfp8", "nvfp4", "mxfp4"})


# ---- FP8 that was requested, or made, and did not multiply


def without_fp8(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """No FP8 GEMM, though FP8 was requested, tensors were cast to it, or weights are kept in it."""
    if rank.ran_low or not rank.trace.trained:
        return
    ran = ran_high(rank)
    # Names of compiled casts do not say whether they widen or round.
    rounds = requested.any and stored_weights(rank) is None and rank.quantizes()
    is_emulated = requested.emulated or rank.made_fp8_tensors or rounds
    is_whole = not rank.trace.health.skipped_events
    is_met = _was_met_forward(rank, requested)
    is_requested = requested.is_due(rank) and is_whole and not is_met
    request = _request(requested)
    claims = requested.claim is not None and is_requested
    yield from told(
        "emulated",
        _how_emulated(rank, requested),
        when=is_emulated,
        request=optional(f"{request}, but ", when=claims),
        what=_rounded(requested.emulated),
        ran=ran,
    )
    case, cause = cause_without_fp8(rank, requested)
    named = next((module.fqn for module in rank.linears), "")
    yield from told(
        "claimed-not-active",
        case,
        when=is_requested and not is_emulated,
        format=requested.name,
        request=request,
        ran=ran,
        cause=optional(f": {cause}", when=cause),
        layer=named or "its first nn.Linear",
    )
    yield from _stored_only(rank, ran)


def _was_met_forward(rank: RankEvidence, requested: Requested) -> bool:
    """Whether only the script asks for low precision, and layers that only run forward ran it.

    A conversion that was given a teacher, or the copy that generates, did what it was called for.
    """
    claim = requested.claim
    is_of_script = claim is not None and not claim.line
    has_modules = bool(requested.converted or requested.emulated)
    ran_forward = calls_of(low_of(rank.trace.untrained)) > 0
    return is_of_script and not has_modules and ran_forward


def _how_emulated(rank: RankEvidence, requested: Requested) -> str:
    """Return the case of the emulation: the GPU needs it, or torchao's layers ask for it."""
    classes = {module.class_name for module in requested.emulated}
    rows = (
        (not rank.has_fp8_units, "no-units"),
        (classes == {"Float8Linear"}, "torchao"),
    )
    return first_said(rows)


def _rounded(emulated: Sequence[ModuleRecord]) -> str:
    """Say what only rounded tensors to FP8: modules, or else what nobody knows."""
    verb = by_number(emulated, "emulates", "emulate")
    by_modules = f"the model's {_modules(emulated)} {verb} FP8:"
    unknown = "tensors were only rounded to FP8:"
    return optional(by_modules, when=emulated) or unknown


def _stored_only(rank: RankEvidence, ran: str) -> Iterator[Finding]:
    """Yield that weights are kept in FP8 and widened before each product."""
    stored = stored_weights(rank)
    if stored is None:
        return
    saved = stored.elements
    memory = memory_report(rank.recorded.meta)
    peak = memory.allocated_peak if memory else 0
    part = saved / (saved + peak or 1)
    yield finding(
        "fp8-storage-only",
        holders=counted(stored.count, "linear layer"),
        dtype=stored.dtype,
        ran=ran,
        saves=optional(
            f" ({saved / 1e9:.2g} GB, {part:.0%} of the peak without it)",
            when=peak,
        ),
    )


def _request(requested: Requested) -> str:
    """Say who requested low precision: the log, the script or, if neither did, the model."""
    name = requested.name
    claim = requested.claim
    if claim is None:
        modules = requested.converted or requested.emulated
        return f"the model has {_modules(modules)} set for {name}"
    by_log = f"the log claims {name} ({claim.place})"
    by_script = f"the script asks {claim.framework} for {name} ({claim.text})"
    return optional(by_log, when=claim.line) or by_script


def _modules(modules: Sequence[ModuleRecord]) -> str:
    classes = (module.class_name for module in modules)
    return counted(modules, f"{next(classes, '')} module")


def no_fp8_units(rank: RankEvidence, requested: Requested) -> Iterator[Finding]:
    """GEMMs, or a request, in a format that the GPU cannot multiply."""
    gpu = rank.trace.gpu
    elsewhere = _of_other_hardware(rank)
    formats = _converted_formats(rank)
    yield from told(
        "no-fp8-units",
        "other-gpu",
        when=elsewhere,
        gpu=gpu,
        kernel=short_name(next(iter(elsewhere), "")),
    )
    yield from told(
        "no-fp8-units",
        optional("alone", when=not rank.ran_low),
        when=rank.upcast and not elsewhere,
        count=calls_of(rank.upcast),
        formats=" and ".join(formats).upper(),
        gpu=gpu,
        needs=_needs(formats),
    )
    lacks_units = rank.trace.trained and not rank.has_fp8_units
    yield from told(
        "no-fp8-units",
        "requested",
        when=requested.any and lacks_units and not rank.upcast,
        format=requested.name,
        gpu=gpu,
        needs=_needs(chain.from_iterable(requested.formats.values())),
    )


def _converted_formats(rank: RankEvidence) -> list[str]:
    """Return the formats of operands that were converted before the GPU multiplied them."""
    formats = {row.kind.classification.upcast_from for row in rank.upcast}
    return sorted(precision.value for precision in formats if precision is not None)


def _needs(formats: Iterable[str]) -> str:
    if _BLOCK_FORMATS.isdisjoint(formats):
        return _NEEDS_FP8
    return _NEEDS_BLOCKS


def _of_other_hardware(rank: RankEvidence) -> list[str]:
    """Return the names of kernels that libraries compile for other GPUs, and convert nothing."""
    names = []
    for row in rank.upcast:
        name = row.kind.name
        is_elsewhere = runs_elsewhere(
            name, rank.trace.gpu, rank.trace.compute_capability
        )
        if is_elsewhere or _ARCHITECTURE.search(name):
            names.append(name)
    return names


def grouped_high_precision(
    rank: RankEvidence, requested: Requested
) -> Iterator[Finding]:
    """Grouped GEMMs, as of MoE experts, outside FP8 in a run that requested or ran FP8."""
    grouped = list(filter(_is_grouped, rank.trace.gemms))
    rows = list(filter(_has_known_precision, high_of(grouped)))
    if not rows or not (rank.ran_low or requested.any):
        return
    op = rows[0].kind.op.name
    left = names_of(filter(_is_unconverted_expert, rank.modules))
    names = patterns(left)[:_NAMED_EXPERTS]
    framework = _framework_without_experts(requested)
    cases = (
        (framework, "by-design"),
        (all(requested.leaves_high(row.leg) for row in rows), "by-recipe"),
        (low_of(grouped), "partly"),
    )
    yield finding(
        "grouped-gemm-high-precision",
        first_said(cases),
        count=calls_of(rows),
        experts=f"MoE experts {', '.join(names)}".rstrip(),
        op=optional(f", {op}", when=op),
        precision=rows[0].precision.value.upper(),
        work=rank.measure.amount(amount_of(rows)),
        framework=framework,
        layers=left,
    )


def _is_grouped(row: GemmRow) -> bool:
    return row.kind.classification.role is Role.GROUPED_GEMM


def _has_known_precision(row: GemmRow) -> bool:
    return row.precision is not Precision.UNKNOWN


def _is_unconverted_expert(module: ModuleRecord) -> bool:
    return module.kind == "experts" and module.state not in CONVERTED


def _framework_without_experts(requested: Requested) -> str:
    """Return the first framework in the claims that leaves experts in high precision."""
    leaving = {framework.name for framework in frameworks() if framework.leaves_experts}
    claiming = [claim.framework for claim in requested.claims]
    return next(filter(leaving.__contains__, claiming), "")


# ---- kernels that are not known


def unknown_gemms(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """GEMM kernels whose precision neither their name nor their operator shows."""
    rows = unknown_rows(rank)
    if not rows:
        return
    is_cut = longest_name(rows).endswith(("...", "…"))
    is_of_triton = longest(rows).kind.classification.library == "Triton"
    yield finding(
        "unknown-gemm",
        optional("cut", when=is_cut),
        what=unknown_work(rank),
        holds=facts_of(rank) | those_that_hold({Fact.TRITON: is_of_triton}),
    )


def opaque_kernels(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """Kernels that neither a name nor an operator explains, which may be GEMMs of any precision."""
    share = opaque_share(rank)
    of_possible = f", {share:.1%} of the time of possible GEMMs"
    count = sum(total.kernels for total in rank.unrecognized)
    names = [_with_operator(total.kind) for total in rank.unrecognized]
    yield from told(
        "opaque-kernels",
        optional("many", when=share >= MANY_OPAQUE),
        when=share >= NEGLIGIBLE,
        count=counted(count, "unrecognized kernel"),
        took=rank.measure.amount(rank.opaque_ns),
        share=optional(of_possible, when=rank.linear.total_ns),
        kernels=listed(names, _NAMED),
    )


def _with_operator(kind: Kind) -> str:
    operator = optional(f" ({short_name(kind.op.name)})", when=kind.op.name)
    return f"{short_name(kind.name)}{operator}"


def conflicts(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """The first kernel whose name and operator disagree; of many such, that they prove nothing."""
    trace = rank.trace
    gemms = [*trace.gemms, *trace.optimizer]
    disputed, compared = name_conflicts(gemms, trace.others)
    if disputed > MANY_MISNAMED * compared:
        yield finding(
            "name-op-conflict",
            "many",
            disputed=disputed,
            compared=compared,
        )
        return
    for row in islice(filter(_is_disputed, trace.gemms), 1):
        is_by_code = row.kind.classification.source == "code"
        yield finding(
            "name-op-conflict",
            optional("code", when=is_by_code),
            conflict=row.kind.classification.conflict,
            kernel=short_name(row.kind.name),
        )


def _is_disputed(row: GemmRow) -> bool:
    return bool(row.kind.classification.conflict)


# ---- speeds and generations


class _Rated(NamedTuple):
    """A row of GEMMs, and its TFLOP/s."""

    row: GemmRow
    rate: float


def beyond_bf16_peak(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """GEMMs faster than BF16 can be on this GPU, which no name has to be believed for.

    Not grouped ones: what is known of their FLOPs is an upper bound (rows of padding, experts
    without tokens). Where any rate is beyond all formats of the GPU, or that of a GEMM in high
    precision beyond theirs, shapes, times or GPU are not what ran, and no rate proves anything.
    """
    peak = peak_of(rank.trace.gpu)
    if peak is None or not peak.proves:
        return
    rated = _rated(rank.trace.gemms)
    highest = max(peak.fp8, peak.bf16, peak.fp4)
    is_impossible = bool(_faster(rated, highest))
    faster = _faster(rated, peak.bf16)
    plain = [one for one in faster if _is_plain(one.row)]
    are_slow = any(one.row.precision in _SLOW for one in plain)
    is_disproved = is_impossible or are_slow
    yield from told(
        "faster-than-bf16",
        when=plain and not is_disproved and not _of_other_hardware(rank),
        count=calls_of([one.row for one in plain]),
        peak=peak.bf16,
        rate=max((one.rate for one in plain), default=0.0),
    )


def _rated(rows: Iterable[GemmRow]) -> list[_Rated]:
    """Return the rows of which FLOPs and time are known, with their rate."""
    rated = []
    for row in rows:
        if row.flops and row.amount:
            rated.append(_Rated(row, row.flops / row.amount / 1e3))
    return rated


def _faster(rated: Iterable[_Rated], peak: float) -> list[_Rated]:
    """Return what is faster than a peak, by more than clocks may vary."""
    return [one for one in rated if one.rate > peak * PROOF_MARGIN]


def _is_plain(row: GemmRow) -> bool:
    return row.kind.classification.role is Role.GEMM


def of_older_gpus(rank: RankEvidence, _: Requested) -> Iterator[Finding]:
    """FP8 GEMMs in kernels of an older generation, as cuBLAS 12 runs Ada's on newer GPUs."""
    gpu = rank.trace.gpu
    capability = rank.trace.compute_capability
    rows = []
    generations = []
    for row in filter(_is_fp8, rank.trace.gemms):
        generation = compiled_before(row.kind.name, gpu, capability)
        if generation is not None:
            rows.append(row)
            generations.append(generation)
    if rows:
        yield finding(
            "older-kernels",
            count=calls_of(rows),
            arch=generations[0],
            gpu=gpu,
            kernel=short_name(rows[0].kind.name),
        )


def _is_fp8(row: GemmRow) -> bool:
    return row.precision.is_fp8

"""Findings on single kernels: unknown ones, disputed ones, and those that prove themselves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow, KindTotal, NameConflicts, name_conflicts
from fp8verify.analysis.gpus import multiplies, peak_of, runs_elsewhere
from fp8verify.analysis.promises import Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model import Finding, Precision, Role
from fp8verify.text import lazy_pattern, listed
from fp8verify.verdict.findings_table import finding
from fp8verify.verdict.inconclusive import MANY_OPAQUE, opaque_share
from fp8verify.verdict.verdict import NEGLIGIBLE

# A rate this far above the BF16 peak cannot be a clock's or a timer's error.
_PROOF_MARGIN = 1.02
# Classes that no GPU multiplies faster than BF16.
_SLOW = {Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32, Precision.FP64}
_NAMED = 3
# A correlation that went astray at a window's edge misnames single kernels, never so many.
_MANY_MISNAMED = 0.05
# The architecture that kernels with FP8 or FP4 instructions are compiled for, in their names.
_ARCHITECTURE = lazy_pattern(r"sm_?(?:89|9\d|1[0-2]\d)(?!\d)", re.IGNORECASE)
_NEEDS_FP8 = (
    "FP8 needs compute capability 8.9 (Ada, Hopper, Blackwell) or an MI300, which multiplies only "
    "float8_e4m3fnuz and float8_e5m2fnuz."
)
_NEEDS_BLOCKS = "MXFP8, NVFP4 and MXFP4 need compute capability 10.0 (Blackwell) or an MI350."
_BLOCK_FORMATS = frozenset({"mxfp8", "nvfp4", "mxfp4"})


def unknown_gemms(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """GEMM kernels whose precision neither their name nor their operator tells."""
    rank = facts.rank
    rows = [
        row
        for row in rank.survey.gemms
        if row.precision is Precision.UNKNOWN and not row.kind.classification.upcast_from
    ]
    if rows:
        worst = max(rows, key=lambda row: row.time_ns)
        yield finding(
            "unknown-gemm",
            share=sum(row.time_ns for row in rows) / (rank.gemm.total_ns or 1),
            kernel=_short(worst.kind.name),
        )


def opaque_kernels(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Kernels that neither a name nor an operator explains, which may be GEMMs of any precision."""
    share, found = opaque_share(facts.rank), facts.rank.unrecognized
    if share < NEGLIGIBLE:
        return
    names = listed([f"{_short(total.kind.name)}{_under(total)}" for total in found], _NAMED)
    time_ns = sum(total.time_ns for total in found)
    yield finding(
        "opaque-kernels",
        "many" if share >= MANY_OPAQUE else "",
        count=sum(total.calls for total in found),
        ms=time_ns / 1e6,
        share=time_ns / (facts.rank.linear.total_ns or 1),
        kernels=names,
    )


def _under(total: KindTotal) -> str:
    return f" ({_short(total.kind.op.name)})" if total.kind.op is not None else ""


def no_fp8_units(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """GEMMs, or a promise, in a format that the GPU cannot multiply."""
    rank, rows = facts.rank, facts.rank.upcast
    others = _of_other_hardware(rank)
    if others:
        yield _other_hardware(rank, rows, others[0])
    elif rows:
        names = _formats_of(rows)
        yield finding(
            "no-fp8-units",
            "mixed" if rank.ran_low else "",
            count=sum(row.calls for row in rows),
            formats=names,
            gpu=rank.gpu,
            them="them" if rank.has_fp8_units else names,
            needs=_needs(names.lower().split(" and ")),
        )
    elif promises.any and not rank.has_fp8_units and rank.survey.linear:
        yield finding(
            "no-fp8-units",
            "promised",
            format=promises.name,
            gpu=rank.gpu,
            needs=_needs(_promised(promises)),
        )


def _promised(promises: Promises) -> set[str]:
    return {name for names in promises.formats.values() for name in names}


def _needs(formats: Collection[str]) -> str:
    return _NEEDS_BLOCKS if _BLOCK_FORMATS.intersection(formats) else _NEEDS_FP8


def _formats_of(rows: Sequence[GemmRow]) -> str:
    formats = {row.kind.classification.upcast_from for row in rows}
    return " and ".join(sorted(found.value.upper() for found in formats if found is not None))


def _of_other_hardware(rank: RankEvidence) -> list[str]:
    """Return the names of kernels that libraries compile for other GPUs, and convert nothing."""
    gpu = rank.gpu, rank.compute_capability
    names = (row.kind.name for row in rank.upcast)
    return [name for name in names if _ARCHITECTURE.search(name) or runs_elsewhere(name, *gpu)]


def _other_hardware(rank: RankEvidence, rows: Sequence[GemmRow], name: str) -> Finding:
    formats = [row.kind.classification.upcast_from for row in rows]
    lacks = any(
        multiplies(rank.gpu, rank.compute_capability, found) is False for found in formats if found
    )
    cannot = f", which cannot multiply {_formats_of(rows)}," if lacks else ""
    return finding(
        "no-fp8-units",
        "other-gpu" if rank.ran_low else "other-gpu-open",
        gpu=rank.gpu,
        cannot=cannot,
        kernel=_short(name),
    )


def conflicts(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """The first kernel whose name and operator disagree; of many such, that they prove nothing."""
    found = name_conflicts(facts.rank.survey)
    if found.share > _MANY_MISNAMED:
        yield _not_of_their_operators(found)
        return
    for row in facts.rank.survey.gemms:
        conflict = row.kind.classification.conflict
        if conflict is not None:
            yield finding(
                "name-op-conflict",
                "unknown" if row.precision is Precision.UNKNOWN else "",
                conflict=conflict,
                kernel=_short(row.kind.name),
            )
            return


def _not_of_their_operators(found: NameConflicts) -> Finding:
    """So many GEMMs with names that their operators contradict that none can be believed."""
    return finding("name-op-conflict", "many", disputed=found.disputed, compared=found.compared)


def beyond_bf16_peak(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """GEMMs faster than BF16 can be on this GPU, which no name has to be believed for.

    Not grouped ones: what is known of their FLOPs is an upper bound (rows of padding, experts
    without tokens). Where any rate is beyond all formats of the GPU, or that of a GEMM in high
    precision beyond theirs, shapes, times or GPU are not what ran, and no rate proves anything.
    """
    rank = facts.rank
    peak = peak_of(rank.gpu)
    if peak is None or not peak.proves:
        return
    rates = [
        (row, row.flops / row.time_ns / 1e3)
        for row in rank.survey.gemms
        if row.flops and row.time_ns
    ]
    highest = max(peak.fp8, peak.bf16, peak.fp4)
    proven = [
        (row, rate)
        for row, rate in rates
        if row.kind.classification.role is Role.GEMM and rate > peak.bf16 * _PROOF_MARGIN
    ]
    if any(rate > highest * _PROOF_MARGIN for _, rate in rates) or any(map(_is_high, proven)):
        return
    if proven and not _of_other_hardware(rank):
        yield finding(
            "faster-than-bf16",
            count=sum(row.calls for row, _ in proven),
            peak=peak.bf16,
            rate=max(rate for _, rate in proven),
        )


def _is_high(proven: tuple[GemmRow, float]) -> bool:
    return proven[0].precision in _SLOW


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:57] + "…"

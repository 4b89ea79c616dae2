"""The three sources of a verdict, a line each: what log, model and kernels say."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fp8verify.report.model.parts import Claim, ModulesReport
from fp8verify.report.model.report import RankReport, Report
from fp8verify.report.page import Note
from fp8verify.report.tables import about, layer_gemms, rank_label
from fp8verify.terms import Precision, Role, low_precision_name, low_precision_share
from fp8verify.text import cut_middle, label_of_ranks, listed

# Two lines at 80 columns hold as much of a log line.
_QUOTED = 130
_MENTIONED = 90
_RANKS = 3
# Log lines that are not sentences, by what they mean.
_MEANINGS = {
    "PYTORCH_API_USAGE torchao.float8.convert_to_float8_training": (
        "torchao's convert_to_float8_training was called"
    )
}
# How a state of linear layers that are not plainly converted is named.
_STATES = {
    "fp8_emulated": "emulate FP8",
    "fp4_emulated": "emulate FP4",
    "fp8_module_off": "are Transformer Engine's, outside its FP8 autocast",
}
_CONVERTED = ("fp8", "fp4")


def sources(report: Report) -> tuple[Note, Note, Note]:
    """Return what log, model and kernels say, in this order."""
    return (
        Note("log", _log(report)),
        Note("model", _model(report)),
        Note("kernels", _kernels(report)),
    )


def quoted(claim: Claim) -> str:
    """Return a claim with its place; lines that are no sentence by what they mean."""
    words = re.sub(r"\.{4,}", "…", claim.text)  # Megatron-LM fills its lines with dots
    meaning = _MEANINGS.get(claim.text, f'"{words}"')
    return f"{claim.place}: {meaning}"


def deciding_claim(report: Report) -> Claim | None:
    """Return the claim that counts: the first line that turns FP8 on, else off, else a call."""
    on = [claim for claim in report.claims if claim.says == "fp8"]
    lines = [claim for claim in on if claim.line and claim.text not in _MEANINGS]
    off = [claim for claim in report.claims if claim.says == "not_fp8"]
    return next(iter([*lines, *off, *on]), None)


def _log(report: Report) -> str:
    claim = deciding_claim(report)
    if claim is not None:
        return cut_middle(quoted(claim), _QUOTED)
    if not report.logs:
        return "none was read"
    if report.mention is not None:
        text = cut_middle(report.mention.text, _MENTIONED)
        return f'no line claims FP8 (line {report.mention.line} mentions it: "{text}")'
    return "no line claims FP8"


def _model(report: Report) -> str:
    """Say what the modules are, once for ranks alike."""
    lines: dict[str, list[RankReport]] = defaultdict(list)
    for rank in report.ranks:
        lines["not recorded" if rank.modules is None else _modules(rank, rank.modules)].append(rank)
    parts = (
        list(lines) if len(lines) == 1 else [f"{_who(of)}: {line}" for line, of in lines.items()]
    )
    scaling = _scaling(report)
    return listed(parts, _RANKS, between="; ") + (f", {scaling}" if scaling else "")


def _who(ranks: list[RankReport]) -> str:
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    return label_of_ranks(numbers) if len(numbers) == len(ranks) else rank_label(ranks[0])


def _modules(rank: RankReport, modules: ModulesReport) -> str:
    """Count the linear layers by state."""
    counts = dict(modules.counts)
    total = sum(counts.values())
    if not total:
        experts = rank.layers is not None and rank.layers.experts
        return f"no linear layers{' (expert weights only)' if experts else ''}"
    states = list(_states(counts, modules)) or [(0, "converted")]
    (first, what), *others = states
    also = "".join(f", {count} {state}" for count, state in others)
    return "; ".join([f"{first} of {total} linear layers {what}{also}", *modules.storage])


def _states(counts: dict[str, int], modules: ModulesReport) -> Iterator[tuple[int, str]]:
    """Yield how many are in each state that is not plain high precision, converted ones first."""
    converted = sum(counts.get(state, 0) for state in _CONVERTED)
    if converted:
        yield converted, "converted"
    for state, count in counts.items():
        if state == "unknown":
            classes = f" ({listed(modules.unknown_classes, 2)})" if modules.unknown_classes else ""
            yield count, f"of unknown class{classes}, judged by their GEMMs"
        elif state not in (*_CONVERTED, "high_precision"):
            yield count, _STATES.get(state, state.replace("_", " "))


def _scaling(report: Report) -> str:
    """Say how operands are scaled: as configured, else inferred from kernels."""
    seen = report.recipe.time_us
    modules = [rank.modules for rank in report.ranks if rank.modules is not None]
    configured = sorted({scaling for found in modules for scaling in found.scalings})
    if not seen:
        return ""
    if configured:
        return f"scaling: {', '.join(configured)}"
    return f"{', '.join(seen)} (inferred from kernels)"


def _kernels(report: Report) -> str:
    gemms = layer_gemms(report)
    kernels = sum(rank.health.kernels for rank in report.ranks)
    if not gemms.launches:
        return f"no linear-layer GEMM among {kernels} kernels" if kernels else "none in the trace"
    shares = low_precision_share(gemms.time_us) or 0.0
    formats = low_precision_name(gemms.kernels)
    unit = "GEMM time" if report.measure == "time" else "GEMM FLOPs"
    return f"{_counts(gemms.kernels)}: {formats} is {about(shares)} of {unit}" + "".join(
        _more(report)
    )


def _counts(kernels: dict[str, int]) -> str:
    """Count GEMMs by precision: FP8, what ran in high precision, unknown."""
    shown = [
        precision
        for precision in Precision
        if kernels.get(precision.value) and precision is not Precision.UNKNOWN
    ]
    if not any(precision.is_low for precision in shown):
        shown.insert(0, Precision.FP8)
    if all(precision.is_low for precision in shown):
        shown.append(Precision.BF16)
    counts = [(one.value.upper(), kernels.get(one.value, 0)) for one in shown]
    counts.append(("unknown", kernels.get("unknown", 0)))
    return ", ".join(f"{name} {count}" for name, count in counts)


def _more(report: Report) -> Iterator[str]:
    known = [one for one in (rank.expected for rank in report.ranks) if one and one.share_of_flops]
    if known:
        least = min(known, key=lambda one: one.measured_share_of_flops - one.share_of_flops)
        share, measured = about(least.share_of_flops), about(least.measured_share_of_flops)
        if (share, measured) != ("100%", "100%"):
            yield f", {measured} of FLOPs ({share} expected)"
    attention = [r for rank in report.ranks for r in rank.kernels if r.role is Role.ATTENTION]
    if any(row.precision.is_fp8 for row in attention):
        yield "; attention in FP8"
    logged = [rank.library_log for rank in report.ranks if rank.library_log is not None]
    if gemms := sum(one.gemms for one in logged if one.note is None):
        vouched = sum(one.vouched for one in logged if one.note is None)
        yield f"; the BLAS library's own log agrees on {vouched} of {gemms}"

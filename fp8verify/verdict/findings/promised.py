"""Findings on what was promised in FP8 and ran otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.promises import CONVERTED, Promises
from fp8verify.analysis.rank import RankEvidence
from fp8verify.layer_names import patterns
from fp8verify.report.model import Finding, Precision, Role
from fp8verify.verdict.causes import cause_without_fp8
from fp8verify.verdict.findings_table import finding

_NAMED = 2


def emulated_or_contradicted(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """No FP8 GEMM although FP8 was promised, or although tensors were cast to it."""
    rank = facts.rank
    if rank.ran_low or not rank.survey.linear:
        return
    casts = facts.made_fp8_tensors or (promises.any and rank.quantizes())
    emulates = bool(promises.emulated or casts)
    if emulates:
        yield finding(
            "emulated",
            "" if rank.has_fp8_units else "no-units",
            gemms=_all_gemms(rank.main_precision()),
        )
    if promises.any and not rank.health.skipped_events:
        case, cause = cause_without_fp8(rank, promises)
        yield finding(
            "claimed-not-active",
            "no-units" if not rank.has_fp8_units else "emulated" if emulates else case,
            format=promises.name,
            promise=_promise(promises),
            cause=f": {cause}" if cause else "",
        )


def _all_gemms(main: Precision) -> str:
    if main is Precision.UNKNOWN:
        return "no GEMM of known precision multiplied FP8"
    return f"every GEMM ran in {main.value.upper()}"


def _promise(promises: Promises) -> str:
    claim = promises.claim
    if claim is not None:
        return f"log {claim.place}" if claim.line else claim.place
    modules = promises.converted or promises.emulated
    return f"{len(modules)} modules of type {modules[0].class_name}"


def grouped_high_precision(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Grouped GEMMs, as of MoE experts, outside FP8 in a run that promised or ran FP8."""
    rank = facts.rank
    rows = [
        row
        for row in rank.survey.gemms
        if row.kind.classification.role is Role.GROUPED_GEMM
        and not row.precision.is_low
        and row.precision is not Precision.UNKNOWN
    ]
    if rows and (rank.ran_low or promises.any):
        count, time_ns = sum(row.calls for row in rows), sum(row.time_ns for row in rows)
        op, experts = rows[0].kind.op, _experts(rank)
        yield finding(
            "grouped-gemm-high-precision",
            "by-design" if any(c.framework == "KempnerForge" for c in promises.claims) else "",
            count=count,
            experts=_named_experts(experts, rows),
            op=f", {op.name}" if op else "",
            precision=rows[0].precision.value.upper(),
            ms=time_ns / 1e6,
            layers=experts,
        )


def _experts(rank: RankEvidence) -> tuple[str, ...]:
    return tuple(m.fqn for m in rank.modules if m.kind == "experts" and m.state not in CONVERTED)


def _named_experts(experts: Sequence[str], rows: Sequence[GemmRow]) -> str:
    """Name the experts by the census, else by the shape of their weights."""
    if experts:
        return f"MoE experts {', '.join(patterns(experts)[:_NAMED])}"
    stacked = {dims for row in rows if row.kind.op for dims in row.kind.op.dims if len(dims) == 3}
    sizes = sorted({f"{count} of {k} x {n}" for count, k, n in stacked})
    return f"MoE experts{': ' if sizes else ''}{', '.join(sizes[:_NAMED])}"


def recipe_mismatch(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """A scaling in the kernels that is not the one the log claims."""
    rank = facts.rank
    claimed = {recipe.split("_")[0] for recipe in promises.recipes} & {"tensorwise", "rowwise"}
    seen: dict[str, int] = defaultdict(int)
    for row in rank.survey.gemms:
        if row.scaling is not None:
            seen[row.scaling.value] += row.time_ns
    if len(claimed) == 1 and seen and not claimed & set(seen):
        main = max(seen, key=lambda name: seen[name])
        yield finding("recipe-mismatch", claimed=claimed.pop(), seen=main)

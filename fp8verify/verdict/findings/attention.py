"""Findings on attention that no fused kernel computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.gemms import GemmRow, gemm_totals
from fp8verify.analysis.promises import Promises
from fp8verify.kernels.operators import find
from fp8verify.report.model import Finding, Precision, Role
from fp8verify.verdict.findings_table import finding

# From this share of GPU time on it is what to mend first.
_COSTLY = 0.1


def attention_unfused(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """Products of attention as GEMMs of their own: their backend, and what they cost."""
    rank, rows = facts.rank, facts.rank.survey.attention
    if not rows:
        return
    totals = gemm_totals(rows)
    gpu = totals.total_ns / (sum(facts.gpu_time.values()) or 1)
    ran = " and ".join(p.value.upper() for p in Precision if totals.kernels[p])
    yield finding(
        "attention-unfused",
        "costly" if gpu >= _COSTLY else "",
        backend=_backend(rows),
        count=totals.kernels.total(),
        formats=ran,
        ms=totals.total_ns / 1e6,
        of_gemm=totals.total_ns / rank.gemm.total_ns,
        of_gpu=gpu,
    )


def _backend(rows: Sequence[GemmRow]) -> str:
    under = any(
        find(name).encloses is Role.ATTENTION
        for row in rows
        if row.kind.op is not None
        for name in row.kind.op.parents
    )
    return "the math backend of scaled_dot_product_attention" if under else "bmm, softmax, bmm"

"""Findings on tensors that are scaled by block or row, MXFP8 among them."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding, Severity
from fp8verify.verdict.findings.formats import gradients_in_e5m2
from fp8verify.verdict.findings.numerics.kept_scales import recipes_of
from fp8verify.verdict.findings.numerics.tensors import (
    ONE_SCALE,
    and_more,
    layers_of,
    measured_rows,
    sound_rows,
)

TOP_BLOCKS = 0.05  # ours, after arXiv 2506.20752: blocks whose values share the last bucket
ZERO_ROWS = 0.01  # ours


def mx_last_bucket(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """MX tensors many of whose blocks hold hardly anything but their largest value."""
    found = [row for row in sound_rows(facts) if (row.top_blocks or 0.0) >= TOP_BLOCKS]
    if found:
        worst = max(found, key=lambda row: row.top_blocks or 0.0)
        yield Finding(
            code="mx-last-bucket",
            severity=Severity.WARNING,
            message=f"in {worst.top_blocks:.1%} of the MX blocks of the {worst.tensor} of "
            f"{worst.layer} most values are the largest one{and_more(found, facts)} "
            f"(from {TOP_BLOCKS:.0%} on, ours, after arXiv 2506.20752)",
            hint="Keep the affine weights of layer norms in high precision, and round scales up.",
            layers=layers_of(found),
        )


def mxfp8_e5m2_gradients(facts: RankFacts, promises: Promises) -> Iterator[Finding]:
    """Gradients in E5M2 under MX scales, where no kernel has told of them already."""
    if any(gradients_in_e5m2(facts, promises)):
        return
    rows = [
        row
        for row in measured_rows(facts)
        if row.scaling == "mxfp8" and (row.format or "").startswith("e5m2")
    ]
    promised = any(
        recipe.name == "MXFP8BlockScaling" and recipe.backward == "e5m2"
        for recipe in recipes_of(facts)
    )
    if rows or promised:
        yield Finding(
            code="mxfp8-e5m2-gradients",
            severity=Severity.ERROR,
            message="gradients are cast to MXFP8 in E5M2",
            hint='Use E4M3 throughout (fp8="e4m3", Format.E4M3): runs with hybrid formats diverged '
            "(Megatron-Bridge#638, arXiv 2506.08027).",
            layers=layers_of(rows),
        )


def zero_rows(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """All-zero rows under scales by row or block, whose scale is then at its limit."""
    found = [
        row
        for row in sound_rows(facts)
        if row.scaling not in ONE_SCALE and row.scaling and (row.zero_rows or 0.0) >= ZERO_ROWS
    ]
    if found:
        worst = max(found, key=lambda row: row.zero_rows or 0.0)
        yield Finding(
            code="zero-rows",
            severity=Severity.INFO,
            message=f"{worst.zero_rows:.1%} of the rows of the {worst.tensor} of {worst.layer} are "
            f"all zero{and_more(found, facts)} (told from {ZERO_ROWS:.0%} on, ours)",
            hint="Padding and masked tokens do this; scales of such rows are at their limit, where "
            "some kernels made NaN (ao#3356).",
            layers=layers_of(found),
        )

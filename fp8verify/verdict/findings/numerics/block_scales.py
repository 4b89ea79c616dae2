"""Findings on tensors that are scaled by block or row, MXFP8 among them."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.analysis.facts import RankFacts
from fp8verify.analysis.promises import Promises
from fp8verify.report.model import Finding
from fp8verify.verdict.findings.formats import gradients_in_e5m2
from fp8verify.verdict.findings.numerics.kept_scales import recipes_of
from fp8verify.verdict.findings.numerics.tensors import (
    ONE_SCALE,
    and_more,
    layers_of,
    measured_rows,
    sound_rows,
)
from fp8verify.verdict.findings_table import finding

TOP_BLOCKS = 0.05  # ours, after arXiv 2506.20752: blocks whose values share the last bucket
ZERO_ROWS = 0.01  # ours


def mx_last_bucket(facts: RankFacts, _: Promises) -> Iterator[Finding]:
    """MX tensors many of whose blocks hold hardly anything but their largest value."""
    found = [row for row in sound_rows(facts) if (row.top_blocks or 0.0) >= TOP_BLOCKS]
    if found:
        worst = max(found, key=lambda row: row.top_blocks or 0.0)
        yield finding(
            "mx-last-bucket",
            share=worst.top_blocks,
            tensor=worst.tensor,
            layer=worst.layer,
            others=and_more(found, facts),
            threshold=TOP_BLOCKS,
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
        yield finding(
            "mxfp8-e5m2-gradients",
            what="gradients are cast to MXFP8 in E5M2",
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
        yield finding(
            "zero-rows",
            share=worst.zero_rows,
            tensor=worst.tensor,
            layer=worst.layer,
            others=and_more(found, facts),
            threshold=ZERO_ROWS,
            layers=layers_of(found),
        )

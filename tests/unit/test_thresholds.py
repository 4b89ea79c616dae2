"""Thresholds are in one place, each is used, and each side of one gives another result."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import fp8verify
from fp8verify import thresholds
from fp8verify.analysis.timeline import step_statistics
from fp8verify.model.verdict import ExpectedReport
from tests.unit.test_numerics_findings import all_layers, codes, facts_of

PACKAGE = Path(fp8verify.__file__).parent
NAMES = [name for name in vars(thresholds) if name.isupper()]
# What is measured, a limit to what is read or kept, or a unit.
NO_THRESHOLDS = {
    "MAX_NAME", "_MAX_NAME", "MAX_BYTES", "SCHEMA", "_ROUNDING", "_ROWS", "BUCKETS", "_NEVER",
    "_BYTES_PER_FLOP", "_GRADIENTS", "_NAMED", "_NAMED_EXPERTS", "_NO_WEIGHT",
    "SCHEMA_VERSION", "_LARGEST", "_DIMS", "_INPUTS",
    "_FILE_BYTES", "_FAILED", "TABLE_SCHEMA_VERSION", "NOT_COMPARABLE", "CURVE_POINTS",
    "MAX_ORIGINS", "_SHOWN", "_NAME",
    "_DIGITS_OF", "_FIRST_DATE_NS", "_LAST_DATE_NS", "OURS",
    "_BESIDE_SOFTMAX", "_BESIDE_GRADIENT",
}  # fmt: skip


def test_each_threshold_is_used() -> None:
    used = "".join(
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path != Path(thresholds.__file__)
    )
    assert set(NAMES) - set(re.findall(r"\b[A-Z]\w*", used)) == set()


@pytest.mark.parametrize("room", ["analysis", "comparison", "verdict"])
def test_no_other_file_has_a_threshold(room: str) -> None:
    found = {
        target.id
        for path in (PACKAGE / room).rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_number(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert {name for name in found if name.isupper()} - NO_THRESHOLDS == set()


def is_number(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return is_number(node.left)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


@pytest.mark.parametrize(
    ("code", "limit", "odd"),
    [
        ("underflow-high", thresholds.UNDERFLOW, {"field": "flushed"}),
        (
            "gradient-flushed",
            thresholds.GRADIENT_FLUSHED,
            {"field": "flushed", "kind": "grad_output"},
        ),
        ("saturates", thresholds.SATURATED, {"field": "saturated"}),
        ("mx-last-bucket", thresholds.TOP_BLOCKS, {"field": "top_blocks"}),
        (
            "zero-rows",
            thresholds.ZERO_ROWS,
            {"field": "zero_rows", "scaling": "rowwise"},
        ),
    ],
)
def test_a_figure_of_a_tensor_counts_from_its_threshold_on(
    code: str, limit: float, odd: dict[str, Any]
) -> None:
    field = odd.pop("field")
    assert code in codes(facts_of(all_layers(**{**odd, field: limit})))
    assert code not in codes(facts_of(all_layers(**{**odd, field: limit * 0.999})))


@pytest.mark.parametrize(("off", "met"), [(0.0, True), (1e-9, False)])
def test_the_expected_share_may_be_missed_by_the_tolerance(
    off: float, met: bool
) -> None:
    expected = ExpectedReport(
        share_of_flops=0.75,
        measured_share_of_flops=0.75 - thresholds.TOLERANCE - off,
        left_out=(),
        stated=False,
    )
    assert expected.is_met is met


@pytest.mark.parametrize(("long", "left_out"), [(1.0, 0), (1.001, 1)])
def test_a_step_is_an_exception_beyond_so_many_medians(
    long: float, left_out: int
) -> None:
    found = step_statistics([[100.0] * 9 + [100.0 * thresholds.FAR * long]])
    assert found is not None
    assert found.left_out == left_out

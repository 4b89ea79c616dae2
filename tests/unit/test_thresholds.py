"""Thresholds are in one place, each is used, and each side of one gives another result."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import fp8verify
from fp8verify import thresholds
from fp8verify.analysis.gemms import GemmRow
from fp8verify.analysis.kinds import GemmShape, Kind
from fp8verify.analysis.timeline import step_statistics
from fp8verify.kernels import Classification
from fp8verify.report.model.parts import ExpectedReport
from fp8verify.terms import NO_OP, Leg, Precision, Role
from fp8verify.verdict.grid import Grid
from tests.unit.test_numerics_findings import all_layers, codes, facts_of

PACKAGE = Path(fp8verify.__file__).parent
NAMES = [name for name in vars(thresholds) if name.isupper()]
NOTHING = Mock(
    return_value=None, alike=False, spared=[0], spared_in_all=0
)  # is stated of a cell
# What is measured, a limit to what is read or kept, or a unit.
NO_THRESHOLDS = {
    "_MAX_NAME", "MAX_BYTES", "SCHEMA", "_ROUNDING", "_ROWS", "BUCKETS", "_NEVER",
    "_BYTES_PER_FLOP", "_GRADIENTS", "_NAMED", "_NAMED_EXPERTS", "_NO_WEIGHT",
    "SCHEMA_VERSION", "_LARGEST", "_DIMS", "_INPUTS",
}  # fmt: skip


def test_each_threshold_is_used() -> None:
    used = "".join(
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path != Path(thresholds.__file__)
    )
    assert [name for name in NAMES if not re.search(rf"\b{name}\b", used)] == []


@pytest.mark.parametrize("room", ["analysis", "verdict"])
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


def row(step: int, flops: int, precision: Precision) -> GemmRow:
    known = Classification(
        role=Role.GEMM, precision=precision, library="made", reason=""
    )
    shape = GemmShape(1, 1, 1, flops // 2)
    return GemmRow(
        Kind("made", NO_OP, known), step, Leg.FPROP, 1, flops, flops, shape, layer="up"
    )


@pytest.mark.parametrize(("low", "is_short"), [(500, False), (498, True)])
def test_a_step_is_short_below_half_of_what_is_expected(
    low: int, is_short: bool
) -> None:
    rows = [row(0, 1000, Precision.FP8), row(1, low, Precision.FP8)]
    rows.append(row(1, 1000 - low, Precision.BF16))
    grid = Grid([rows], NOTHING)
    assert [cell.step for cell in grid.lacks] == [1] * is_short


@pytest.mark.parametrize(("unknown", "lacks", "is_open"), [(500, 0, 1), (498, 1, 0)])
def test_unknown_work_counts_as_low_to_accuse(
    unknown: int, lacks: int, is_open: int
) -> None:
    rows = [row(0, 1000, Precision.FP8), row(1, unknown, Precision.UNKNOWN)]
    rows.append(row(1, 1000 - unknown, Precision.BF16))
    grid = Grid([rows], NOTHING)
    assert (len(grid.lacks), len(grid.open)) == (lacks, is_open)


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

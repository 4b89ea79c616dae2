"""A report as DataFrames, and the examples in the docstrings."""

from __future__ import annotations

import doctest
import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.captures import CAPTURES, ROOT, report_of

if find_spec("pandas") is None:  # imported where a test needs it, which takes seconds
    pytest.skip("pandas is not installed (the pandas extra)", allow_module_level=True)
from fp8verify.capture.schema import TensorRecord
from fp8verify.model.kernels import KernelRow
from fp8verify.report.rows import Frames


@pytest.mark.parametrize("name", CAPTURES)
def test_frames_hold_what_the_report_holds(name: str) -> None:
    report = report_of(name)
    frames = report.to_pandas()
    assert frames.kernels.time_us.sum() == pytest.approx(
        sum(report.gpu_time_us.values()), abs=0.1
    )
    assert len(frames.kernels) == sum(len(rank.kernels) for rank in report.ranks)
    gemms = frames.gemms[frames.gemms.leg != "optimizer"]
    # What adds up the parts of a split GEMM is no GEMM.
    counted = gemms[~gemms.name.str.contains("splitKreduce")]
    by_precision = counted.groupby("precision")["kernels"].sum().to_dict()
    assert by_precision == {p: n for p, n in report.gemm.kernels.items() if n}
    share = gemms[gemms.is_fp8].time_us.sum() / gemms.time_us.sum()
    assert share == pytest.approx(report.gemm.fp8_share_of_time, abs=1e-5)
    assert list(frames.ranks.verdict) == [rank.verdict.value for rank in report.ranks]
    assert len(frames.steps) == sum(len(rank.steps) for rank in report.ranks)


def test_layers_are_those_of_the_census() -> None:
    layers = report_of("fp8_accelerate").to_pandas().layers
    assert layers.state.value_counts().to_dict() == {"fp8": 4, "high_precision": 2}
    columns = list(report_of("fp8_te_delayed").to_pandas().layers.columns)
    assert columns == ["rank", "layer", "state"]


def test_every_column_is_documented() -> None:
    described = " ".join(
        map(str, (Frames.__doc__, KernelRow.__doc__, TensorRecord.__doc__))
    )
    for frame in report_of("fp8_compiled").to_pandas():
        assert [
            name for name in frame.columns if not re.search(rf"\b{name}\b", described)
        ] == []


@pytest.mark.parametrize(
    "name",
    [
        "fp8verify", "fp8verify.preflight.checks", "fp8verify.report.results",
        "fp8verify.report.rows",
    ],
)  # fmt: skip
def test_the_examples_in_docstrings_are_true(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(ROOT).parent)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0

"""The plugin's `fp8_run` on a real GPU: a training that runs in FP8, and one that does not."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.gpu

GPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
TESTS = f"""
from fp8verify.pytest_plugin import assert_fp8_active

def test_fp8(fp8_run):
    report = fp8_run({str(GPT)!r}, "--precision", "fp8", "--compile", steps="10-12")
    assert_fp8_active(report, min_share=0.9)

def test_silent_failure(fp8_run):
    report = fp8_run(
        {str(GPT)!r}, "--precision", "fp8", "--compile", "--skip-layers", ".*", steps="10-12"
    )
    assert_fp8_active(report)
"""


def test_a_training_is_run_and_judged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    installed = any(point.name == "fp8verify" for point in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "fp8verify.pytest_plugin")
    result = pytester.runpytest_subprocess(*plugin)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E * FP8 is CONTRADICTED: the log claims FP8 *"])

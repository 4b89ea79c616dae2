"""The pytest plugin in a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.golden.expectations import ROOT

pytest_plugins = ["pytester"]

TEST = """
from fp8verify.pytest_plugin import assert_fp8_active

def test_it(fp8_report):
    assert_fp8_active(fp8_report({path!r}), min_share={share})
"""


def _run(pytester: pytest.Pytester, capture: str, share: float) -> pytest.RunResult:
    pytester.makepyfile(TEST.format(path=str(ROOT / capture), share=share))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider")


def test_fp8_passes(pytester: pytest.Pytester) -> None:
    _run(pytester, "fp8_compiled", 0.99).assert_outcomes(passed=1)


def test_a_silent_failure_fails_with_the_reason_the_share_and_the_findings(
    pytester: pytest.Pytester,
) -> None:
    result = _run(pytester, "bf16_filter_rejects_all", 0.5)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * FP8 is CONTRADICTED: the log claims FP8 *Applied Float8 training*",
            "E * share: 0.0% of GEMM time ran in FP8, 50.0% asked for",
            "E * error [[]claimed-not-active[]] *",
        ]
    )


def test_the_share_asked_for_decides(pytester: pytest.Pytester) -> None:
    _run(pytester, "fp8_rowwise_gw_hp", 0.5).assert_outcomes(passed=1)


def test_a_share_not_reached_fails(pytester: pytest.Pytester) -> None:
    result = _run(pytester, "fp8_rowwise_gw_hp", 0.9)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * share: 51.* of GEMM time ran in FP8, 90.0% asked for"])


def test_a_share_below_the_default_can_be_asked_for(pytester: pytest.Pytester) -> None:
    _run(pytester, "fp8_accelerate", 0.3).assert_outcomes(passed=1)


def test_a_rank_without_fp8_fails_whatever_share_is_asked_for(pytester: pytest.Pytester) -> None:
    _run(pytester, "ddp_one_rank_bf16", 0.0).assert_outcomes(failed=1)


def test_the_plugin_imports_nothing_until_it_is_used() -> None:
    code = (
        "import sys, fp8verify.pytest_plugin\n"
        "print([m for m in ('torch', 'pandas', 'msgspec', 'rich', 'fp8verify.model') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"

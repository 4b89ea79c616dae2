"""A log without a trace, and a log that ends in an error beside one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import inspect
from tests.hand_built import TraceBuilder

LOG = """Float8 training active with recipe rowwise
step 1 loss 3.25
step 7 loss 3.125
Traceback (most recent call last):
  File "train.py", line 3
RuntimeError: {}
"""


@pytest.mark.parametrize(
    "error",
    [
        "boom",
        "torch._scaled_mm is only supported on CUDA devices with compute capability",
    ],
)
def test_a_log_alone_is_inconclusive_and_says_what_it_shows(
    error: str, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text(LOG.format(error))
    report = inspect([], log=log)
    assert (report.verdict, report.exit_code) == ("INCONCLUSIVE", 3)
    assert [(claim.line, claim.says) for claim in report.claims] == [(1, "fp8")]
    assert {finding.code for finding in report.findings} == {"no-gpu-kernels"}
    notes = " ".join(report.notes)
    assert "steps 1 to 7" in notes
    assert "3.125" in notes
    assert error[:30] in notes


def test_the_error_that_a_log_ends_with_is_named_beside_a_trace(
    build: TraceBuilder,
) -> None:
    report = build.linear(64, 32, 16, fp8=True).report(log=LOG.format("boom"))
    assert report.verdict == "ACTIVE"
    assert any("RuntimeError: boom" in note for note in report.notes)

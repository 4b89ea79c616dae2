"""The breakdown of HolisticTraceAnalysis in our report."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fp8verify import inspect
from tests.captures import ROOT
from tests.command_line import PATIENCE_S


def test_the_breakdown_of_each_rank_is_in_the_report() -> None:
    pytest.importorskip(
        "hta", reason="HolisticTraceAnalysis is not installed (the hta extra)"
    )
    from fp8verify.integrations.hta import add_breakdown

    folder = ROOT / "ddp_one_rank_bf16"
    report = add_breakdown(inspect(folder), [folder])
    assert report.breakdown is not None
    assert [rank.rank for rank in report.breakdown.ranks] == [0, 1]
    for rank, found in zip(report.ranks, report.breakdown.ranks, strict=True):
        parts = found.idle_us + found.compute_us + found.non_compute_us
        assert parts == pytest.approx(found.span_us)
        busy_us = found.span_us - found.idle_us
        assert busy_us <= sum(rank.gpu_time_us.values()) + sum(
            rank.copy_time_us.values()
        )
        assert found.communication_overlap_percent is not None


def test_without_hta_the_option_says_what_to_install() -> None:
    hidden = (
        "import sys; sys.modules['hta'] = None\n"
        f"sys.argv = ['fp8verify', 'inspect', {str(ROOT / 'fp8_compiled')!r}, '--breakdown']\n"
        "from fp8verify.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert "--breakdown needs a package" in first
    assert "HolisticTraceAnalysis".lower() in second.lower()

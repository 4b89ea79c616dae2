"""What the text form shows of the diagnosis: a line each at a glance, tables when asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import Report, inspect
from fp8verify.report.forms import RenderOptions, render
from tests.hand_built import BF16, FP32, TraceBuilder
from tests.unit.test_communication import GATHER, MB, SCATTER, collective
from tests.unit.test_tax import COPY, INSIDE


@pytest.fixture
def report(build: TraceBuilder, tmp_path: Path) -> Report:
    build.step(1).linear(64, 48, 16, fp8=True).step(2).linear(64, 32000, 16, fp8=True)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=15)
    collective(build, GATHER, "Byte", MB, 2 * MB)
    collective(build, SCATTER, "Float", 2 * MB, MB)
    return inspect(build.write(tmp_path / "trace.json"))


def test_a_glance_has_a_line_for_the_gain_and_one_for_the_network(report: Report) -> None:
    text = " ".join(render(report, "text").split())
    assert "pays likely not: the GPU is idle for 88% of the window; its kernels alone" in text
    assert "1 of 1 MB all-gathered in FP8 (1.00 bytes a parameter)" in text


def test_tables_are_for_those_who_ask(report: Report) -> None:
    for heading in ("FP8 overhead", "collective ", "layers (N x K)", "limits "):
        assert heading not in render(report, "text")
        assert heading in render(report, "text", RenderOptions(verbose=True))


def test_information_has_its_hint_only_for_those_who_ask(report: Report) -> None:
    assert "[lm-head-fp8]" in render(report, "text")
    assert "for accuracy" not in render(report, "text")
    assert "for accuracy" in render(report, "text", RenderOptions(verbose=True))

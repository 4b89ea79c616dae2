"""`fp8verify compare` on captures: the verdict, both forms, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fp8verify.cli.group import cli
from fp8verify.errors import Fp8VerifyError, UsageError

TRUTH = Path(__file__).parent.parent.parent.parent / "shared" / "truth"
KNOWN = pytest.mark.skipif(not TRUTH.is_dir(), reason="the known-answer captures are not here")


def call(*args: object) -> Result:
    return CliRunner().invoke(cli, ["compare", *map(str, args)], catch_exceptions=True)


def as_json(*args: object) -> dict[str, Any]:
    result = call(*args, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_captures_that_ship_give_steps_gemms_and_losses(captures: Path) -> None:
    found = as_json(captures / "bf16_width4096", captures / "fp8_width4096")
    assert found["outcome"] == "FASTER"
    assert found["gemm_speedup"] == pytest.approx(1.99, abs=0.01)
    assert found["work_ratio"] == 1.0
    assert {pair["leg"] for pair in found["gemms"]} == {"fprop", "dgrad", "wgrad"}
    assert all(1.6 < pair["speedup"] < 2.3 for pair in found["gemms"])
    assert (found["loss"]["steps"], found["loss"]["last_step"]) == (18, 18)
    assert found["findings"] == []


def test_the_text_fits_a_screen_of_80_columns(captures: Path) -> None:
    result = call(captures / "bf16_width4096", captures / "fp8_width4096")
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert "FASTER  a step takes" in result.output
    assert "1.99x" in result.output
    assert "loss at 18 equal steps" in result.output


def test_a_gain_within_the_spread_of_the_steps_is_none(captures: Path) -> None:
    found = as_json(captures / "bf16_compiled", captures / "fp8_compiled")
    assert found["outcome"] == "UNDECIDED"
    assert found["gemm_speedup"] > 1.7


def test_a_file_gets_what_standard_output_would(captures: Path, tmp_path: Path) -> None:
    pair = (captures / "bf16_compiled", captures / "fp8_compiled")
    assert call(*pair, "-o", tmp_path / "out.txt").output == ""
    assert (tmp_path / "out.txt").read_text() == call(*pair).output


def test_logs_and_a_regex_of_ones_own(captures: Path, tmp_path: Path) -> None:
    for name, offset in (("a.log", 0.0), ("b.log", 0.5)):
        lines = [f"it={step} nll={3.0 - step + offset}\n" for step in range(3)]
        (tmp_path / name).write_text("".join(lines))
    found = as_json(
        captures / "bf16_compiled", captures / "fp8_compiled",
        "--baseline-log", tmp_path / "a.log", "--candidate-log", tmp_path / "b.log",
        "--loss-regex", r"it=(?P<step>\d+) nll=(?P<loss>\S+)",
    )  # fmt: skip
    assert (found["loss"]["steps"], found["loss"]["mean_gap"]) == (3, 0.5)


def test_different_models_exit_with_3(captures: Path) -> None:
    result = call(captures / "bf16_compiled", captures / "fp8_accelerate")
    assert result.exit_code == 3
    assert "NOT COMPARABLE" in result.output
    assert result.output.splitlines()[0].endswith(" · fp8_accelerate against bf16_compiled")


@pytest.mark.parametrize("name", ["out.xml"])
def test_a_file_whose_name_asks_for_a_form_there_is_not_is_a_usage_error(
    captures: Path, tmp_path: Path, name: str
) -> None:
    pair = captures / "bf16_compiled", captures / "fp8_compiled"
    result = call(*pair, "-o", tmp_path / name)
    assert isinstance(result.exception, UsageError)
    assert "which is no format of this result" in result.exception.fact
    assert ".html .htm .json" in result.exception.hint
    assert call(*pair, "-o", tmp_path / name, "--format", "text").exit_code == 0


@pytest.mark.parametrize("bad", ["nowhere.json", "README.md"])
def test_what_is_no_trace_is_a_usage_error(captures: Path, bad: str) -> None:
    result = call(captures / "bf16_compiled", captures / bad)
    assert isinstance(result.exception, Fp8VerifyError)
    assert result.exception.exit_code == 2


def test_a_bad_regex_is_a_usage_error(captures: Path) -> None:
    result = call(captures / "bf16_compiled", captures / "fp8_compiled", "--loss-regex", "(")
    assert isinstance(result.exception, Fp8VerifyError)


@KNOWN
@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [("bf16_tiny", "fp8_tiny"), ("bf16_compile", "fp8_tensorwise_compile")],
)
def test_two_steps_a_side_decide_nothing(baseline: str, candidate: str) -> None:
    found = as_json(TRUTH / f"{baseline}.json.gz", TRUTH / f"{candidate}.json.gz")
    assert (found["outcome"], found["findings"], found["interval"]) == ("UNDECIDED", [], None)
    assert len(found["gemms"]) >= 6

"""`fp8verify run` as a user meets it: the shipped example on the CPU, and wrong ways to call it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.capture.files import read_ranks
from tests.captures import ROOT
from tests.command_line import fp8verify
from tests.shared_torch import python_with_torch

EXAMPLE = ROOT.parent / "examples" / "train_gpt.py"


def run(folder: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return fp8verify("run", *args, cwd=folder)


@pytest.mark.train
def test_a_cpu_training_is_captured_and_inconclusive(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--steps", "3-4", "--trace-dir", "capture",
        "--format", "json", "-o", "report.json",
        python_with_torch(), EXAMPLE, "--precision", "fp8", "--steps", "5", "--device", "cpu",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert [line[:8] for line in done.stdout.splitlines()] == [
        f"step {i:3d}" for i in range(1, 6)
    ]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "INCONCLUSIVE"
    assert report["reason"] == "no GPU kernels in the trace, torch saw no GPU"
    assert "no-gpu-kernels" in {finding["code"] for finding in report["findings"]}
    assert report["ranks"][0]["modules"]["counts"] == {"fp8": 15}
    assert [step["step"] for step in report["ranks"][0]["steps"]] == [3, 4]
    assert "KempnerForge" in {claim["framework"] for claim in report["claims"]}
    names = {path.name for path in (tmp_path / "capture").iterdir()}
    assert {"rank0.json.gz", "rank0.meta.json", "log.txt"} <= names
    command = report["environment"]["command"]
    assert command.endswith("train_gpt.py --precision fp8 --steps 5 --device cpu")
    assert inspect(tmp_path / "capture").environment.command == command


LOOP = ROOT.parent / "tests" / "integration" / "scripts" / "loop.py"


@pytest.mark.train
@pytest.mark.parametrize(("steps", "state"), [(30, "complete"), (5, "never")])
def test_without_options_three_steps_are_recorded_and_a_page_is_written(
    tmp_path: Path, steps: int, state: str
) -> None:
    done = run(
        tmp_path, "--ranks", "0", python_with_torch(), LOOP, "--steps", f"{steps}"
    )

    assert done.returncode == 3, done.stderr
    (capture,) = tmp_path.glob("fp8verify-capture-*")
    page = capture / "report.html"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    *_, named, _, last = done.stderr.splitlines()
    assert "".join(named.split()).endswith("report.html")
    assert last.startswith("exit 3: ")
    (window,) = read_ranks(capture)[0].windows
    assert (window.state, window.last - window.first) == (state, 2)
    assert 7 <= window.first <= 20
    if state == "never":
        assert (
            window.reason
            == "the run ended after step 5, before its step time was stable"
        )

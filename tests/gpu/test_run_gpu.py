"""`fp8verify run` on a real GPU: trainings whose precision is known, and what attaching leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.attached import ROOT, SCRIPTS, annotations, environment, operators

workloads = pytest.importorskip(
    "benchmarks.gpu.workloads",
    reason="needs torch, from the train extra",
    exc_type=ImportError,
)
pytestmark = pytest.mark.gpu

GPT = ROOT / "examples" / "train_gpt.py"
WORKLOADS = ROOT / "benchmarks" / "gpu" / "workloads.py"
PARTS = [f"attn.{part}_proj" for part in "qkvo"]
PARTS += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
NAMES = [*(f"layers.{block}.{part}" for block in range(2) for part in PARTS), "head"]
LINEARS = len(NAMES)  # of train_gpt.py: two blocks of seven, and the head


class Verified(NamedTuple):
    code: int
    report: dict[str, Any]
    stdout: str
    stderr: str
    capture: Path


def verify(
    folder: Path, steps: str, *command: object, options: tuple[str, ...] = ()
) -> Verified:
    """Run a training attached, in `folder`."""
    capture, report = folder / "capture", folder / "report.json"
    ours = [
        "--steps",
        steps,
        "--trace-dir",
        capture,
        "--format",
        "json",
        "-o",
        report,
        *options,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "fp8verify", "run", *map(str, ours), *map(str, command)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert report.exists(), done.stderr
    return Verified(
        done.returncode,
        json.loads(report.read_text()),
        done.stdout,
        done.stderr,
        capture,
    )


def legs_by_layer(verified: Verified) -> dict[str, dict[str, dict[str, int]]]:
    """Return the launches of each layer by leg and precision class."""
    rows = verified.report["ranks"][0]["named_layers"]["rows"]
    return {
        row["layer"]: {leg["leg"]: leg["kernels"] for leg in row["legs"]}
        for row in rows
    }


def in_every_leg(precision: str, count: int) -> dict[str, dict[str, int]]:
    return {leg: {precision: count} for leg in ("fprop", "dgrad", "wgrad")}


@pytest.mark.parametrize(
    ("switches", "verdict", "code"),
    [
        (("--precision", "fp8"), "ACTIVE", 0),
        (("--precision", "bf16"), "INACTIVE", 1),
        (("--precision", "fp8", "--skip-layers", ".*"), "CONTRADICTED", 1),
        (("--precision", "fp8", "--emulate"), "EMULATED", 1),
    ],
    ids=["fp8", "bf16", "filter rejects all", "emulated"],
)
def test_a_compiled_gpt_gets_the_verdict_it_deserves(
    tmp_path: Path, switches: tuple[str, ...], verdict: str, code: int
) -> None:
    verified = verify(tmp_path, "10-12", GPT, "--compile", *switches)

    assert (verified.report["verdict"], verified.code) == (verdict, code)
    assert [step["step"] for step in verified.report["ranks"][0]["steps"]] == [
        10,
        11,
        12,
    ]
    if verdict == "ACTIVE":
        found = {
            name: count
            for name, count in verified.report["gemm"]["kernels"].items()
            if count
        }
        assert found == {"fp8": 3 * 3 * LINEARS}


@pytest.mark.parametrize("name", sorted(workloads.PRECISION))
def test_every_gemm_of_a_known_workload_is_found(tmp_path: Path, name: str) -> None:
    verified = verify(tmp_path, "5-7", WORKLOADS, name)

    found = {
        name: count
        for name, count in verified.report["gemm"]["kernels"].items()
        if count
    }
    assert found == {workloads.PRECISION[name]: 3 * workloads.GEMMS_A_STEP}


def test_nothing_of_ours_is_printed(tmp_path: Path) -> None:
    verified = verify(tmp_path, "3,5-6", GPT, "--precision", "fp8", "--steps", "7")

    assert [line[:8] for line in verified.stdout.splitlines()] == [
        f"step {step:3d}" for step in range(1, 8)
    ]
    for ours in ("profiler.py", "Profiler clears", "USDT:", "PYTORCH_API_USAGE"):
        assert ours not in verified.stderr


def test_layers_are_named_and_told_that_stay_in_high_precision(
    tmp_path: Path,
) -> None:
    left = ("layers.1.attn.k_proj", "head")
    skip = ("--skip-layers", "|".join(map(re.escape, left)))
    verified = verify(
        tmp_path,
        "3-3",
        GPT,
        "--precision",
        "fp8",
        *skip,
        options=("--layers",),
    )

    named = verified.report["ranks"][0]["named_layers"]
    assert (named["source"], named["note"]) == ("window", None)
    assert (named["gemms"], named["unjoined"]) == (3 * LINEARS, 0)
    assert legs_by_layer(verified) == {
        name: in_every_leg("bf16" if name in left else "fp8", 1) for name in NAMES
    }
    messages = [
        found["message"]
        for found in verified.report["findings"]
        if found["code"] == "layer-not-fp8" and found["severity"] == "info"
    ]
    assert len(messages) == 1
    assert all(name in messages[0] for name in left)


def test_optimizers_that_step_on_autograds_thread_are_recorded_whole(
    tmp_path: Path,
) -> None:
    verified = verify(tmp_path, "3-4", SCRIPTS / "in_backward.py")

    trace = verified.capture / "rank0.json.gz"
    found = operators(trace)
    assert annotations(trace, "ProfilerStep#") == ["3", "4"]
    # Three linear layers, the first of which needs no gradient of its input.
    assert (found["aten::addmm"], found["aten::mm"]) == (2 * 3, 2 * 5)


def test_steps_replayed_as_a_cuda_graph_are_counted_and_recorded(
    tmp_path: Path,
) -> None:
    verified = verify(tmp_path, "6-7", SCRIPTS / "cuda_graph.py")

    trace = verified.capture / "rank0.json.gz"
    (clock,) = [rank["clock"] for rank in verified.report["ranks"]]
    assert clock["steps_seen"] == 3 + 9  # the warm-up of the graph and its replays
    assert annotations(trace, "ProfilerStep#") == ["6", "7"]
    assert verified.report["gemm"]["kernels"]
    assert "replayed as a CUDA graph" in " ".join(verified.report["notes"])


def test_updates_after_a_replayed_backward_pass_are_counted(tmp_path: Path) -> None:
    verified = verify(tmp_path, "4-5", SCRIPTS / "cuda_graph_backward.py")

    trace = verified.capture / "rank0.json.gz"
    (clock,) = [rank["clock"] for rank in verified.report["ranks"]]
    assert clock["steps_seen"] == 9
    assert annotations(trace, "ProfilerStep#") == ["4", "5"]
    assert verified.report["gemm"]["kernels"]


@pytest.mark.parametrize("where", ["main", "threads"])
def test_a_run_that_ends_while_its_window_is_prepared_ends_as_plain(
    where: str, tmp_path: Path
) -> None:
    for number in range(4):  # CUPTI's own thread crashed most of them, not all
        folder = tmp_path / str(number)
        folder.mkdir()
        script = (SCRIPTS / "ends_early.py", where)
        verified = verify(folder, "6-7", *script, options=("--exit-zero",))
        assert (verified.code, verified.stdout) == (0, "done\n"), verified.stderr


def test_a_training_on_the_cpu_leaves_cuda_uninitialized(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(9):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
        "print(torch.cuda.is_initialized())\n"
    )
    verified = verify(tmp_path, "3-4", script, options=("--exit-zero",))
    assert (verified.code, verified.stdout) == (0, "False\n"), verified.stderr

"""The runner on real torch: the run does what it does without us, and the capture tells it."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from fp8verify.runner import RankMeta, read_meta

pytest.importorskip("torch", reason="needs torch, from the train extra")
pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"


class Run(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Attached(NamedTuple):
    run: Run
    capture: Path

    def meta(self, rank: int = 0) -> RankMeta:
        return read_meta(self.capture / f"rank{rank}.meta.json")

    @property
    def states(self) -> list[str]:
        return [window.state for window in self.meta().windows]


def execute(*command: object, cwd: Path) -> Run:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, timeout=120
    )
    return Run(done.returncode, done.stdout.decode(), scrub(done.stderr.decode()))


def scrub(text: str) -> str:
    """Take out what differs between any two runs: times, process ids, addresses."""
    kineto, dynamo = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+", r"W\d{4} [\d:.]+ \d+"
    return re.sub(rf"{kineto}|{dynamo}|0x[0-9a-f]+", "…", text)


def attach(tmp_path: Path, windows: str, *command: object, ranks: str = "0") -> Attached:
    capture = tmp_path / "capture"
    driver = [sys.executable, SCRIPTS / "attach.py", windows, ranks, capture]
    return Attached(execute(*driver, *command, cwd=tmp_path), capture)


def compare(tmp_path: Path, windows: str, *arguments: object) -> Attached:
    """Run a script with and without us and return the attached run, having compared the two."""
    plain = execute(sys.executable, *arguments, cwd=tmp_path)
    attached = attach(tmp_path, windows, *arguments)
    assert attached.run == plain
    return attached


def steps_in(trace: Path) -> list[str]:
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    return [name for name in names if name.startswith("ProfilerStep#")]


@pytest.mark.parametrize(
    "switches",
    [
        (),
        ("--accumulate", 3),
        ("--two-optimizers",),
        ("--compile", "model"),
        ("--compile", "step"),
        ("--compile", "train_step"),
        ("--workers", "spawn"),
        ("--workers", "fork"),
    ],
    ids=lambda switches: " ".join(map(str, switches)) or "plain",
)
def test_a_window_holds_exactly_its_steps(tmp_path: Path, switches: tuple[object, ...]) -> None:
    attached = compare(tmp_path, "3-4", SCRIPTS / "loop.py", *switches)

    assert attached.run.code == 0
    assert attached.states == ["complete"]
    assert attached.meta().steps_seen == 6
    assert steps_in(attached.capture / "rank0.json.gz") == ["ProfilerStep#3", "ProfilerStep#4"]
    assert sorted(p.name for p in attached.capture.iterdir() if p.name != "notes.test") == [
        "log.txt",
        "rank0.json.gz",
        "rank0.meta.json",
    ]


def test_a_step_whose_update_the_scaler_skips_counts(tmp_path: Path) -> None:
    attached = compare(tmp_path, "4", SCRIPTS / "loop.py", "--scaler-skips", 1, 2, 5)

    assert attached.meta().steps_seen == 6
    assert attached.meta().steps_skipped == 3
    assert attached.meta().optimizer_updates == {"AdamW": 3}
    assert steps_in(attached.capture / "rank0.json.gz") == ["ProfilerStep#4"]


def test_several_windows_write_a_trace_each(tmp_path: Path) -> None:
    attached = compare(tmp_path, "1,3-4,5", SCRIPTS / "loop.py")

    assert attached.states == ["complete"] * 3
    traces = [window.trace for window in attached.meta().windows]
    assert traces == ["rank0.json.gz", "rank0.w2.json.gz", "rank0.w3.json.gz"]
    assert [steps_in(attached.capture / str(trace)) for trace in traces] == [
        ["ProfilerStep#1"],
        ["ProfilerStep#3", "ProfilerStep#4"],
        ["ProfilerStep#5"],
    ]


def test_the_trace_says_which_steps_it_holds(tmp_path: Path) -> None:
    attached = attach(tmp_path, "3-4", SCRIPTS / "loop.py")

    with gzip.open(attached.capture / "rank0.json.gz") as file:
        metadata = json.load(file)["fp8verify"]
    assert metadata["window"] == [3, 4]
    assert metadata["clock"] == "optimizer"


def test_a_module_is_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text((SCRIPTS / "loop.py").read_text())

    attached = compare(tmp_path, "3", "-m", "training", "--steps", 4)

    assert attached.states == ["complete"]


def test_a_crash_after_the_window_loses_nothing(tmp_path: Path) -> None:
    attached = compare(tmp_path, "3-4", SCRIPTS / "loop.py", "--crash-at", 6)

    assert attached.run.code == 1
    assert "ValueError: crash in step 6" in attached.run.stderr
    assert attached.states == ["complete"]


def test_a_crash_inside_the_window_leaves_what_was_recorded(tmp_path: Path) -> None:
    attached = compare(tmp_path, "3-5", SCRIPTS / "loop.py", "--crash-at", 4)

    (window,) = attached.meta().windows
    assert attached.run.code == 1
    assert (window.state, window.reason) == ("cut", "the run ended inside step 4")
    assert "ProfilerStep#3" in steps_in(attached.capture / str(window.trace))


def test_a_killed_run_keeps_its_trace_and_exits_as_killed(tmp_path: Path) -> None:
    attached = attach(tmp_path, "3-4", SCRIPTS / "loop.py", "--kill-at", 6)

    assert attached.run.code == 128 + 9
    assert attached.states == ["complete"]


def test_a_run_that_ends_too_early_says_where(tmp_path: Path) -> None:
    attached = compare(tmp_path, "10-12", SCRIPTS / "loop.py", "--exit-at", 5)

    (window,) = attached.meta().windows
    assert attached.run.code == 4
    assert (window.state, window.reason) == ("never", "the run ended after step 4")


def test_a_run_without_training_is_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:], 'torch' in sys.modules)\nsys.exit(3)\n")

    attached = compare(tmp_path, "3-4", script, "--steps", "a b")

    assert attached.run.code == 3
    assert not list(attached.capture.glob("rank*"))
    assert (
        "no process of the run completed a training step"
        in (attached.capture / "notes.test").read_text()
    )


def test_the_log_keeps_what_was_printed(tmp_path: Path) -> None:
    attached = attach(tmp_path, "3", SCRIPTS / "loop.py", "--float8", "tensorwise")

    log = (attached.capture / "log.txt").read_text()
    assert set(attached.run.stdout.splitlines()) <= set(log.splitlines())
    assert "PYTORCH_API_USAGE torchao.float8.convert_to_float8_training" in log
    assert "PYTORCH_API_USAGE" not in attached.run.stderr


def test_api_usage_that_the_user_asked_for_is_echoed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_API_USAGE_STDERR", "1")

    attached = compare(tmp_path, "3", SCRIPTS / "loop.py")

    assert "PYTORCH_API_USAGE" in attached.run.stderr


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_with_gw_hp"])
def test_the_census_knows_float8_modules(tmp_path: Path, recipe: str) -> None:
    pytest.importorskip("torchao", reason="needs torchao, from the train extra")
    attached = compare(tmp_path, "3", SCRIPTS / "loop.py", "--float8", recipe, "--compile", "model")

    first, second = attached.meta().modules
    assert (first.fqn, first.class_name, first.state) == ("0", "Float8Linear", "fp8_emulated")
    assert (first.in_features, first.out_features, first.param_dtype) == (32, 32, "float32")
    legs = {"tensorwise": ("fprop", "dgrad", "wgrad"), "rowwise_with_gw_hp": ("fprop", "dgrad")}
    assert first.fp8_legs == legs[recipe]
    assert (second.fqn, second.class_name, second.state) == ("2", "Linear", "high_precision")
    assert second.reason == "out_features 24 is not divisible by 16"


@pytest.mark.parametrize(
    ("order", "state"),
    [
        ("during", "cut"),
        ("in-our-warm-up", "skipped"),
        ("before", "skipped"),
        ("before-and-done", "complete"),
        ("after", "complete"),
        ("warming-up", "skipped"),
    ],
)
def test_a_script_that_profiles_itself_keeps_its_trace(
    tmp_path: Path, order: str, state: str
) -> None:
    theirs = tmp_path / "theirs.json"

    attached = compare(tmp_path, "4-6", SCRIPTS / "self_profiling.py", order, theirs)

    assert attached.run.code == 0
    assert attached.states == [state]
    events = json.loads(theirs.read_text())["traceEvents"]
    assert events[-1]["name"] == "Record Window End"
    (window,) = attached.meta().windows
    if window.trace is not None:
        assert "ProfilerStep#4" in steps_in(attached.capture / window.trace)


def test_torchrun_profiles_the_ranks_asked_for(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--nproc-per-node", 2, SCRIPTS / "ddp.py"]

    attached = attach(tmp_path, "3-4", *command)

    assert attached.run.code == 0
    assert attached.run.stdout.count("loss") == 6
    assert attached.states == ["complete"]
    assert [window.state for window in attached.meta(1).windows] == ["skipped"]
    assert [module.fqn for module in attached.meta(1).modules] == ["0"]
    assert attached.meta(1).world_size == 2
    assert [path.name for path in attached.capture.glob("*.gz")] == ["rank0.json.gz"]


def test_accelerate_launch_counts_updates_not_batches(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate, from the test extra")
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", 1]

    attached = attach(tmp_path, "3-4", *launch, SCRIPTS / "accelerated.py")

    assert attached.run.code == 0
    assert attached.meta().steps_seen == 6
    assert attached.states == ["complete"]


def test_steps_that_the_script_announces_are_the_ones_that_count(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "agent = sys.modules['_fp8verify_agent']\n"
        "weight = torch.ones(4, requires_grad=True)\n"
        "for _ in range(5):\n"
        "    weight.square().sum().backward()\n"
        "    weight.data -= 0.1 * weight.grad\n"
        "    agent.step()\n"
    )

    attached = attach(tmp_path, "3-4", script)

    assert (attached.meta().clock, attached.meta().steps_seen) == ("explicit", 5)
    assert attached.states == ["complete"]


def test_a_capture_that_vanishes_is_no_concern_of_the_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, runpy, sys\n"
        "import torch\n"
        "os.path.isdir('capture') and os.rename('capture', 'moved')\n"
        f"sys.argv[1:] = []\nrunpy.run_path({str(SCRIPTS / 'loop.py')!r}, run_name='__main__')\n"
        "os.path.isdir('moved') and os.rename('moved', 'capture')\n"
    )

    attached = compare(tmp_path, "3-4", script)

    assert attached.run.code == 0
    assert "step 6 loss" in attached.run.stdout
    assert not list(attached.capture.glob("rank*"))


def test_an_error_of_ours_inside_the_window_is_noted_and_the_run_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import runpy, sys\n"
        "import torch\n"
        "def fails(*_): raise RuntimeError('no space left on device')\n"
        "torch.profiler._KinetoProfile.export_chrome_trace = fails\n"
        f"sys.argv[1:] = []\nrunpy.run_path({str(SCRIPTS / 'loop.py')!r}, run_name='__main__')\n"
    )

    attached = compare(tmp_path, "2-3,5", script)

    first, second = attached.meta().windows
    assert (first.state, second.state) == ("dropped", "dropped")
    assert first.reason == "optimizer_leaves: RuntimeError: no space left on device"
    assert "stopped observing after step 3" in attached.meta().notes[0]

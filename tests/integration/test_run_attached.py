"""The runner on real torch: the run does what it does without us, and the capture tells it."""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import fp8verify
from fp8verify.capture.files import find_logs, read_meta
from fp8verify.capture.schema import FrameworkSteps, NamingRecord, RankMeta
from fp8verify.record.folder import make_capture_folder
from fp8verify.record.runner_locks import node_name, runner_lock
from fp8verify.report.forms import render
from tests.shared_torch import python_with_torch, runs_compiled_code_eagerly

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
ENDS = (r"json\.gz", r"meta\.json")


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


def attach(
    tmp_path: Path,
    windows: str,
    *command: object,
    ranks: str = "0",
    options: tuple[object, ...] = (),
    fresh: bool = False,
) -> Attached:
    """Run a script attached; `fresh` imports torch anew, else see `tests.shared_torch`."""
    capture = tmp_path / "capture"
    driver = [sys.executable, SCRIPTS / "attach.py", *options, "--python", python(fresh)]
    run = execute(*driver, windows, ranks, capture, *command, cwd=tmp_path)
    return Attached(run, capture)


def compare(
    tmp_path: Path,
    windows: str,
    *arguments: object,
    options: tuple[object, ...] = (),
    fresh: bool = False,
) -> Attached:
    """Run a script with and without us and return the attached run, having compared the two."""
    script, *others = arguments
    if isinstance(script, Path) and script.parent == SCRIPTS and Path not in map(type, others):
        plain = without_us(fresh, *arguments)
    else:
        plain = execute(python(fresh), *arguments, cwd=tmp_path)
    attached = attach(tmp_path, windows, *arguments, options=options, fresh=fresh)
    assert attached.run == plain
    return attached


@functools.cache
def without_us(fresh: bool, *arguments: object) -> Run:
    """Run a script of ours alone; many tests compare with the same run."""
    with tempfile.TemporaryDirectory() as folder:
        return execute(python(fresh), *arguments, cwd=Path(folder))


def python(fresh: bool) -> str | Path:
    return sys.executable if fresh else python_with_torch()


def as_text(capture: Path) -> str:
    """Return the report of a capture with its lines unbroken."""
    text = render(fp8verify.inspect(capture), "text")
    return re.sub(r"\n {9}", " ", text)


def importable(name: str) -> None:
    """Skip where a package cannot be imported; not here, where it would hook torch."""
    if find_spec(name) is None:
        pytest.skip(f"needs {name}, which is not installed")


def annotations_in(trace: Path, prefix: str) -> list[str]:
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    return [name for name in names if name.startswith(prefix)]


def steps_in(trace: Path) -> list[str]:
    return annotations_in(trace, "ProfilerStep#")


def layers_in(trace: Path) -> list[str]:
    return annotations_in(trace, "fp8verify:")


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
    attached = compare(tmp_path, "3-4", SCRIPTS / "loop.py", *switches, fresh=not switches)

    assert attached.run.code == 0
    assert attached.states == ["complete"]
    # A compiled optimizer's step is counted when the next backward pass begins.
    assert attached.meta().steps_seen == (5 if switches[1:] == ("step",) else 6)
    assert steps_in(attached.capture / "rank0.json.gz") == ["ProfilerStep#3", "ProfilerStep#4"]
    assert sorted(p.name for p in attached.capture.iterdir() if p.name != "notes.test") == [
        "log.txt",
        "rank0.json.gz",
        "rank0.meta.json",
    ]
    log = (attached.capture / "log.txt").read_text()
    assert set(attached.run.stdout.splitlines()) <= set(log.splitlines())
    assert "PYTORCH_API_USAGE" not in log + attached.run.stderr


def test_a_step_whose_update_the_scaler_skips_counts(tmp_path: Path) -> None:
    attached = compare(tmp_path, "4", SCRIPTS / "loop.py", "--scaler-skips", 1, 2, 5)

    assert attached.meta().steps_seen == 6
    assert attached.meta().steps_skipped == 3
    assert attached.meta().optimizer_updates == {"AdamW": 3}
    assert "(AdamW.step), window 4; 3 steps skipped by GradScaler" in as_text(attached.capture)
    assert steps_in(attached.capture / "rank0.json.gz") == ["ProfilerStep#4"]


def test_several_windows_write_a_trace_each(tmp_path: Path) -> None:
    attached = compare(tmp_path, "1,3-4,6", SCRIPTS / "loop.py")

    assert attached.states == ["complete"] * 3
    traces = [window.trace for window in attached.meta().windows]
    assert traces == ["rank0.json.gz", "rank0.w2.json.gz", "rank0.w3.json.gz"]
    assert [steps_in(attached.capture / str(trace)) for trace in traces] == [
        ["ProfilerStep#1"],
        ["ProfilerStep#3", "ProfilerStep#4"],
        ["ProfilerStep#6"],
    ]


@pytest.mark.parametrize(
    ("windows", "theirs"),
    [("3,5-6", (0, 0)), ("3-7", (5, 7)), ("6", (2, 4))],
    ids=["ours-and-ours", "ours-and-theirs", "theirs-and-ours"],
)
def test_ranges_from_one_profiler_session_into_another_do_no_harm(
    tmp_path: Path, windows: str, theirs: tuple[int, int]
) -> None:
    attached = compare(tmp_path, windows, SCRIPTS / "wide_ranges.py", *theirs)

    assert attached.run.code == 0
    assert {"complete", "cut"} >= set(attached.states)


def test_the_trace_says_which_steps_it_holds(tmp_path: Path) -> None:
    attached = attach(tmp_path, "3-4", SCRIPTS / "loop.py")

    with gzip.open(attached.capture / "rank0.json.gz") as file:
        metadata = json.load(file)["fp8verify"]
    assert metadata["window"] == [3, 4]
    assert metadata["clock"] == "optimizer"


def test_a_module_is_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text((SCRIPTS / "loop.py").read_text())

    attached = attach(tmp_path, "3", "-m", "training", "--steps", 4, fresh=True)

    assert attached.run == without_us(False, SCRIPTS / "loop.py", "--steps", 4)
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


def test_sigterm_inside_a_window_keeps_its_trace_and_ends_the_run(tmp_path: Path) -> None:
    attached = attach(tmp_path, "3-5", SCRIPTS / "loop.py", "--terminate-at", 5, fresh=True)

    (window,) = attached.meta().windows
    assert attached.run.code == 128 + 15
    assert (window.state, window.reason) == ("cut", "SIGTERM ended the run inside step 5")
    assert steps_in(attached.capture / str(window.trace))[:2] == [
        "ProfilerStep#3",
        "ProfilerStep#4",
    ]


def test_sigterm_ends_a_run_that_hangs_inside_a_window(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, os, sys, threading\n"
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for step in range(1, 7):\n"
        "    weight.square().sum().backward()\n"
        "    optimizer.step()\n"
        "    if step == 3:\n"
        "        lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)\n"
        "        libc.pthread_mutex_lock(lock)\n"
        "        agent = [m for m in sys.modules.values() if hasattr(m, 'TerminationGuard')]\n"
        "        [m for m in agent if hasattr(m, 'PATIENCE_S')][0].PATIENCE_S = 1\n"
        "        threading.Timer(0.5, os.kill, (os.getpid(), 15)).start()\n"
        "        libc.pthread_mutex_lock(lock)\n"
    )

    attached = attach(tmp_path, "3-5", script, fresh=True)

    assert attached.run.code == 128 + 15
    assert attached.meta().windows[0].reason == "the process was killed inside the window"


def test_a_handler_of_the_script_for_sigterm_is_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for step in range(1, 7):\n"
        "    weight.square().sum().backward()\n"
        "    optimizer.step()\n"
        "    if step == 3:\n"
        "        signal.signal(signal.SIGTERM, lambda *_: sys.exit(step))\n"
        "print(signal.getsignal(signal.SIGTERM).__name__)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )

    attached = compare(tmp_path, "3-5", script)

    assert attached.run.code == 6
    assert attached.states == ["complete"]


@pytest.mark.parametrize("optimizer", ["SGD", "LBFGS"])
def test_a_window_that_grows_beyond_its_limit_is_cut(tmp_path: Path, optimizer: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        f"optimizer = torch.optim.{optimizer}([weight], lr=1e-3)\n"
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = weight.square()\n"
        "    for _ in range(150):\n"
        "        loss = loss * 1.01\n"
        "    loss = loss.sum()\n"
        "    loss.backward()\n"
        "    return loss\n"
        "for step in range(1, 7):\n"
        "    print(optimizer.step(closure).item())\n"
    )

    attached = compare(tmp_path, "3-6", script, options=("--max-trace-mb", 1))

    (window,) = attached.meta().windows
    assert attached.run.code == 0
    assert window.state == "cut"
    after = {"SGD": 3, "LBFGS": 2}[optimizer]  # LBFGS calls the closure many times in a step
    reason = f"its trace would exceed 1 MB (--max-trace-mb) after step {after}"
    assert window.reason == reason
    assert steps_in(attached.capture / str(window.trace)) == ["ProfilerStep#3"]


def test_a_run_that_ends_inside_a_window_is_headed_by_the_steps_it_made(tmp_path: Path) -> None:
    attached = compare(tmp_path, "5-8", SCRIPTS / "loop.py")

    assert attached.meta().windows[0].state == "cut"
    assert "steps 5-6 " in as_text(attached.capture).splitlines()[0]


def test_a_run_that_ends_too_early_says_where(tmp_path: Path) -> None:
    attached = compare(tmp_path, "10-12", SCRIPTS / "loop.py", "--exit-at", 5)

    (window,) = attached.meta().windows
    assert attached.run.code == 4
    assert (window.state, window.reason) == ("never", "the run ended after step 4")


def test_a_run_without_training_is_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:], 'torch' in sys.modules)\nsys.exit(3)\n")

    attached = compare(tmp_path, "3-4", script, "--steps", "a b", fresh=True)

    assert attached.run.code == 3
    assert not list(attached.capture.glob("rank*"))
    assert (
        "the command ended with 3 before its first training step"
        in (attached.capture / "notes.test").read_text()
    )


def test_a_training_without_an_optimizer_is_told_of_the_way_out(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.ones(2).sum().item())\n")

    attached = compare(tmp_path, "3-4", script)

    note = (attached.capture / "notes.test").read_text()
    assert "no torch.optim optimizer stepped" in note
    assert "fp8verify.step()" in note


def test_torchaos_conversion_is_known_by_its_call(tmp_path: Path) -> None:
    attached = compare(tmp_path, "3", SCRIPTS / "loop.py", "--float8", "tensorwise")

    assert attached.meta().api_calls == ("torchao.float8.convert_to_float8_training",)
    (claim,) = fp8verify.inspect(attached.capture).claims
    assert (claim.source, claim.says, claim.line) == ("torchao's call", "fp8", 0)


def test_what_kineto_says_of_a_session_on_another_thread_is_not_heard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, runpy, sys, threading\n"
        "import torch\n"
        f"train = lambda: runpy.run_path({str(SCRIPTS / 'loop.py')!r}, run_name='__main__')\n"
        "sys.argv[1:] = []\n"
        "thread = threading.Thread(target=train)\n"
        "thread.start()\n"
        "thread.join()\n"
    )

    attached = compare(tmp_path, "3,5", script)

    assert attached.states == ["complete", "complete"]


def test_api_usage_that_the_user_asked_for_is_echoed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_API_USAGE_STDERR", "1")
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.nn.Linear(2, 2)\n")

    attached = compare(tmp_path, "3", script, fresh=True)

    assert "PYTORCH_API_USAGE" in attached.run.stderr


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_with_gw_hp"])
def test_the_census_knows_float8_modules(tmp_path: Path, recipe: str) -> None:
    pytest.importorskip("torchao", reason="needs torchao, from the train extra")
    attached = compare(tmp_path, "3", SCRIPTS / "loop.py", "--float8", recipe, "--compile", "model")

    first, second = attached.meta().modules
    assert (first.fqn, first.class_name, first.state) == ("0", "Float8Linear", "fp8_emulated")
    assert (first.in_features, first.out_features) == (32, 32)
    legs = {"tensorwise": ("fprop", "dgrad", "wgrad"), "rowwise_with_gw_hp": ("fprop", "dgrad")}
    assert first.fp8_legs == legs[recipe]
    assert (second.fqn, second.class_name, second.state) == ("2", "Linear", "high_precision")
    assert second.reason == "out_features 24 is not divisible by 16"


@pytest.mark.parametrize(
    ("order", "windows"),
    [
        ("during", [("fp8verify", "cut", 4, 6), ("script", "complete", 5, 6)]),
        ("in-our-warm-up", [("fp8verify", "complete", 6, 8)]),
        ("before", [("fp8verify", "complete", 8, 10), ("script", "complete", 3, 5)]),
        ("before-and-done", [("fp8verify", "complete", 4, 6)]),
        ("after", [("fp8verify", "complete", 4, 6)]),
        ("warming-up", [("script", "complete", 5, 6)]),
    ],
)
def test_a_script_that_profiles_itself_keeps_its_trace(
    tmp_path: Path, order: str, windows: list[tuple[str, str, int, int]]
) -> None:
    theirs = tmp_path / "theirs.json"

    attached = compare(tmp_path, "4-6", SCRIPTS / "self_profiling.py", order, theirs)

    assert attached.run.code == 0
    found = attached.meta().windows
    assert [(w.profiler, w.state, w.first, w.last) for w in found] == windows
    events = json.loads(theirs.read_text())["traceEvents"]
    assert events[-1]["name"] == "Record Window End"
    for window in found:
        trace = attached.capture / str(window.trace)
        if window.profiler == "script":
            assert trace.read_bytes() == theirs.read_bytes()
            assert any(f"whose trace {theirs} was copied" in n for n in attached.meta().notes)
        else:
            assert f"ProfilerStep#{window.first}" in steps_in(trace)


def test_torchrun_profiles_the_ranks_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_EXEC", str(python_with_torch()))  # torchrun's, for its workers
    command = ["-m", "torch.distributed.run", "--nproc-per-node", 2, SCRIPTS / "ddp.py"]

    attached = attach(tmp_path, "3-4", *command, fresh=True)

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
        "import fp8verify, torch\n"
        "weight = torch.ones(4, requires_grad=True)\n"
        "for _ in range(5):\n"
        "    weight.square().sum().backward()\n"
        "    weight.data -= 0.1 * weight.grad\n"
        "    fp8verify.step()\n"
    )

    attached = compare(tmp_path, "3-4", script)

    assert (attached.meta().clock, attached.meta().steps_seen) == ("explicit", 5)
    assert "clock    fp8verify.step(), window 3-4" in as_text(attached.capture)
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


@pytest.mark.parametrize("options", [(), ("--debug",)], ids=["", "debug"])
def test_an_error_of_ours_inside_the_window_is_noted_and_the_run_goes_on(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import runpy, sys\n"
        "import torch\n"
        "def fails(*_): raise RuntimeError('no space left on device')\n"
        "torch.profiler._KinetoProfile.export_chrome_trace = fails\n"
        f"sys.argv[1:] = []\nrunpy.run_path({str(SCRIPTS / 'loop.py')!r}, run_name='__main__')\n"
    )

    attached = compare(tmp_path, "2-3,5", script, options=options)

    first, second = attached.meta().windows
    assert (first.state, second.state) == ("dropped", "dropped")
    fact = "optimizer_leaves: RuntimeError: no space left on device (windows/export.py:"
    assert str(first.reason).startswith(fact)
    (note,) = attached.meta().notes
    assert note.startswith(f"stopped observing after step 3: {fact}")
    logs = [path.read_text() for path in attached.capture.glob("debug.*.log")]
    if not options:
        assert note.endswith("run with --debug for the traceback")
        assert not logs
        return
    assert re.search(r"its traceback is in debug\.\S+\.log$", note)
    (log,) = logs
    assert "hook optimizer_leaves: " in log
    assert "start window 1 after step 1\n" in log
    assert "optimizer_leaves failed\nTraceback (most recent call last):\n" in log
    assert ", in fails\n" in log


@pytest.mark.parametrize("switches", [(), ("--function",)], ids=["method", "function"])
def test_optimizers_that_step_in_the_backward_pass_make_one_step_of_it(
    tmp_path: Path, switches: tuple[str, ...]
) -> None:
    attached = compare(tmp_path, "3-4", SCRIPTS / "in_backward.py", *switches)

    assert attached.states == ["complete"]
    assert attached.meta().steps_seen == 6
    assert attached.meta().optimizer_updates == {"SGD": 36}
    assert "inside the backward pass" in attached.meta().notes[0]
    assert steps_in(attached.capture / "rank0.json.gz") == ["ProfilerStep#3", "ProfilerStep#4"]
    assert matrix_products(attached.capture / "rank0.json.gz") == 2 * 3 * 3 - 2


def matrix_products(trace: Path) -> int:
    """Count them: three layers have three each, but the first needs no gradient of its input."""
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    return sum(event["name"] in {"aten::mm", "aten::addmm"} for event in events)


def test_a_scaler_with_an_update_of_its_own_is_heard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
        "torch.distributed.init_process_group(\n"
        "    'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "scaler = ShardedGradScaler('cpu', init_scale=4.0)\n"
        "for step in range(1, 7):\n"
        "    scaler.scale(weight.square().sum()).backward()\n"
        "    if step == 2:\n"
        "        weight.grad.fill_(float('inf'))\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
        "    optimizer.zero_grad()\n"
        "    print(step, weight.sum().item(), scaler.get_scale())\n"
        "torch.distributed.destroy_process_group()\n"
    )

    attached = compare(tmp_path, "3-4", script)

    assert (attached.meta().steps_seen, attached.meta().steps_skipped) == (6, 1)
    assert attached.states == ["complete"]
    (window,) = json.loads((attached.capture / "rank0.numerics.json").read_text())["windows"]
    # Heard when update() begins, which halves the scale after step 2.
    assert (window["loss_scales_before"], window["loss_scales"]) == ([4.0], [2.0])


def test_a_window_by_time_begins_when_its_time_has_come(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time, torch\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "begun = time.time()\n"
        "for step in range(1, 8):\n"
        "    weight.square().sum().backward()\n"
        "    if step == 4:\n"
        "        time.sleep(max(0, 4 - (time.time() - begun)))\n"
        "    optimizer.step()\n"
    )

    attached = attach(tmp_path, "-", script, options=("--after-seconds", 4))

    (window,) = attached.meta().windows
    assert (window.first, window.last, window.state) == (6, 7, "complete")


def test_ranks_whose_clocks_differ_record_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", 2, SCRIPTS / "ddp_by_time.py"]

    monkeypatch.setenv("PYTHON_EXEC", str(python_with_torch()))  # torchrun's, for its workers

    attached = attach(tmp_path, "-", *launch, ranks="all", options=("--after-seconds", 4))

    assert attached.run.code == 0
    windows = [attached.meta(rank).windows[0] for rank in (0, 1)]
    assert [window.state for window in windows] == ["complete", "complete"]
    assert windows[0].first == windows[1].first > 2
    report = fp8verify.inspect(attached.capture)
    assert "windows-differ" not in {finding.code for finding in report.findings}


def test_a_window_whose_time_never_comes_says_so(tmp_path: Path) -> None:
    attached = compare(tmp_path, "-", SCRIPTS / "loop.py", options=("--after-seconds", 3600))

    (window,) = attached.meta().windows
    assert window.state == "never"
    assert window.reason == "the run ended after step 6, before 3600 seconds had passed"


@pytest.mark.parametrize("switches", [(), ("--accumulate", 2)], ids=["once", "twice"])
def test_layers_of_an_eager_model_are_named_in_the_window(
    tmp_path: Path, switches: tuple[object, ...]
) -> None:
    attached = compare(tmp_path, "3-4", SCRIPTS / "loop.py", *switches, options=("--layers",))

    passes = 2 * (switches[1] if switches else 1)  # type: ignore[operator]
    assert layers_in(attached.capture / "rank0.json.gz") == ["fp8verify:0", "fp8verify:2"] * passes
    assert not (attached.capture / "layers").exists()
    meta = attached.meta()
    assert [window.layers for window in meta.windows] == [True]
    assert meta.naming is None


@runs_compiled_code_eagerly
@pytest.mark.parametrize("what", ["model", "train_step"])
def test_layers_of_a_compiled_model_are_named_in_a_step_of_their_own(
    tmp_path: Path, what: str
) -> None:
    attached = compare(
        tmp_path, "3-4", SCRIPTS / "loop.py", "--compile", what, options=("--layers",)
    )

    extra = attached.capture / "layers" / "rank0.json.gz"
    assert attached.states == ["complete"]
    assert layers_in(attached.capture / "rank0.json.gz") == []
    assert steps_in(extra) == ["ProfilerStep#6"]
    assert layers_in(extra) == ["fp8verify:0", "fp8verify:2"]
    meta = attached.meta()
    assert [window.layers for window in meta.windows] == [False]
    assert meta.naming == NamingRecord(step=6, trace="rank0.json.gz")


@runs_compiled_code_eagerly
@pytest.mark.parametrize(("window", "step"), [("4-5", 7), ("5-6", 8)], ids=["inside", "before"])
def test_a_run_that_ends_before_its_layers_are_named_says_so(
    tmp_path: Path, window: str, step: int
) -> None:
    attached = compare(
        tmp_path, window, SCRIPTS / "loop.py", "--compile", "model", options=("--layers",)
    )

    reason = "the run ended after step 6"
    assert attached.meta().naming == NamingRecord(step=step, reason=reason)
    assert not (attached.capture / "layers").exists()


def test_a_torch_that_cannot_run_compiled_code_eagerly_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import runpy, torch\n"
        "vars(torch.compiler).pop('set_stance', None)\n"  # as before torch 2.6
        f"runpy.run_path({str(SCRIPTS / 'loop.py')!r}, run_name='__main__')\n"
    )
    attached = compare(tmp_path, "3-4", script, "--compile", "model", options=("--layers",))
    assert attached.states == ["complete"]
    naming = attached.meta().naming
    assert naming is not None
    assert (naming.trace, "torch 2.6" in str(naming.reason)) == (None, True)


def test_nodes_of_one_job_write_into_one_capture(tmp_path: Path) -> None:
    options = ("--job", "night-7")
    with runner_lock(make_capture_folder(tmp_path / "capture", "night-7").path):  # another node
        first = attach(tmp_path, "3", SCRIPTS / "loop.py", options=options)
        before = {path.name: path.stat().st_mtime_ns for path in first.capture.iterdir()}

        second = attach(tmp_path, "3", SCRIPTS / "loop.py", options=options)

    after = {path.name: path.stat().st_mtime_ns for path in first.capture.iterdir()}
    kept = {name: time for name, time in before.items() if name[0] != "." and name != "notes.test"}
    node = re.escape(node_name())
    assert (first.run.code, second.run.code) == (0, 0)
    assert {name: after[name] for name in kept} == kept
    new = sorted(set(after) - set(before) - {".ended"})
    patterns = [rf"log\.{node}-\d+\.txt", *[rf"rank0\.{node}-\d+\.{end}" for end in ENDS]]
    assert all(map(re.fullmatch, patterns, new))
    assert len(new) == len(patterns)
    assert len(find_logs(first.capture)) == 2


def test_logs_that_torchrun_redirects_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_EXEC", str(python_with_torch()))  # torchrun's, for its workers
    command = ["-m", "torch.distributed.run", "--nproc-per-node", 2]
    redirect = ["--log-dir", tmp_path / "logs", "--redirects", 3]

    attached = attach(tmp_path, "3-4", *command, *redirect, SCRIPTS / "ddp.py")

    assert "loss" not in attached.run.stdout
    logs = {path.name: path.read_text() for path in find_logs(attached.capture)}
    assert logs.pop("log.rank0.out.txt").count("loss") == 6
    assert set(logs) == {"log.txt", "log.rank0.err.txt", "log.rank1.out.txt", "log.rank1.err.txt"}


def test_the_steps_of_transformers_are_named_as_it_names_them(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers, from the test extra")
    script = SCRIPTS / "hf_trainer.py"
    execute(python_with_torch(), script, 4, cwd=tmp_path)

    attached = attach(tmp_path, "2-3", script, 8, "resume")

    (window,) = attached.meta().windows
    assert attached.run.code == 0
    assert window.state == "complete"
    assert window.framework == FrameworkSteps(
        name="transformers", counter="global_step", first=6, last=7
    )
    said = "optimizer steps (AdamW.step), window 2-3 = transformers global_step 6-7"
    assert said in as_text(attached.capture)


@pytest.mark.parametrize("switches", [(), ("--stage", 2)])
def test_deepspeeds_steps_are_counted_and_named_as_it_names_them(
    tmp_path: Path, switches: tuple[object, ...]
) -> None:
    importable("deepspeed")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", 1]

    command = [*launch, SCRIPTS / "deepspeed_engine.py", *switches]
    plain = execute(sys.executable, *command, cwd=tmp_path)
    attached = attach(tmp_path, "3-4", *command, fresh=True)

    meta = attached.meta()
    printed = [run.stdout[run.stdout.index("update 1") :] for run in (plain, attached.run)]
    assert printed[0] == printed[1]
    assert (attached.run.code, plain.code) == (0, 0)
    assert (meta.steps_seen, attached.states) == (6, ["complete"])
    assert [module.fqn for module in meta.modules] == ["0", "2"]
    assert steps_in(attached.capture / "rank0.json.gz") == ["ProfilerStep#3", "ProfilerStep#4"]
    assert meta.windows[0].framework == FrameworkSteps(
        name="deepspeed", counter="global_steps", first=3, last=4
    )


def test_steps_that_deepspeed_skips_are_in_its_own_numbers(tmp_path: Path) -> None:
    importable("deepspeed")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", 2]

    script = [SCRIPTS / "deepspeed_engine.py", "--stage", 2, "--overflow-at", 2]
    attached = attach(tmp_path, "3-4", *launch, *script, ranks="all", fresh=True)

    assert attached.run.code == 0
    assert "window 3-4 = deepspeed global_steps 4-5" in as_text(attached.capture)
    assert [attached.meta(rank).steps_seen for rank in (0, 1)] == [5, 5]


def test_the_steps_of_lightning_are_named_as_it_names_them(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs lightning, from the test extra")

    attached = compare(tmp_path, "3-4", SCRIPTS / "lightning_fit.py")

    (window,) = attached.meta().windows
    assert (attached.meta().steps_seen, window.state) == (6, "complete")
    assert window.framework == FrameworkSteps(
        name="lightning", counter="global_step", first=3, last=4
    )
    said = "optimizer steps (SGD.step), window 3-4 = lightning global_step 3-4"
    assert said in as_text(attached.capture)


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_every_trainer_of_a_process_is_heard_of_without_a_search(
    tmp_path: Path, framework: str
) -> None:
    importable(framework)
    script = SCRIPTS / "two_trainings.py"

    attached = attach(tmp_path, "3-4,9-10", script, framework, options=("--debug",))

    assert (attached.run.code, attached.run.stdout.split()[-2:]) == (0, ["6", "6"])
    numbered = FrameworkSteps(name=framework, counter="global_step", first=3, last=4)
    assert [window.framework for window in attached.meta().windows] == [numbered, numbered]
    (log,) = (path.read_text() for path in attached.capture.glob("debug.*.log"))
    assert "stop window 2 after step 10" in log
    assert "all objects are searched for" not in log

"""The runner on real torch: the run does what it does without us, and the capture tells it."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

import fp8verify
from fp8verify.capture.files import find_logs
from fp8verify.capture.schema import FrameworkSteps
from tests.attached import (
    SCRIPTS,
    TORCHRUN,
    annotations,
    attach,
    compare,
    importable,
    library_that_logs,
    operators,
    python,
    script,
    without_us,
)

pytestmark = pytest.mark.train

LOOP, TRAINERS, DDP = SCRIPTS / "loop.py", SCRIPTS / "trainers.py", SCRIPTS / "ddp.py"
EXPORT_FAILS = """
def fails(*_): raise RuntimeError("no space left on device")
torch.profiler._KinetoProfile.export_chrome_trace = fails
from torch.optim import optimizer  # torch calls it after ours, from the same dictionary
optimizer.register_optimizer_step_post_hook(lambda *_: None)
"""


@pytest.fixture
def _shared_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of torchrun be forks of a process that has imported torch."""
    monkeypatch.setenv("PYTHON_EXEC", str(python()))


# -- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "switches",
    [
        (), ("--accumulate", 3), ("--two-optimizers",), ("--compile", "step"),
        ("--compile", "train_step"), ("--workers", "fork"),
    ],
    ids=lambda switches: " ".join(map(str, switches)) or "plain",
)  # fmt: skip
def test_a_window_holds_exactly_its_steps(
    tmp_path: Path, switches: tuple[object, ...]
) -> None:
    attached = attach(tmp_path, "3-4", LOOP, *switches, fresh=not switches)

    assert attached.run == without_us(False, LOOP, *switches)
    assert (attached.run.code, attached.states) == (0, ["complete"])
    # A compiled optimizer's step is counted when the next backward pass begins.
    assert attached.meta().steps_seen == (5 if switches[1:] == ("step",) else 6)
    assert attached.steps() == [3, 4]
    names = {path.name for path in attached.capture.iterdir()} - {"notes.test"}
    assert names == {"log.txt", "rank0.json.gz", "rank0.meta.json"}
    log = (attached.capture / "log.txt").read_text()
    assert set(attached.run.stdout.splitlines()) <= set(log.splitlines())
    assert "PYTORCH_API_USAGE" not in log + attached.run.stderr
    with gzip.open(attached.capture / "rank0.json.gz") as file:
        metadata = json.load(file)["fp8verify"]
    assert (metadata["window"], metadata["clock"]) == ([3, 4], "optimizer")


@pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is not None,
    reason="this torch loads a cuBLASLt of its own, so the stand-in is a second copy",
)
def test_several_windows_write_a_trace_and_a_log_each(tmp_path: Path) -> None:
    product = (
        f"import ctypes; ctypes.CDLL({str(library_that_logs(tmp_path))!r}).multiply()"
    )
    at = [
        word for step in ("2", "3", "4", "5", "6") for word in ("--at", step, product)
    ]
    attached = attach(tmp_path, "1,3-4,6", LOOP, *at, options=("--blas-log",))

    assert attached.run == without_us(False, LOOP)
    logs = {
        path.name: path.read_text() for path in attached.capture.glob("*.cublaslt.log")
    }
    assert logs == {
        "rank0.w2.cublaslt.log": "product\n" * 2,
        "rank0.w3.cublaslt.log": "product\n",
    }
    assert attached.states == ["complete"] * 3
    traces = [window.trace for window in attached.meta().windows]
    assert traces == ["rank0.json.gz", "rank0.w2.json.gz", "rank0.w3.json.gz"]
    assert list(map(attached.steps, traces)) == [[1], [3, 4], [6]]


def test_a_step_whose_update_the_scaler_skips_counts(tmp_path: Path) -> None:
    attached = compare(tmp_path, "4", LOOP, "--scaler-skips", 1, 2, 5)

    meta = attached.meta()
    assert (meta.steps_seen, meta.steps_skipped, meta.optimizer_updates) == (
        6,
        3,
        {"AdamW": 3},
    )
    assert "(AdamW.step), window 4; 3 steps skipped by GradScaler" in attached.text()
    assert attached.steps() == [4]


def test_a_scaler_with_an_update_of_its_own_is_heard(tmp_path: Path) -> None:
    training = """
        import torch
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
        torch.distributed.init_process_group(
            'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = ShardedGradScaler('cpu', init_scale=4.0)
        for step in range(1, 7):
            scaler.scale(weight.square().sum()).backward()
            if step == 2:
                weight.grad.fill_(float('inf'))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            print(step, weight.sum().item(), scaler.get_scale())
        torch.distributed.destroy_process_group()
    """

    attached = compare(tmp_path, "3-4", script(tmp_path, training))

    assert (attached.meta().steps_seen, attached.meta().steps_skipped) == (6, 1)
    assert attached.states == ["complete"]
    (window,) = json.loads((attached.capture / "rank0.numerics.json").read_text())[
        "windows"
    ]
    # Heard when update() begins, which halves the scale after step 2.
    assert window["loss_scales"] == [2.0]


@pytest.mark.parametrize("switches", [(), ("--function",)], ids=["method", "function"])
def test_optimizers_that_step_in_the_backward_pass_make_one_step_of_it(
    tmp_path: Path, switches: tuple[str, ...]
) -> None:
    attached = compare(tmp_path, "3-4", SCRIPTS / "in_backward.py", *switches)

    meta, found = attached.meta(), operators(attached.capture / "rank0.json.gz")
    assert (attached.states, meta.steps_seen) == (["complete"], 6)
    assert meta.optimizer_updates == {"SGD": 36}
    assert "inside the backward pass" in meta.notes[0]
    assert attached.steps() == [3, 4]
    # Three layers have three products each, but the first needs no gradient of its input.
    assert found["aten::mm"] + found["aten::addmm"] == 2 * 3 * 3 - 2


def test_steps_that_the_script_announces_are_the_ones_that_count(
    tmp_path: Path,
) -> None:
    training = """
        import fp8verify, torch
        weight = torch.ones(4, requires_grad=True)
        for _ in range(5):
            weight.square().sum().backward()
            weight.data -= 0.1 * weight.grad
            fp8verify.step()
    """

    attached = compare(tmp_path, "3-4", script(tmp_path, training))

    assert (attached.meta().clock, attached.meta().steps_seen) == ("explicit", 5)
    assert "steps fp8verify.step(), window 3-4" in attached.text()
    assert attached.states == ["complete"]


@pytest.mark.parametrize(("optimizer", "after"), [("SGD", 3), ("LBFGS", 2)])
def test_a_window_larger_than_its_limit_is_cut(
    tmp_path: Path, optimizer: str, after: int
) -> None:
    """LBFGS calls the closure many times in a step."""
    training = f"""
        import torch
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.{optimizer}([weight], lr=1e-3)
        def closure():
            optimizer.zero_grad()
            loss = weight.square()
            for _ in range(150):
                loss = loss * 1.01
            loss.sum().backward()
            return loss.sum()
        for step in range(1, 7):
            print(optimizer.step(closure).item())
    """

    attached = compare(
        tmp_path, "3-6", script(tmp_path, training), options=("--max-trace-mb", 1)
    )

    reason = f"its trace would exceed 1 MB (--max-trace-mb) after step {after}"
    assert (attached.run.code, attached.window.state, attached.window.reason) == (
        0,
        "cut",
        reason,
    )
    assert attached.steps(attached.window.trace) == [3]


# -- windows by time ------------------------------------------------------------------------------


def test_a_window_by_time_begins_when_its_time_has_come(tmp_path: Path) -> None:
    waits = ("--at", 4, "time.sleep(4)")

    attached = attach(
        tmp_path, "-", LOOP, "--steps", 8, *waits, options=("--after-seconds", 4)
    )

    window = attached.window
    assert (window.first, window.last, window.state) == (6, 7, "complete")


@pytest.mark.usefixtures("_shared_workers")
def test_ranks_whose_clocks_differ_record_the_same_steps(tmp_path: Path) -> None:
    launch = [*TORCHRUN, 2, DDP, "by-time"]

    attached = attach(
        tmp_path, "-", *launch, ranks="all", options=("--after-seconds", 4)
    )

    assert attached.run.code == 0
    windows = [attached.meta(rank).windows[0] for rank in (0, 1)]
    assert [window.state for window in windows] == ["complete", "complete"]
    assert windows[0].first == windows[1].first > 2


def test_a_window_whose_time_never_comes_says_so(tmp_path: Path) -> None:
    attached = compare(tmp_path, "-", LOOP, options=("--after-seconds", 3600))

    reason = "the run ended after step 6, before 3600 seconds had passed"
    assert (attached.window.state, attached.window.reason) == ("never", reason)


# -- how runs end ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "at", "code", "state", "reason"),
    [
        ("3-4", (6, "raise ValueError('crash')"), 1, "complete", None),
        ("3-4", (6, "os.kill(os.getpid(), 9)"), 128 + 9, "complete", None),
        (
            "3-5",
            (4, "raise ValueError('crash')"),
            1,
            "cut",
            "the run ended inside step 4",
        ),
        ("10-12", (5, "sys.exit(4)"), 4, "never", "the run ended after step 4"),
        ("5-8", (6, "pass"), 0, "cut", "the run ended inside step 7"),
    ],
    ids=["crash after", "killed after", "crash inside", "ends before", "ends inside"],
)
def test_a_run_that_ends_early_keeps_what_was_recorded(
    tmp_path: Path,
    windows: str,
    at: tuple[int, str],
    code: int,
    state: str,
    reason: str | None,
) -> None:
    attached = compare(tmp_path, windows, LOOP, "--at", *at)

    window = attached.window
    assert (attached.run.code, window.state, window.reason) == (code, state, reason)
    if window.trace is not None:
        made = attached.steps(window.trace)
        assert made[0] == window.first
        if code == 0:
            assert attached.text().startswith("INCONCLUSIVE capture · steps 5-6 ")


def test_sigterm_inside_a_window_ends_the_run_at_once(tmp_path: Path) -> None:
    terminates = ("--at", 5, "print(signal.getsignal(15)); os.kill(os.getpid(), 15)")

    attached = compare(tmp_path, "3-5", LOOP, *terminates)

    assert attached.window.reason == "the process was killed inside the window"


def test_a_handler_of_the_script_for_sigterm_is_its_own(tmp_path: Path) -> None:
    sets = ("--at", 4, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(step))")
    terminates = (
        "print(signal.getsignal(signal.SIGTERM).__name__); os.kill(os.getpid(), 15)"
    )

    attached = compare(tmp_path, "3-5", LOOP, *sets, "--after", terminates)

    assert (attached.run.code, attached.states) == (4, ["complete"])


def test_a_run_without_training_is_left_alone(tmp_path: Path) -> None:
    text = "import sys\nprint(sys.argv[1:], 'torch' in sys.modules)\nsys.exit(3)\n"

    attached = compare(
        tmp_path, "3-4", script(tmp_path, text), "--steps", "a b", fresh=True
    )

    assert attached.run.code == 3
    assert not list(attached.capture.glob("rank*"))
    said = "the command ended with 3 before its first training step"
    assert said in (attached.capture / "notes.test").read_text()


def test_a_training_without_an_optimizer_is_told_of_the_way_out(tmp_path: Path) -> None:
    text = "import torch\nprint(torch.ones(2).sum().item())\n"

    attached = compare(tmp_path, "3-4", script(tmp_path, text))

    note = (attached.capture / "notes.test").read_text()
    assert "no torch.optim optimizer stepped" in note
    assert "fp8verify.step()" in note


def test_a_capture_that_vanishes_is_no_concern_of_the_run(tmp_path: Path) -> None:
    moves = "os.path.isdir({0!r}) and os.rename({0!r}, {1!r})"
    before, after = moves.format("capture", "moved"), moves.format("moved", "capture")

    attached = compare(tmp_path, "3-4", LOOP, "--before", before, "--after", after)

    assert attached.run.code == 0
    assert "step 6 loss" in attached.run.stdout
    assert not list(attached.capture.glob("rank*"))


@pytest.mark.parametrize("options", [(), ("--debug",)], ids=["", "debug"])
def test_an_error_of_ours_inside_the_window_is_noted_and_the_run_goes_on(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    attached = compare(
        tmp_path, "2-3,5", LOOP, "--before", EXPORT_FAILS, options=options
    )

    assert attached.states == ["dropped", "dropped"]
    fact = (
        "optimizer_leaves: RuntimeError: no space left on device (windows/profiler.py:"
    )
    assert str(attached.meta().windows[0].reason).startswith(fact)
    (note,) = attached.meta().notes
    assert note.startswith(f"stopped observing after step 3: {fact}")
    assert note.endswith("run --debug keeps the traceback")
    if not options:
        assert not list(attached.capture.glob("debug.*.log"))
        return
    for line in (
        "start window 1 after step 1\n",
        "optimizer_leaves failed\nTraceback (most recent call last):\n",
        ", in fails\n",
    ):
        assert line in attached.debug_log()


# -- other profilers, and what torch says ---------------------------------------------------------


def test_api_usage_that_the_user_asked_for_is_echoed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_API_USAGE_STDERR", "1")
    text = "import torch\ntorch.nn.Linear(2, 2)\n"
    attached = compare(tmp_path, "3", script(tmp_path, text), fresh=True)
    assert "PYTORCH_API_USAGE" in attached.run.stderr


@pytest.mark.parametrize(
    ("windows", "theirs"),
    [("3,5-6", (-1, -1)), ("3-7", (5, 7)), ("6", (2, 4))],
    ids=["ours-and-ours", "ours-and-theirs", "theirs-and-ours"],
)
def test_ranges_from_one_profiler_session_into_another_do_no_harm(
    tmp_path: Path, windows: str, theirs: tuple[int, int]
) -> None:
    made = "[torch.profiler.record_function(f'epoch {n}') for n in range(200)]"
    before = f"torch.wide, torch.theirs = {made}, torch.profiler.profile()"
    first, last = theirs
    spans = {
        3: "[one.__enter__() for one in torch.wide]",
        6: "[one.__exit__(None, None, None) for one in reversed(torch.wide)]",
        first: "torch.theirs.start()",
        last + 1: "torch.theirs.stop()",
    }
    at = [word for step, code in spans.items() for word in ("--at", step, code)]
    attached = compare(tmp_path, windows, LOOP, "--steps", 8, "--before", before, *at)

    assert attached.run.code == 0
    assert {"complete", "cut"} >= set(attached.states)


# -- modules and layers ---------------------------------------------------------------------------


def test_the_census_knows_float8_modules(tmp_path: Path) -> None:
    importable("torchao")
    attached = compare(
        tmp_path, "3", LOOP, "--float8", "rowwise_with_gw_hp", "--compile", "model"
    )

    first, second = attached.meta().modules
    assert (first.fqn, first.class_name, first.state) == (
        "0",
        "Float8Linear",
        "fp8_emulated",
    )
    assert first.formats == {"fprop": "fp8", "dgrad": "fp8", "wgrad": "high_precision"}
    assert (second.fqn, second.class_name, second.state) == (
        "2",
        "Linear",
        "high_precision",
    )
    assert second.reason == "out_features 24 is not divisible by 16"
    # The conversion is known by its call, though no log tells of it.
    assert attached.meta().api_calls == ("torchao.float8.convert_to_float8_training",)
    (claim,) = fp8verify.inspect(attached.capture).claims
    assert (claim.source, claim.says, claim.line) == ("torchao's call", "fp8", 0)


@pytest.mark.parametrize("passes", [1, 2])
def test_layers_of_an_eager_model_are_named_in_the_window(
    tmp_path: Path, passes: int
) -> None:
    attached = compare(
        tmp_path, "3-4", LOOP, "--accumulate", passes, options=("--layers",)
    )

    assert (
        annotations(attached.capture / "rank0.json.gz", "fp8verify:")
        == ["0", "2"] * 2 * passes
    )
    assert not (attached.capture / "layers").exists()
    assert attached.window.layers


@pytest.mark.parametrize("what", ["model", "train_step"])
def test_compiled_code_is_never_run_eagerly_to_name_its_layers(
    tmp_path: Path, what: str
) -> None:
    attached = compare(tmp_path, "3-4", LOOP, "--compile", what, options=("--layers",))

    assert (attached.states, attached.window.layers) == (["complete"], False)
    assert annotations(attached.capture / "rank0.json.gz", "fp8verify:") == []
    assert not (attached.capture / "layers").exists()
    assert {module.fqn for module in attached.meta().modules} == {"0", "2"}


# -- ranks ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_shared_workers")
def test_torchrun_profiles_the_ranks_asked_for(tmp_path: Path) -> None:
    attached = attach(tmp_path, "3-4", *TORCHRUN, 2, DDP)

    assert attached.run.code == 0
    assert attached.run.stdout.count("loss") == 6
    assert attached.states == ["complete"]
    other = attached.meta(1)
    assert [window.state for window in other.windows] == ["skipped"]
    assert [module.fqn for module in other.modules] == ["0"]
    assert other.world_size == 2
    assert [path.name for path in attached.capture.glob("*.gz")] == ["rank0.json.gz"]


@pytest.mark.usefixtures("_shared_workers")
def test_logs_that_torchrun_redirects_are_found(tmp_path: Path) -> None:
    redirect = ["--log-dir", tmp_path / "logs", "--redirects", 3]

    attached = attach(tmp_path, "3-4", *TORCHRUN, 2, *redirect, DDP)

    assert "loss" not in attached.run.stdout
    (log,) = find_logs(attached.capture)  # the others are empty
    assert (log.name, log.read_text().count("loss")) == ("log.rank0.out.txt", 6)
    others = {
        f"log.rank{rank}.{stream}.txt" for rank in (0, 1) for stream in ("out", "err")
    }
    assert {path.name for path in attached.capture.glob("log*")} == {"log.txt", *others}


# -- training frameworks --------------------------------------------------------------------------


def test_accelerate_launch_counts_updates_not_batches(tmp_path: Path) -> None:
    importable("accelerate")
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", 1]
    # What it launches is a fork of a process that has imported torch, as the launcher is.
    training = ["--no_python", python(), SCRIPTS / "accelerated.py"]

    attached = attach(tmp_path, "3-4", *launch, *training)

    assert attached.run.code == 0
    assert (attached.meta().steps_seen, attached.states) == (6, ["complete"])


@pytest.mark.parametrize(
    ("framework", "optimizer"), [("transformers", "AdamW"), ("lightning", "SGD")]
)
def test_the_steps_of_every_trainer_are_named_as_it_names_them(
    tmp_path: Path, framework: str, optimizer: str
) -> None:
    """Of two trainings in one process, and of one that resumes from what these saved."""
    importable(framework)
    counter = "global_step"

    attached = attach(
        tmp_path, "3-4,9-10", TRAINERS, framework, "--twice", options=("--debug",)
    )

    assert (attached.run.code, attached.run.stdout.split()[-2:]) == (0, ["6", "6"])
    assert attached.states == ["complete"] * 2
    numbered = FrameworkSteps(name=framework, counter=counter, first=3, last=4)
    assert [window.framework for window in attached.meta().windows] == [
        numbered,
        numbered,
    ]
    said = f"optimizer steps ({optimizer}.step), window 3-4 = {framework} {counter} 3-4"
    assert said in attached.text()
    assert "stop window 2 after step 10" in attached.debug_log()

    attached.capture.rename(tmp_path / "first")
    resumed = attach(
        tmp_path, "global:7-8,10-11", TRAINERS, framework, "--steps", 11, "--resume"
    )

    assert resumed.states == ["complete"] * 2
    windows = resumed.meta().windows
    assert [(window.first, window.last) for window in windows] == [(1, 2), (4, 5)]
    assert [window.framework for window in windows] == [
        FrameworkSteps(name=framework, counter=counter, first=7, last=8),
        FrameworkSteps(name=framework, counter=counter, first=10, last=11),
    ]

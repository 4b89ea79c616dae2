"""Trainings watched from outside while they go on: `run --every`, and reports at a window's end."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fp8verify.record import live
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.live import RunWatch, Sink, WindowMetrics, open_sink
from fp8verify.record.settings import read_settings
from fp8verify.report.results import Report
from fp8verify.verdict.policy import Policy
from tests.attached import ROOT
from tests.command_line import PATIENCE_S, fp8verify
from tests.shared_torch import FORKS_RUN, python_with_torch

LOOP = """
import resource, signal, sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
"""


def run_live(tmp_path: Path, script: str, *options: str, fresh: bool = False) -> Any:
    path = tmp_path / "train.py"
    path.write_text(LOOP + script)
    python = sys.executable if fresh else python_with_torch()
    command = ["run", "--trace-dir", "cap", *options, "--", python, path]
    return fp8verify(*command, cwd=tmp_path, OMP_NUM_THREADS="1", **FORKS_RUN)


def lines_in(path: Path) -> list[WindowMetrics]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.train
def test_a_thousand_steps_lose_no_window_and_grow_no_memory(tmp_path: Path) -> None:
    script = (
        "train(500); before = memory(); train(500); print('grew', memory() - before)\n"
    )

    done = run_live(tmp_path, script, "--every", "100", "--metrics", "fp8.jsonl")

    assert done.returncode == 3, done.stderr  # a CPU has no kernels to judge
    lines = lines_in(tmp_path / "fp8.jsonl")
    assert [(line["first_step"], line["step"]) for line in lines] == [
        (first, min(first + 1, 1000)) for first in range(100, 1001, 100)
    ]
    assert {line["verdict"] for line in lines} == {"INCONCLUSIVE"}
    assert lines[0]["findings"] == ["no-gpu-kernels"]
    assert lines[0]["fp8/step_time_ms"] > 0
    assert int(done.stdout.split("grew ")[1].split()[0]) < 4 << 20
    # One is kept, whose verdict was the first.
    capture = tmp_path / "cap"
    assert [path.name for path in (capture / "kept").iterdir()] == ["step-000000100"]
    assert not (capture / "live").exists()
    assert done.stderr.count("fp8verify: INCONCLUSIVE at step 101") == 1


@pytest.mark.train
def test_a_training_is_asked_to_stop_as_a_scheduler_would(tmp_path: Path) -> None:
    script = (
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved a checkpoint'), sys.exit(143)))\n"
        "train(10)\nfor _ in range(3000): time.sleep(0.1)\n"
    )

    done = run_live(
        tmp_path,
        script,
        "--every",
        "5",
        "--stop-on",
        "inconclusive,EMULATED",
        fresh=True,
    )

    assert "saved a checkpoint" in done.stdout
    assert done.returncode == 3, done.stderr


@pytest.mark.train
@pytest.mark.parametrize(
    "options", [(), ("-o", "report.txt")], ids=["aloud", "to a file"]
)
def test_the_report_is_there_as_the_window_closes(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    script = (
        "import json, pathlib\n"
        "train(6)\n"
        "report = pathlib.Path('cap/report.json')\n"
        "for _ in range(3000):\n"
        "    time.sleep(0.1)\n"
        "    if report.exists(): break\n"
        "print('during the run', json.loads(report.read_text())['verdict'])\n"
        "print('Applied Float8 training: recipe=TENSORWISE, fsdp_float8_all_gather=True')\n"
        "time.sleep(1)\n"
    )

    done = run_live(tmp_path, script, "--steps", "3-4", *options)

    assert "during the run INCONCLUSIVE" in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("fp8verify: ")]
    assert len(said) == (0 if options else 1)
    for line in said:
        assert line.startswith(
            "fp8verify: INCONCLUSIVE so far: no GPU kernels in the trace"
        )
        assert line.endswith("cap/report.json")
    assert done.stderr.count("exit 3: the verdict is INCONCLUSIVE") == len(said)
    assert not (options and done.stderr)
    # And again with the whole log.
    report = msgspec.json.decode(
        (tmp_path / "cap" / "report.json").read_bytes(), type=Report
    )
    assert [claim.framework for claim in report.claims] == ["KempnerForge"]


def closed_window(capture: Path, step: int, trace: str) -> Path:
    """Put a recorded window where the agent leaves one that is over."""
    folder = capture / "live" / f"step-{step:09d}"
    shutil.copytree(
        ROOT / "traces" / trace, folder, ignore=shutil.ignore_patterns("expected*")
    )
    (folder / "rank0.closed").touch()
    return folder


def watched(
    capture: Path,
    *sinks: Sink,
    ranks: str = "0",
    meanwhile: Any = lambda: None,
    **options: Any,
) -> RunWatch:
    """Watch a capture whose windows are there already, or come `meanwhile`."""
    settings = read_settings(steps=None, every=10, ranks=ranks)
    watch = RunWatch(settings, Policy(), sinks, **options)
    with watch.following(CaptureFolder(capture), lambda: None):
        meanwhile()
    return watch


def test_windows_are_kept_where_the_verdict_changes(tmp_path: Path) -> None:
    seen: list[WindowMetrics] = []
    for step, trace in enumerate(
        [
            "fp8_compiled",
            "fp8_compiled",
            "fp8_emulated",
            "fp8_compiled",
            "fp8_compiled",
        ],
        1,
    ):
        closed_window(tmp_path, step, trace)

    watch = watched(tmp_path, open_sink(tmp_path / "m.jsonl"), seen.append)

    assert watch.notes == ("of the run's windows 4 ACTIVE, 1 EMULATED",)
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["step-000000001", "step-000000003", "step-000000004"]
    assert watch.worst == tmp_path / "kept" / "step-000000003"
    assert not (tmp_path / "live").exists()
    assert lines_in(tmp_path / "m.jsonl") == seen
    assert seen[0]["fp8/share_of_gemm_time"] == 1.0
    assert seen[0]["fp8/fprop"] == seen[0]["fp8/dgrad"] == seen[0]["fp8/wgrad"] == 1.0
    assert 0 < seen[0]["fp8/tax"] < 1
    assert "emulated" in seen[2]["findings"]


def test_a_change_runs_a_command_and_a_verdict_stops_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = tmp_path / "said.txt"
    names = ("OLD_VERDICT", "NEW_VERDICT", "AT", "CAPTURE")
    command = f"echo {' '.join(f'$FP8VERIFY_{name}' for name in names)} >> {said}"
    stopped = threading.Event()
    settings = read_settings(steps=None, every=10)
    watch = RunWatch(settings, Policy(), [], command, frozenset({"EMULATED"}))
    closed_window(tmp_path, 1, "fp8_compiled")
    closed_window(tmp_path, 2, "fp8_emulated")

    with watch.following(CaptureFolder(tmp_path), stopped.set):
        assert stopped.wait(PATIENCE_S)

    # The steps are those of the captures.
    assert said.read_text() == f"ACTIVE EMULATED 12 {tmp_path}\n"
    assert watch.stopped
    stopped_by = "fp8verify stopped the script, since step 12 is EMULATED"
    assert watch.notes == ("of the run's windows 1 ACTIVE, 1 EMULATED", stopped_by)
    assert "fp8verify: EMULATED at step 12, was ACTIVE: " in capfd.readouterr().err


def test_a_command_that_fails_or_hangs_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "COMMAND_S", 4.0)
    monkeypatch.chdir(tmp_path)
    for step, trace in enumerate(["fp8_compiled", "fp8_emulated", "fp8_compiled"], 1):
        closed_window(tmp_path, step, trace)

    def begun() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)

    command = (
        "test $FP8VERIFY_NEW_VERDICT = EMULATED && exit 3; touch begun; sleep 3600"
    )
    counts, *errors = watched(tmp_path, meanwhile=begun, on_change=command).notes

    assert counts == "of the run's windows 2 ACTIVE, 1 EMULATED"
    assert errors == [
        "--on-change at step 12: the command failed with exit code 3",
        "--on-change at step 12: the command was ended: it took too long",
    ]


def test_a_run_that_is_too_short_for_a_window_says_so(tmp_path: Path) -> None:
    done = run_live(tmp_path, "train(6)", "--every", "20")

    assert done.returncode == 3
    said = " ".join(done.stderr.split())
    assert (
        "the run ended after step 6, and the first window was to be steps 20-21" in said
    )


def test_a_window_is_judged_when_all_ranks_are_done_with_it(tmp_path: Path) -> None:
    folder = closed_window(tmp_path, 1, "fp8_compiled")
    meta = json.loads((folder / "rank0.meta.json").read_text())
    (folder / "rank0.meta.json").write_text(json.dumps({**meta, "world_size": 2}))
    judged = threading.Event()

    def last_rank() -> None:
        assert not judged.wait(1.5)
        (folder / "rank1.closed").touch()
        assert judged.wait(PATIENCE_S)

    watched(tmp_path, lambda _: judged.set(), ranks="all", meanwhile=last_rank)


def test_a_window_that_cannot_be_judged_is_inconclusive_and_a_sink_that_fails_ends_nothing(
    tmp_path: Path,
) -> None:
    def fail(_: WindowMetrics) -> None:
        raise ConnectionError("no route")

    seen: list[WindowMetrics] = []
    closed_window(tmp_path, 1, "fp8_compiled")
    (tmp_path / "live" / "step-000000007").mkdir()

    watch = watched(tmp_path, fail, seen.append)

    assert [one["verdict"] for one in seen] == ["ACTIVE", "INCONCLUSIVE"]
    assert seen[1]["step"] == 7
    assert "could not be judged: " in seen[1]["reason"]
    assert watch.notes[1:] == ("metrics: ConnectionError: no route",)

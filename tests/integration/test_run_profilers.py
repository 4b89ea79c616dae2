"""`fp8verify run --profiler nsys|rocprofv3`, with programs that stand in for both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import fp8verify
from tests.fake_profilers import install, tables
from tests.other_tools import SECRET
from tests.shared_torch import python_with_torch

SCRIPT = Path(__file__).parent / "scripts" / "under_profiler.py"
needs_torch = pytest.mark.train


def run(
    folder: Path, steps: str, *words: object, options: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the training with windows of these steps; the capture is `folder / "capture"`."""
    tool = () if "--profiler" in options else ("--profiler", "nsys")
    return fp8verify(
        "run", *tool, *options, "--steps", steps, "--trace-dir", "capture",
        "--format", "json", "-o", "report.json", "--", *map(str, words),
        cwd=folder, timeout=120, **environment,
    )  # fmt: skip


def report(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


def calls(folder: Path, *wanted: str) -> list[tuple[str, int]]:
    """Return what the training told the profiler, each with the last step before it."""
    step, found = 0, []
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["call"] == "work":
            step = event["step"]
        elif event["call"] in wanted:
            found.append((event["call"], step))
    return found


def meta(folder: Path, rank: int = 0) -> Any:
    return json.loads((folder / "capture" / f"rank{rank}.meta.json").read_text())


@needs_torch
def test_a_window_is_recorded_by_nsys_and_judged(tmp_path: Path) -> None:
    done = run(tmp_path, "3-4", python_with_torch(), SCRIPT, **install(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"step {n}" for n in range(1, 10)]
    found = report(tmp_path)
    assert (found["verdict"], found["ranks"][0]["gpu_time_us"]["gemm"]) == ("ACTIVE", 0.12)
    assert [step["step"] for step in found["ranks"][0]["steps"]] == [3, 4]
    assert {leg["leg"]: leg["kernels"] for leg in found["ranks"][0]["legs"]} == {
        leg: {"fp8": 2} for leg in ("fprop", "dgrad", "wgrad")
    }
    assert found["ranks"][0]["modules"] is not None
    assert calls(tmp_path, "cudaProfilerStart", "cudaProfilerStop", "emit_nvtx", "no_nvtx") == [
        ("cudaProfilerStart", 2), ("emit_nvtx", 2), ("no_nvtx", 4), ("cudaProfilerStop", 4),
    ]  # fmt: skip
    [window] = meta(tmp_path)["window"]
    assert (window["state"], window["profiler"], window["trace"]) == ("complete", "nsys", None)
    assert not list((tmp_path / "capture").glob("rank*.json.gz"))
    words = json.loads((tmp_path / "command.json").read_text())
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} < set(words)
    assert "--discard-environment=true" in words
    assert words[-2:] == [str(python_with_torch()), str(SCRIPT)]


@needs_torch
def test_an_older_nsys_is_not_given_options_that_it_lacks(tmp_path: Path) -> None:
    environment = install(tmp_path, without=["--discard-environment"])
    done = run(tmp_path, "3", python_with_torch(), SCRIPT, **environment)
    assert done.returncode == 0, done.stderr
    assert "discard" not in (tmp_path / "command.json").read_text()


@needs_torch
def test_several_windows_are_one_rank(tmp_path: Path) -> None:
    done = run(tmp_path, "3-4,8", python_with_torch(), SCRIPT, **install(tmp_path))
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "capture").iterdir()}
    assert {"nsys.1.nsys-rep", "nsys.2.nsys-rep", "nsys.1.sqlite", "nsys.2.sqlite"} <= names
    [rank] = report(tmp_path)["ranks"]
    assert [step["step"] for step in rank["steps"]] == [3, 4, 8]
    assert rank["gemm"]["kernels"]["fp8"] == 9
    assert "--capture-range-end=repeat:2" in (tmp_path / "command.json").read_text()


@needs_torch
def test_a_window_that_nsys_did_not_keep_is_told(tmp_path: Path) -> None:
    environment = install(tmp_path, FAKE_LOSES="2")
    run(tmp_path, "3-4,8", python_with_torch(), SCRIPT, **environment)
    found = report(tmp_path)
    assert "window 8-8: left no trace, because nsys kept none" in str(found["findings"])


@needs_torch
def test_the_capture_can_be_inspected_later_and_holds_no_environment(tmp_path: Path) -> None:
    run(tmp_path, "3-4", python_with_torch(), SCRIPT, **install(tmp_path))
    capture = tmp_path / "capture"
    later = fp8verify("inspect", "capture", "--format", "json", cwd=tmp_path)
    assert json.loads(later.stdout)["verdict"] == "ACTIVE"
    kept = tables(capture / "nsys.sqlite")
    assert not kept & {"META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"}
    for path in capture.iterdir():
        assert SECRET.encode() not in path.read_bytes()
    assert (capture / "nsys.sqlite").stat().st_mode & 0o077 == 0


@needs_torch
def test_ranks_are_told_apart_and_the_recording_is_wider_than_their_steps(tmp_path: Path) -> None:
    python = python_with_torch()
    both = " ".join(f"RANK={rank} WORLD_SIZE=2 {python} {SCRIPT} --apart &" for rank in (0, 1))
    environment = install(tmp_path)
    options = ("--profiler", "nsys", "--ranks", "all")
    done = run(tmp_path, "4-5", "sh", "-c", f"{both} wait", options=options, **environment)
    found = report(tmp_path)
    assert found["verdict"] == "ACTIVE", done.stderr
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    for rank, kernels in zip(found["ranks"], (6, 12), strict=True):
        assert [step["step"] for step in rank["steps"]] == [4, 5]
        assert rank["gemm"]["kernels"]["fp8"] == kernels
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    toggles = [event for event in events if event["call"].startswith("cudaProfiler")]
    assert [event["call"] for event in toggles] == ["cudaProfilerStart", "cudaProfilerStop"]
    assert len({event["pid"] for event in toggles}) == 1


@needs_torch
def test_other_processes_of_the_recording_are_no_ranks(tmp_path: Path) -> None:
    python = python_with_torch()
    both = " ".join(f"RANK={rank} WORLD_SIZE=2 {python} {SCRIPT} &" for rank in (0, 1))
    run(tmp_path, "4-5", "sh", "-c", f"{both} wait", **install(tmp_path))
    assert [rank["rank"] for rank in report(tmp_path)["ranks"]] == [0]


# -- how a run ends -----------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize(
    ("words", "code"), [(("--exit", "7"), 7), (("--kill-at", "6"), 137), (("--exit", "0"), 0)]
)
def test_the_exit_code_is_the_trainings_whatever_nsys_makes_of_it(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    environment = install(tmp_path, FAKE_EXIT="1" if code != 7 else "0")
    done = run(tmp_path, "3-4", python_with_torch(), SCRIPT, *words, **environment)
    assert done.returncode == code
    assert report(tmp_path)["verdict"] == "ACTIVE"


@needs_torch
def test_a_run_that_is_terminated_inside_a_window_ends_the_recording(tmp_path: Path) -> None:
    words = ("--terminate-at", "4")
    done = run(tmp_path, "3-6", sys.executable, SCRIPT, *words, **install(tmp_path))
    assert done.returncode == 143
    assert calls(tmp_path, "cudaProfilerStop") == [("cudaProfilerStop", 4)]
    assert meta(tmp_path)["window"][0]["state"] == "cut"
    assert (tmp_path / "capture" / "nsys.nsys-rep").exists()


@needs_torch
def test_a_window_that_never_opens_records_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "30-31", python_with_torch(), SCRIPT, **install(tmp_path))
    assert done.returncode == 3
    assert calls(tmp_path, "cudaProfilerStart") == []
    assert "Nsight Systems wrote no report" in str(report(tmp_path)["notes"])


@needs_torch
def test_a_raw_file_without_a_report_says_what_makes_one(tmp_path: Path) -> None:
    environment = install(tmp_path, FAKE_QDSTRM="1")
    done = run(tmp_path, "3-4", python_with_torch(), SCRIPT, **environment)
    assert done.returncode == 3
    assert "QdstrmImporter -i nsys.qdstrm" in str(report(tmp_path)["notes"])
    assert (tmp_path / "capture" / "nsys.qdstrm").exists()


# -- before the training ------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["nsys", "rocprofv3"])
def test_without_the_tool_the_training_is_not_started(tmp_path: Path, tool: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("open('ran', 'w')\n")
    done = run(tmp_path, "3-4", script, options=("--profiler", tool), PATH="/nonexistent")
    assert done.returncode == 2
    first, hint = done.stderr.splitlines()
    assert f"{tool} is not on the PATH, so the training was not started" in first
    assert "run without --profiler" in hint
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "capture").exists()


def test_a_tool_that_does_not_run_is_told(tmp_path: Path) -> None:
    tool = tmp_path / "nsys"
    tool.write_text("#!/bin/sh\necho 'libX.so: cannot open' >&2\nexit 127\n")
    tool.chmod(0o700)
    done = run(tmp_path, "3-4", "true", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 2
    assert "libX.so: cannot open" in done.stderr.splitlines()[0]


def test_windows_without_end_need_kineto(tmp_path: Path) -> None:
    done = fp8verify("run", "--every", "10", "--profiler", "nsys", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "--every and --profiler nsys do not go together" in done.stderr


def test_a_dry_run_shows_the_whole_command(tmp_path: Path) -> None:
    options = ("--dry-run", "--steps", "3", "--profiler", "nsys")
    done = fp8verify("run", *options, "true", cwd=tmp_path, **install(tmp_path))
    assert "nsys profile --trace=cuda,nvtx" in done.stdout
    assert done.stdout.splitlines()[0].endswith("true")


# -- rocprofv3 ----------------------------------------------------------------------------------


@needs_torch
def test_windows_are_recorded_by_rocprofv3(tmp_path: Path) -> None:
    options = ("--profiler", "rocprofv3")
    python = python_with_torch()
    done = run(tmp_path, "3-4,8", python, SCRIPT, options=options, **install(tmp_path))
    assert done.returncode == 0, done.stderr
    found = report(tmp_path)
    assert found["verdict"] == "ACTIVE"
    assert [step["step"] for step in found["ranks"][0]["steps"]] == [3, 4, 8]
    assert calls(tmp_path, "roctxProfilerResume", "roctxProfilerPause", "cudaProfilerStart") == [
        ("roctxProfilerResume", 2), ("roctxProfilerPause", 4),
        ("roctxProfilerResume", 7), ("roctxProfilerPause", 8),
    ]  # fmt: skip
    words = json.loads((tmp_path / "command.json").read_text())
    assert {"--kernel-trace", "--marker-trace", "--selected-regions"} <= set(words)


def test_a_rocprofv3_that_cannot_be_switched_is_too_old(tmp_path: Path) -> None:
    environment = install(tmp_path, without=["--selected-regions"])
    done = run(tmp_path, "3", "true", options=("--profiler", "rocprofv3"), **environment)
    assert done.returncode == 2
    assert "has no --selected-regions" in done.stderr

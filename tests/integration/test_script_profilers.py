"""A run whose script profiles itself, as KempnerForge and torchtitan do, is judged by its trace."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from fp8verify.record.script_traces import adopt_script_traces, trace_folders
from tests.command_line import fp8verify
from tests.integration.test_run_attached import ROOT, SCRIPTS, attach

TRACE = next(Path(ROOT, "traces", "fp8_compiled").glob("*.json.gz"))


@pytest.mark.train
@pytest.mark.parametrize("window", ["6-8", "5-7", "7"])
def test_kempnerforge_in_the_window(tmp_path: Path, window: str) -> None:
    config = tmp_path / "debug.toml"
    config.write_text(
        '[profiling]\nenable = true\nstart_step = 5\nend_step = 8\ntrace_dir = "profiler_traces"\n'
    )

    attached = attach(tmp_path, window, SCRIPTS / "kempnerforge_profiling.py", config)

    (found,) = attached.meta().windows
    assert (found.profiler, found.state, found.first, found.last) == ("script", "complete", 6, 8)
    (theirs,) = (tmp_path / "profiler_traces").iterdir()
    assert (attached.capture / str(found.trace)).read_bytes() == theirs.read_bytes()


@pytest.mark.train
def test_kempnerforge_that_ends_before_the_window_does(tmp_path: Path) -> None:
    config = tmp_path / "debug.toml"
    config.write_text('[profiling]\nstart_step = 5\nend_step = 8\ntrace_dir = "t"\n')

    attached = attach(tmp_path, "8-10", SCRIPTS / "kempnerforge_profiling.py", config)

    ours, theirs = attached.meta().windows
    assert (ours.profiler, ours.state, ours.first, ours.last) == ("fp8verify", "complete", 11, 13)
    assert (theirs.profiler, theirs.first, theirs.last) == ("script", 6, 8)


@pytest.mark.train
@pytest.mark.parametrize("done", [0, 30])
def test_torchtitan_round_after_round(tmp_path: Path, done: int) -> None:
    folder = tmp_path / "traces"

    attached = attach(tmp_path, "6", SCRIPTS / "torchtitan_profiling.py", folder, done)

    (found,) = attached.meta().windows
    assert (found.profiler, found.first, found.last) == ("script", 6, 6)
    assert len(list(folder.iterdir())) == 2
    theirs = folder / f"iteration_{done + 6}" / "rank0_trace.json"
    assert (attached.capture / str(found.trace)).read_bytes() == theirs.read_bytes()


def test_a_run_without_our_agent_is_judged_by_the_folder_of_its_profiling(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import shutil\nfrom pathlib import Path\n"
        "Path('theirs').mkdir()\n"
        f"shutil.copyfile({str(TRACE)!r}, 'theirs/host_1.2.pt.trace.json.gz')\n"
    )
    Path(tmp_path, "c.toml").write_text('[profiling]\ntrace_dir = "theirs"\n')
    python = ["--", sys.executable, "-I", script, "c.toml"]

    done = fp8verify("run", "--steps", "3", "--trace-dir", "cap", *python, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "ACTIVE" in done.stderr
    assert "those of the script's own profiler in theirs" in " ".join(done.stderr.split())


def test_old_traces_are_another_run_s(tmp_path: Path) -> None:
    capture, theirs = tmp_path / "capture", tmp_path / "theirs"
    capture.mkdir()
    theirs.mkdir()
    trace = shutil.copyfile(TRACE, theirs / "rank0_trace.json.gz")
    command = ["train.py", f"--profiling.trace_dir={theirs}"]
    now = time.time()

    os.utime(trace, (now - 100, now - 100))
    assert adopt_script_traces(capture, command, now) == ()
    assert list(capture.iterdir()) == []
    os.utime(trace, (now + 1, now + 1))
    assert adopt_script_traces(capture, command, now) != ()
    assert [path.name for path in capture.iterdir()] == [trace.name]


def test_the_folders_of_configurations(tmp_path: Path) -> None:
    config = tmp_path / "llama.toml"
    config.write_text(
        '[job]\ndump_folder = "outputs"\n[profiling]\nsave_traces_folder = "profile_trace"\n'
    )
    damaged = tmp_path / "damaged.toml"
    damaged.write_text("[profiling")

    assert list(trace_folders(["t.py", str(config)])) == [Path("outputs/profile_trace")]
    options = [str(config), "--profiling.save-traces-folder", "mine"]
    assert list(trace_folders(options)) == [Path("outputs/mine")]
    assert list(trace_folders(["t.py", "--profiling.trace_dir", "x"])) == [Path("x")]
    assert list(trace_folders([str(damaged), "--lr", "1"])) == []

"""The edges of a run: full disks, killed runners, runs inside runs, Slurm's tasks.

Most scripts here need no torch: what is compared is all that surrounds the training.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fp8verify.record import command
from tests.attached import SCRIPTS
from tests.command_line import PATIENCE_S
from tests.integration.shells import OURS, PLAIN, compare, execute, start, wait_until
from tests.shared_torch import python_with_torch

LOOP = SCRIPTS / "loop.py"


def report_of(folder: Path, script: str) -> tuple[int, dict[str, Any]]:
    """Run a script; return its exit code and the report in JSON."""
    code = start(folder, f"{OURS} --format json -o report.json train.py", script).wait(
        timeout=PATIENCE_S
    )
    return code, json.loads((folder / "report.json").read_text())


def output_of(
    folder: Path, line: str, script: str | None = None
) -> tuple[int, str, str]:
    """Run a shell line; return its exit code and what it printed."""
    child = start(folder, line, script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=PATIENCE_S)
    return child.returncode, out.decode(), err.decode()


# --- runs inside runs


def torch_in(folder: Path) -> None:
    """Put a package of that name where scripts find it, since the real one takes seconds."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("value = 7\n")


# --- what stays where nothing was recorded


@pytest.mark.parametrize(
    ("place", "script", "kept"),
    [
        ("", "import sys\nsys.exit(1)\n", set()),
        ("", "print('a line')\n", set()),
        ("--trace-dir capture", "pass\n", set()),
        ("--trace-dir old", "pass\n", {"old"}),
        ("--trace-dir capture", "print('a line')\n", {"capture"}),
    ],
    ids=["failed", "printed", "silent", "existed", "named and printed"],
)
def test_a_run_that_recorded_nothing_leaves_no_empty_capture(
    tmp_path: Path, place: str, script: str, kept: set[str]
) -> None:
    (tmp_path / "old").mkdir(mode=0o700)
    run = f"{PLAIN} -m fp8verify run --exit-zero {place} train.py 2> err"
    start(tmp_path, run, script).wait(timeout=PATIENCE_S)

    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders - {"old"} == kept - {"old"}
    assert (tmp_path / "old").is_dir()
    assert "INCONCLUSIVE" in (tmp_path / "err").read_text()
    assert "fp8verify-capture-" not in (tmp_path / "err").read_text()


# --- where our output goes


@pytest.mark.train
def test_the_outer_run_reports_on_the_capture_of_the_inner_one(tmp_path: Path) -> None:
    inner = f"{OURS} --trace-dir inner -o inner.json -- {python_with_torch()} {LOOP}"
    outer = f"{OURS} --trace-dir outer -o outer.json -- sh -c {shlex.quote(inner)}"

    assert (
        start(tmp_path, outer, stdout=subprocess.DEVNULL).wait(timeout=PATIENCE_S) == 0
    )

    reports = [
        json.loads((tmp_path / f"{who}.json").read_text()) for who in ("inner", "outer")
    ]
    clocks = [report["ranks"][0]["clock"] for report in reports]
    assert clocks[0] == clocks[1]
    said = (
        f"a run of fp8verify inside this one recorded the script: {tmp_path / 'inner'}"
    )
    assert [said in json.dumps(report) for report in reports] == [False, True]
    assert not list((tmp_path / "outer").glob("rank*"))


def test_a_redirected_stdout_holds_what_the_run_printed_and_nothing_else(
    tmp_path: Path,
) -> None:
    script = "import sys\nprint('{\"loss\": 1}')\nprint('warning', file=sys.stderr)\nsys.exit(3)\n"
    code, _, err = output_of(tmp_path, f"{OURS} train.py > metrics.jsonl", script)

    assert (tmp_path / "metrics.jsonl").read_text() == '{"loss": 1}\n'
    assert err.startswith("warning\n")
    assert "INCONCLUSIVE" in err
    assert code == 3


@pytest.mark.parametrize("stderr", ["2>&-", "2> /dev/full"])
@pytest.mark.parametrize("options", ["", "-o /dev/full"])
def test_a_report_that_cannot_be_written_changes_nothing(
    tmp_path: Path, stderr: str, options: str
) -> None:
    script = "import sys\nprint('{\"loss\": 1}')\nsys.exit(3)\n"
    done = output_of(tmp_path, f"{OURS} {options} train.py {stderr}", script)
    assert done == (3, '{"loss": 1}\n', "")


# --- children and parents

UPLOAD = "import subprocess\nsubprocess.Popen({!r}, shell=True)\nprint('trained', flush=True)\n"


def test_a_child_that_outlives_the_run_still_prints(tmp_path: Path) -> None:
    late = (
        "while [ ! -e go ]; do sleep 0.05; done; echo uploaded && echo done > uploaded"
    )
    wait = "touch go; while ! grep -q uploaded out; do sleep 0.05; done"
    line = f"{{}} train.py > out; cat out; {wait}; cat out"
    result = compare(tmp_path, UPLOAD.format(late), line)

    assert result.stdout == "trained\ntrained\nuploaded\n"
    assert result.files["uploaded"] == "done\n"


def test_a_reader_of_stdout_sees_its_end_when_the_last_child_has_closed_it(
    tmp_path: Path,
) -> None:
    assert compare(tmp_path, UPLOAD.format("sleep 1; echo uploaded")).stdout.endswith(
        "uploaded\n"
    )


def test_a_child_that_never_stops_printing_does_not_hold_the_run(
    tmp_path: Path,
) -> None:
    script = UPLOAD.format("while [ -e going ]; do echo busy; done")
    (tmp_path / "going").touch()
    try:
        done = start(tmp_path, f"{OURS} -o report train.py > out", script)
        assert (
            done.wait(timeout=PATIENCE_S) == 0
        )  # two processes that never rest beside it
    finally:
        (tmp_path / "going").unlink()
    assert (tmp_path / "out").read_text().startswith(("trained", "busy\n"))


ORPHAN = """
import os, pathlib, sys, time
pathlib.Path("pid.part").write_text(str(os.getpid()))
os.rename("pid.part", "pid")
while not os.path.exists("go"):
    time.sleep(0.02)
for number in range(3):
    print("step", number, flush=True)
print("warning", file=sys.stderr)
pathlib.Path("finished").touch()
"""


def test_a_training_whose_runner_is_killed_goes_on_and_still_prints(
    tmp_path: Path,
) -> None:
    runner = start(
        tmp_path, f"exec {OURS} --trace-dir capture train.py > out 2> err", ORPHAN
    )
    wait_until((tmp_path / "pid").exists)

    runner.kill()
    runner.wait(timeout=PATIENCE_S)
    (tmp_path / "go").touch()

    wait_until((tmp_path / "finished").exists)
    assert (tmp_path / "out").read_text() == "step 0\nstep 1\nstep 2\n"
    assert (tmp_path / "err").read_text() == "warning\n"
    wait_until(lambda: str(tmp_path) not in subprocess.getoutput("ps ax -o args"))
    assert not list((tmp_path / "capture").glob(".boot-*"))


def test_inspect_removes_what_a_run_left_whose_processes_were_all_killed(
    tmp_path: Path,
) -> None:
    line = f"{OURS} --trace-dir capture train.py > out 2> err"
    shell = start(tmp_path, line, ORPHAN)
    runner, keeper, training = processes_of(tmp_path)
    os.kill(keeper, signal.SIGKILL)
    os.kill(runner, signal.SIGKILL)
    shell.wait(timeout=PATIENCE_S)
    inspect = f"{PLAIN} -m fp8verify inspect capture"
    (boot,) = (tmp_path / "capture").glob(".boot-*")

    _, _, said = output_of(tmp_path, inspect)
    assert "removed" not in said  # the script has it on its path
    (tmp_path / "go").touch()
    wait_until((tmp_path / "finished").exists)
    wait_until(lambda: not Path(f"/proc/{training}").exists())
    _, _, said = output_of(tmp_path, inspect)

    assert f"removed capture/{boot.name}, which a killed run had left" in said
    assert not boot.exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def processes_of(folder: Path) -> tuple[int, int, int]:
    """Return the runner, the keeper and the script of a run, once the script has begun."""
    wait_until((folder / "pid").exists)
    training = int((folder / "pid").read_text())
    runner = parent_of(training)
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    (keeper,) = {int(child) for child in children} - {training}
    return runner, keeper, training


@pytest.mark.parametrize("who", ["runner", "keeper"])
def test_a_killed_process_of_ours_does_not_end_the_training(
    tmp_path: Path, who: str
) -> None:
    line = f"{{ {OURS} --trace-dir capture -o report train.py; }} 2>&1 | cat > out"
    shell = start(tmp_path, line, ORPHAN)
    runner, keeper, _ = processes_of(tmp_path)

    os.kill(runner if who == "runner" else keeper, signal.SIGKILL)
    (tmp_path / "go").touch()

    wait_until((tmp_path / "finished").exists)
    shell.wait(timeout=PATIENCE_S)
    wait_until(lambda: not list((tmp_path / "capture").glob(".boot-*")))
    lines = [
        line for line in (tmp_path / "out").read_text().splitlines() if line != "Killed"
    ]
    expected = ["step 0", "step 1", "step 2", "warning"]
    assert sorted(lines) == expected
    log = (tmp_path / "capture" / "log.txt").read_text()
    assert sorted(set(log.splitlines()) - {"Killed"}) == expected


def test_a_regular_file_is_the_trainings_own_stdout(tmp_path: Path) -> None:
    script = (
        "import os, stat, sys\nfound = os.fstat(1)\nprint(stat.S_ISREG(found.st_mode))\n"
        "sys.stdout.flush()\nos.truncate(1, 0)\nos.lseek(1, 0, 0)\nprint('again')\n"
    )
    (tmp_path / "out").write_text("before\n")
    line = f"{OURS} --trace-dir capture -o report train.py >> out"

    assert start(tmp_path, line, script).wait(timeout=PATIENCE_S) == 0
    assert (tmp_path / "out").read_text() == "again\n"
    assert (tmp_path / "capture" / "log.txt").read_text().splitlines()[-1] == "again"


def test_lines_of_ours_in_the_same_file_are_not_in_the_log(tmp_path: Path) -> None:
    script = (
        "import os\nos.write(2, b'step 1\\nfp8verify: ACTIVE so far\\nstep 2\\n')\n"
    )
    start(tmp_path, f"{OURS} --trace-dir capture train.py > out 2>&1", script).wait(
        timeout=PATIENCE_S
    )

    assert (tmp_path / "capture" / "log.txt").read_text() == "step 1\nstep 2\n"
    assert "INCONCLUSIVE" in (tmp_path / "out").read_text()


def test_nothing_of_ours_stays_when_the_run_has_ended(tmp_path: Path) -> None:
    assert (
        start(tmp_path, f"{OURS} -o report train.py > out", "print('x')").wait(
            timeout=PATIENCE_S
        )
        == 0
    )
    wait_until(lambda: str(tmp_path) not in subprocess.getoutput("ps ax -o args"))


# --- launchers that start a runner for each rank


def test_the_tasks_of_a_slurm_step_make_one_folder_and_one_report(
    tmp_path: Path,
) -> None:
    script = "import os\nos.write(1, b'task %s\\n' % os.environb[b'SLURM_PROCID'])\n"
    step = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=3"
    run = f"{shlex.quote(sys.executable)} -m fp8verify run --steps 3-4 train.py"
    tasks = " & ".join(
        f"{step} SLURM_PROCID={task} {run} 2> err.{task}" for task in range(3)
    )

    _, out, _ = output_of(tmp_path, f"{tasks} & wait", script)
    assert sorted(out.splitlines()) == ["task 0", "task 1", "task 2"]
    assert [p.name for p in tmp_path.glob("fp8verify-*")] == [
        "fp8verify-capture-slurm-7.0"
    ]
    reports = [path for path in tmp_path.glob("err.*") if path.stat().st_size]
    assert len(reports) == 1
    assert "INCONCLUSIVE" in reports[0].read_text()


TASK = """
import os, runpy, sys, time
sys.argv[1:] = []
runpy.run_path({loop!r}, run_name="__main__")
while not os.path.exists("go." + os.environ["SLURM_PROCID"]):
    time.sleep(0.02)
sys.exit(int(os.environ["ENDS_WITH"]))
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("order", "ends_with", "codes"),
    # 3 is what the verdict on a CPU ends with: it is for the task whose rank is recorded.
    [
        ("01", 0, {"0": 0, "1": 0}),
        ("10", 0, {"0": 3, "1": 0}),
        ("01", 5, {"0": 5, "1": 5}),
    ],
    ids=["left out, last", "left out, first", "failed"],
)
def test_a_task_whose_rank_is_left_out_ends_with_its_trainings_code(
    tmp_path: Path, order: str, ends_with: int, codes: dict[str, int]
) -> None:
    (tmp_path / "train.py").write_text(TASK.format(loop=str(LOOP)))
    step = (
        f"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 ENDS_WITH={ends_with}"
    )
    run = f"{PLAIN} -m fp8verify run --steps 3-4 --ranks 0 -- {python_with_torch()} train.py"
    tasks = {
        task: start(
            tmp_path, f"{step} SLURM_NTASKS=2 SLURM_PROCID={task} {run} 2> err.{task}"
        )
        for task in "01"
    }
    capture = tmp_path / "fp8verify-capture-slurm-7.0"
    wait_until(lambda: len(list(capture.glob("rank*.meta.json"))) == 2)

    ended = {}
    for task in order:
        (tmp_path / f"go.{task}").touch()
        ended[task] = tasks[task].wait(timeout=PATIENCE_S)

    assert ended == codes
    assert not list(capture.glob(".boot-*"))
    reported = [
        task
        for task in "01"
        if "INCONCLUSIVE" in (tmp_path / f"err.{task}").read_text()
    ]
    assert reported[-1] == order[-1]


# --- what cannot start, and what nobody could observe


def test_a_start_that_fails_leaves_room_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF is not all of it")
    (tmp_path / "broken").chmod(0o755)
    code, _, err = output_of(tmp_path, f"{OURS} --trace-dir capture ./broken")
    second = start(
        tmp_path, f"{OURS} --trace-dir capture -o report train.py", "print('ran')\n"
    )

    assert (code, err[:26]) == (2, "error: Cannot run ./broken")
    assert second.wait(timeout=PATIENCE_S) == 0


LAUNCHER = """
import subprocess, sys
worker = [sys.executable, "-c", "raise ValueError('no such config')"]
log = subprocess.run(worker, stderr=subprocess.PIPE, text=True).stderr
for line in log.splitlines():
    print("[rank1]: " + line)
raise subprocess.CalledProcessError(1, worker)
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "print(1)\nraise ValueError('no such config')\n",
            "ValueError: no such config",
        ),
        (
            "import nothing_of_that_name\nimport torch\n",
            "No module named 'nothing_of_that_name'",
        ),
        (LAUNCHER, "ValueError: no such config"),
    ],
    ids=["crash", "import", "launcher"],
)
def test_a_training_that_failed_tells_its_own_error(
    tmp_path: Path, script: str, said: str
) -> None:
    code, report = report_of(tmp_path, script)
    assert report["training_exit_code"] == code
    (finding,) = [
        one for one in report["findings"] if one["code"] == "no-training-step"
    ]
    assert said in finding["message"]
    assert "PYTHONPATH" not in json.dumps(report)


@pytest.mark.train
def test_a_run_that_only_replays_graphs_is_told_how_to_mark_steps(
    tmp_path: Path,
) -> None:
    # What a look-up on a graph calls; to make a graph takes a GPU.
    script = "import torch\nvars(torch.cuda.CUDAGraph)['replay'].listener(object())\n"
    line = f"{OURS} -o report -- {python_with_torch()} train.py"

    assert start(tmp_path, line, script).wait(timeout=PATIENCE_S) == 0

    report = (tmp_path / "report").read_text()
    assert "it replayed CUDA graphs" in " ".join(report.split())
    assert "call fp8verify.step() after each step" in " ".join(report.split())


def test_a_run_that_was_not_observed_says_why(tmp_path: Path) -> None:
    _, report = report_of(tmp_path, "print('hello')\n")
    assert "no observed Python process imported torch" in json.dumps(report)


@pytest.mark.parametrize(
    ("options", "training", "code"),
    [("", 0, 3), ("--exit-zero", 0, 0), ("--exit-zero", 7, 7)],
)
def test_a_capture_that_is_removed_costs_the_report(
    tmp_path: Path, options: str, training: int, code: int
) -> None:
    # The runner may write into it still, so that once is not always enough.
    script = (
        "import os, shutil, sys\nwhile os.path.exists('capture'):\n"
        f"    shutil.rmtree('capture', ignore_errors=True)\nsys.exit({training})\n"
    )
    ours = f"{PLAIN} -m fp8verify run --steps 3-4 {options} --trace-dir capture"
    done = execute(tmp_path / "run", "{} train.py", ours, script)

    assert done.code == code
    assert done.stderr.startswith("fp8verify: ")
    assert len(done.stderr.splitlines()) == 1
    assert training or "there is no report: " in done.stderr


def test_a_tool_without_torch_runs_the_script_with_the_active_environments_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = tmp_path / "active" / "bin" / "python"
    active.parent.mkdir(parents=True)
    active.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {PLAIN} "$@"\n'
    )
    active.chmod(0o755)
    torch_in(tmp_path)
    monkeypatch.setattr(command, "find_spec", lambda _: None)

    chosen = command.choose_python(None, {"VIRTUAL_ENV": f"{tmp_path / 'active'}"})

    assert chosen == (str(active), "of VIRTUAL_ENV")
    monkeypatch.setattr(command, "find_spec", lambda _: object())  # torch is here
    assert (
        command.choose_python(None, {"VIRTUAL_ENV": "/elsewhere"}).program
        == sys.executable
    )


def test_what_a_run_leaves_is_private(tmp_path: Path) -> None:
    line = f"umask 0; {PLAIN} -m fp8verify run --trace-dir capture train.py 2> err"
    start(tmp_path, line, "print('x')\n").wait(timeout=PATIENCE_S)

    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in (tmp_path / "capture").iterdir()
    }
    assert modes == dict.fromkeys(("log.txt", "report.html", "report.json"), 0o600)


@pytest.mark.train
@pytest.mark.parametrize(
    "options",
    ["--steps 3-4 --layers --debug", "--every 5 --window 2 --numerics-every 1"],
    ids=["window", "watch"],
)
def test_what_a_training_leaves_is_private(tmp_path: Path, options: str) -> None:
    run = (
        f"{PLAIN} -m fp8verify run --exit-zero {options} --trace-dir capture -o report"
    )
    line = f"umask 0; {run} -- {python_with_torch()} {LOOP}"
    assert (
        start(tmp_path, line, stdout=subprocess.DEVNULL).wait(timeout=PATIENCE_S) == 0
    )

    left = [tmp_path / "capture", *(tmp_path / "capture").rglob("*")]
    modes = {path.name: path.stat().st_mode & 0o777 for path in left}
    wanted = {path.name: 0o700 if path.is_dir() else 0o600 for path in left}
    assert modes == wanted
    assert any(name.startswith("rank0.") for name in modes)


def test_an_interrupted_inspect_ends_by_the_signal(tmp_path: Path) -> None:
    code = (
        "import sys, fp8verify.pipeline.inspection as room\n"
        "def stop(*_, **__): raise KeyboardInterrupt\n"
        "room.inspect = stop\nfrom fp8verify.cli import main\n"
        "sys.argv = ['fp8verify', 'inspect', '.']\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"\nAborted!\n")

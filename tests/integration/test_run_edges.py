"""The edges of a run: the same script with and without us, at the ends of disks, pipes and lives.

Most scripts here need no torch: what is compared is all that surrounds the training.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fp8verify.cli.run_command import training_comes_first
from fp8verify.record import command
from fp8verify.record.collect_result import RunResult
from tests.shared_torch import python_with_torch

ROOT = Path(__file__).parents[2]
OURS = f"{shlex.quote(sys.executable)} -m fp8verify run --steps 3-4 --exit-zero"
PLAIN = shlex.quote(sys.executable)
SMALL = {**os.environ, "PYTHONPATH": f"{ROOT}", "OMP_NUM_THREADS": "1"}


class Result(NamedTuple):
    code: int
    stdout: str
    stderr: str
    files: dict[str, str]


def start(folder: Path, line: str, **options: object) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(["sh", "-c", line], cwd=folder, env=SMALL, **options)  # type: ignore[call-overload,no-any-return]


def execute(folder: Path, line: str, training: str, script: str) -> Result:
    """Run a shell line in which {} stands for the start of the training."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    command = line.format(training)
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=SMALL, capture_output=True, text=True, timeout=60
    )
    return Result(done.returncode, done.stdout, done.stderr, files(folder))


def files(folder: Path) -> dict[str, str]:
    """Return what a run left behind, but for captures and reports of ours."""
    return {
        path.name: path.read_text()
        for path in folder.iterdir()
        if path.is_file() and path.name != "report"
    }


def compare(tmp_path: Path, script: str, line: str = "{} train.py") -> Result:
    """Run a script with and without us and return the first, having compared the two."""
    plain = execute(tmp_path / "plain", line, PLAIN, script)
    ours = execute(tmp_path / "ours", line, f"{OURS} --trace-dir capture -o report", script)
    assert ours == plain
    return ours


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


# --- runs inside runs


def torch_in(folder: Path) -> None:
    """Put a package of that name where scripts find it, since the real one takes seconds."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("value = 7\n")


def test_a_run_inside_a_run_imports_torch_as_without_us(tmp_path: Path) -> None:
    for name in ("plain", "ours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("import torch\nprint(torch.value)\n")
        torch_in(tmp_path / name)
    inner = f"{OURS} --trace-dir inner -o report train.py"
    outer = f"{OURS} --trace-dir outer -o report.outer -- sh -c {shlex.quote(inner)}"

    done = start(tmp_path / "ours", outer, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    assert done.communicate(timeout=60) == (b"7\n", b"")
    assert done.returncode == 0


# --- where our output goes

SURVIVOR = """
import os, pathlib
for number in range(3):
    try:
        os.write(1, b"line %d\\n" % number)
    except OSError:
        pass
pathlib.Path("survived").touch()
"""


@pytest.mark.train
def test_the_outer_run_reports_on_the_capture_of_the_inner_one(tmp_path: Path) -> None:
    loop = ROOT / "tests" / "integration" / "scripts" / "loop.py"
    inner = f"{OURS} --trace-dir inner -o inner.json -- {python_with_torch()} {loop}"
    outer = f"{OURS} --trace-dir outer -o outer.json -- sh -c {shlex.quote(inner)}"

    assert start(tmp_path, outer, stdout=subprocess.DEVNULL).wait(timeout=120) == 0

    reports = [json.loads((tmp_path / f"{who}.json").read_text()) for who in ("inner", "outer")]
    clocks = [report["ranks"][0]["clock"] for report in reports]
    assert clocks[0] == clocks[1]
    said = f"a run of fp8verify inside this one recorded the training: {tmp_path / 'inner'}"
    assert [said in json.dumps(report) for report in reports] == [False, True]
    assert not list((tmp_path / "outer").glob("rank*"))


def test_a_full_disk_behind_stdout_does_not_end_the_run(tmp_path: Path) -> None:
    assert "survived" in compare(tmp_path, SURVIVOR, "{} train.py > /dev/full").files


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_closed_in_the_run(tmp_path: Path, closed: str) -> None:
    script = (
        "import os, pathlib, sys\n"
        "found = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]\n"
        "print(found)\n"
        "pathlib.Path('found').write_text(str(found))\n"
    )
    compare(tmp_path, script, f"{{}} train.py {closed}")


def test_a_redirected_stdout_holds_what_the_run_printed_and_nothing_else(tmp_path: Path) -> None:
    script = "import sys\nprint('{\"loss\": 1}')\nprint('warning', file=sys.stderr)\nsys.exit(3)\n"
    (tmp_path / "train.py").write_text(script)
    done = start(tmp_path, f"{OURS} train.py > metrics.jsonl", stderr=subprocess.PIPE)
    _, err = done.communicate(timeout=60)

    assert (tmp_path / "metrics.jsonl").read_text() == '{"loss": 1}\n'
    assert err.startswith(b"warning\n")
    assert b"INCONCLUSIVE" in err
    assert done.returncode == 3


@pytest.mark.parametrize("stderr", ["2>&-", "2> /dev/full"])
@pytest.mark.parametrize("options", ["", "-o /dev/full"])
def test_a_report_that_cannot_be_written_changes_nothing(
    tmp_path: Path, stderr: str, options: str
) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('{\"loss\": 1}')\nsys.exit(3)\n")

    done = start(tmp_path, f"{OURS} {options} train.py {stderr}", stdout=subprocess.PIPE)

    assert done.communicate(timeout=60) == (b'{"loss": 1}\n', None)
    assert done.returncode == 3


def test_the_json_report_holds_the_exit_code_of_the_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    line = f"{OURS} --format json -o report.json train.py"
    assert start(tmp_path, line).wait(timeout=60) == 7
    assert json.loads((tmp_path / "report.json").read_text())["training_exit_code"] == 7


# --- children and parents

UPLOAD = "import subprocess\nsubprocess.Popen({!r}, shell=True)\nprint('trained', flush=True)\n"


def test_a_child_that_outlives_the_run_still_prints(tmp_path: Path) -> None:
    late = "while [ ! -e go ]; do sleep 0.05; done; echo uploaded && echo done > uploaded"
    wait = "touch go; while ! grep -q uploaded out; do sleep 0.05; done"
    line = f"{{}} train.py > out; cat out; {wait}; cat out"
    result = compare(tmp_path, UPLOAD.format(late), line)

    assert result.stdout == "trained\ntrained\nuploaded\n"
    assert result.files["uploaded"] == "done\n"


def test_a_reader_of_stdout_sees_its_end_when_the_last_child_has_closed_it(tmp_path: Path) -> None:
    assert compare(tmp_path, UPLOAD.format("sleep 1; echo uploaded")).stdout.endswith("uploaded\n")


def test_a_child_that_never_stops_printing_does_not_hold_the_run(tmp_path: Path) -> None:
    script = UPLOAD.format("while [ -e going ]; do echo busy; done")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "going").touch()
    try:
        done = start(tmp_path, f"{OURS} -o report train.py > out")
        assert done.wait(timeout=300) == 0  # two processes that never rest beside it
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


def test_a_training_whose_runner_is_killed_goes_on_and_still_prints(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ORPHAN)
    runner = start(tmp_path, f"exec {OURS} --trace-dir capture train.py > out 2> err")
    wait_until((tmp_path / "pid").exists)

    runner.kill()
    runner.wait(timeout=30)
    (tmp_path / "go").touch()

    wait_until((tmp_path / "finished").exists)
    assert (tmp_path / "out").read_text() == "step 0\nstep 1\nstep 2\n"
    assert (tmp_path / "err").read_text() == "warning\n"
    assert relays_of(tmp_path) == []  # files need none


def relays_of(folder: Path) -> list[int]:
    """Return the processes that relay the output of runs in a folder."""
    lines = subprocess.getoutput("ps axww -o pid=,args=").splitlines()
    mine = [line for line in lines if "output_relay import main" in line and str(folder) in line]
    return [int(line.split()[0]) for line in mine]


def wait_for_relays(folder: Path, count: int) -> None:
    wait_until(lambda: len(relays_of(folder)) == count)


@pytest.mark.parametrize("order", ["relay relay", "runner relay relay", "relay runner relay"])
def test_what_is_killed_one_after_the_other_does_not_end_the_training(
    tmp_path: Path, order: str
) -> None:
    (tmp_path / "train.py").write_text(ORPHAN)
    line = f"{{ {OURS} --trace-dir capture -o report train.py; }} 2>&1 | cat > out"
    runner = start(tmp_path, line)
    wait_until((tmp_path / "pid").exists)
    training = int((tmp_path / "pid").read_text())
    count = 1
    for who in order.split():
        wait_for_relays(tmp_path, count)  # two at the same moment are the limit
        if who == "runner":
            os.kill(int(Path(f"/proc/{training}/stat").read_text().split()[3]), signal.SIGKILL)
            count = 2  # one of them waits
        else:
            os.kill(min(relays_of(tmp_path)), signal.SIGKILL)
            time.sleep(0.2)  # until it is gone, and its successor may be there
    (tmp_path / "go").touch()

    wait_until((tmp_path / "finished").exists)
    runner.wait(timeout=60)
    wait_until(lambda: not list((tmp_path / "capture").glob(".boot-*")))
    lines = [line for line in (tmp_path / "out").read_text().splitlines() if line != "Killed"]
    expected = ["step 0", "step 1", "step 2", "warning"]
    assert sorted(lines) == expected
    log = (tmp_path / "capture" / "log.txt").read_text()
    assert sorted(set(log.splitlines()) - {"Killed"}) == expected


def test_a_regular_file_is_the_trainings_own_stdout(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, stat, sys\nfound = os.fstat(1)\nprint(stat.S_ISREG(found.st_mode))\n"
        "sys.stdout.flush()\nos.truncate(1, 0)\nos.lseek(1, 0, 0)\nprint('again')\n"
    )
    (tmp_path / "out").write_text("before\n")
    line = f"{OURS} --trace-dir capture -o report train.py >> out"

    assert start(tmp_path, line).wait(timeout=60) == 0
    assert (tmp_path / "out").read_text() == "again\n"
    assert (tmp_path / "capture" / "log.txt").read_text().splitlines()[-1] == "again"


def test_lines_of_ours_in_the_same_file_are_not_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nos.write(2, b'step 1\\nfp8verify: ACTIVE so far\\nstep 2\\n')\n"
    )
    start(tmp_path, f"{OURS} --trace-dir capture train.py > out 2>&1").wait(timeout=60)

    assert (tmp_path / "capture" / "log.txt").read_text() == "step 1\nstep 2\n"
    assert "INCONCLUSIVE" in (tmp_path / "out").read_text()


def test_nothing_of_ours_stays_when_the_run_has_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('x')\n")
    assert start(tmp_path, f"{OURS} -o report train.py > out").wait(timeout=30) == 0
    wait_until(lambda: str(tmp_path) not in subprocess.getoutput("ps ax -o args"))


# --- Pythons and packages that are not ours


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_an_old_python_below_us_says_nothing_of_us(tmp_path: Path, version: str) -> None:
    old = next(Path.home().glob(f".pyenv/versions/{version}*/bin/python"), None)
    if old is None:
        pytest.skip(f"needs Python {version}")
    tool = "import sys; print([p for p in sys.path if 'boot' in p])"
    script = f"import subprocess\nsubprocess.check_call([{str(old)!r}, '-c', {tool!r}])\n"

    assert compare(tmp_path, script).stdout == "[]\n"


def test_the_start_of_every_python_is_valid_in_the_oldest() -> None:
    source = (ROOT / "fp8verify" / "agent" / "boot" / "sitecustomize.py").read_text()
    assert not re.search(r"->|f\"|: \w+ = |nonlocal|async|:=", source)


# --- launchers that start a runner for each rank


def test_the_tasks_of_a_slurm_step_make_one_folder_and_one_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nos.write(1, b'task %s\\n' % os.environb[b'SLURM_PROCID'])\n"
    )
    step = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=3"
    run = f"{shlex.quote(sys.executable)} -m fp8verify run --steps 3-4 train.py"
    tasks = " & ".join(f"{step} SLURM_PROCID={task} {run} 2> err.{task}" for task in range(3))

    done = start(tmp_path, f"{tasks} & wait", stdout=subprocess.PIPE)

    out, _ = done.communicate(timeout=60)
    assert sorted(out.splitlines()) == [b"task 0", b"task 1", b"task 2"]
    assert [p.name for p in tmp_path.glob("fp8verify-*")] == ["fp8verify-capture-slurm-7.0"]
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
    [("01", 0, {"0": 0, "1": 0}), ("10", 0, {"0": 3, "1": 0}), ("01", 5, {"0": 5, "1": 5})],
    ids=["left out, last", "left out, first", "failed"],
)
def test_a_task_whose_rank_is_left_out_ends_with_its_trainings_code(
    tmp_path: Path, order: str, ends_with: int, codes: dict[str, int]
) -> None:
    loop = str(ROOT / "tests" / "integration" / "scripts" / "loop.py")
    (tmp_path / "train.py").write_text(TASK.format(loop=loop))
    step = f"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 ENDS_WITH={ends_with}"
    run = f"{PLAIN} -m fp8verify run --steps 3-4 --ranks 0 -- {python_with_torch()} train.py"
    tasks = {
        task: start(tmp_path, f"{step} SLURM_NTASKS=2 SLURM_PROCID={task} {run} 2> err.{task}")
        for task in "01"
    }
    capture = tmp_path / "fp8verify-capture-slurm-7.0"
    wait_until(lambda: len(list(capture.glob("rank*.meta.json"))) == 2)
    copies = [*capture.glob(".boot-*/agent*"), *capture.glob(".agent")]

    ended = {}
    for task in order:
        (tmp_path / f"go.{task}").touch()
        ended[task] = tasks[task].wait(timeout=120)

    assert ended == codes
    assert len(copies) == 1
    assert not list(capture.glob(".agent*"))
    reported = [task for task in "01" if "INCONCLUSIVE" in (tmp_path / f"err.{task}").read_text()]
    assert reported[-1] == order[-1]


# --- what cannot start, and what nobody could observe


def test_a_start_that_fails_leaves_room_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF is not all of it")
    (tmp_path / "broken").chmod(0o755)
    (tmp_path / "train.py").write_text("print('ran')\n")

    first = start(tmp_path, f"{OURS} --trace-dir capture ./broken", stderr=subprocess.PIPE)
    _, err = first.communicate(timeout=60)
    second = start(tmp_path, f"{OURS} --trace-dir capture -o report train.py")

    assert first.returncode == 2
    assert err.startswith(b"error: Cannot run ./broken")
    assert second.wait(timeout=60) == 0


LAUNCHER = """
import subprocess, sys
worker = [sys.executable, "-c", "raise ValueError('no such config')"]
log = subprocess.run(worker, stderr=subprocess.PIPE, text=True).stderr
for line in log.splitlines():
    print("[rank1]: " + line)
raise subprocess.CalledProcessError(1, worker)
"""
LAUNCHER_ALONE = "import subprocess\nraise subprocess.CalledProcessError(1, 'worker')\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print(1)\nraise ValueError('no such config')\n", "ValueError: no such config"),
        ("import nothing_of_that_name\nimport torch\n", "No module named 'nothing_of_that_name'"),
        ("def f(:\n", "SyntaxError: "),
        (LAUNCHER, "ValueError: no such config"),
        (LAUNCHER_ALONE, "subprocess.CalledProcessError"),
    ],
    ids=["crash", "import", "syntax", "launcher", "launcher alone"],
)
def test_a_training_that_failed_is_told_its_own_error(
    tmp_path: Path, script: str, said: str
) -> None:
    (tmp_path / "train.py").write_text(script)
    start(tmp_path, f"{OURS} --format json -o report.json train.py").wait(timeout=60)

    report = json.loads((tmp_path / "report.json").read_text())
    (finding,) = [one for one in report["findings"] if one["code"] == "no-training-step"]
    assert said in finding["message"]
    assert "PYTHONPATH" not in json.dumps(report)


def test_a_run_that_was_not_observed_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    start(tmp_path, f"{OURS} --format json -o report.json train.py").wait(timeout=60)

    said = "no Python that could be observed imported torch"
    assert said in (tmp_path / "report.json").read_text()


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("--stpes 3-4 train.py", "no option --stpes", "Did you mean --steps?"),
        ("--steps 3-4 notebook.ipynb", "is a notebook", "jupyter execute notebook.ipynb"),
        ("--steps 3-4 --python /no/python train.py", "/no/python", "--python"),
        ("--steps 3-4 --trace-dir a:b train.py", "a:b cannot stand in PYTHONPATH", "--trace-dir"),
        ("--steps 3-4 --trace-dir 'a\"b' train.py", "cannot hold a trace", "--trace-dir"),
    ],
)
def test_mistakes_are_told_with_the_way_out(
    tmp_path: Path, line: str, error: str, hint: str
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "notebook.ipynb").touch()
    run = f"{shlex.quote(sys.executable)} -m fp8verify run {line}"
    _, err = start(tmp_path, run, stderr=subprocess.PIPE).communicate(timeout=60)

    first, second = err.decode().splitlines()
    assert error in first
    assert hint in second


def test_a_training_that_fails_keeps_its_exit_code_where_no_report_can_be_made(
    tmp_path: Path,
) -> None:
    # The runner may write into it still, so that once is not always enough.
    script = (
        "import os, shutil, sys\nwhile os.path.exists('capture'):\n"
        "    shutil.rmtree('capture', ignore_errors=True)\nsys.exit(7)\n"
    )
    done = execute(tmp_path / "run", "{} train.py", f"{OURS} --trace-dir capture", script)

    assert done.code == 7
    assert done.stderr.startswith("fp8verify: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("options", "code"), [("", 3), ("--exit-zero", 0)])
def test_a_capture_that_is_removed_costs_the_report(
    tmp_path: Path, options: str, code: int
) -> None:
    script = (
        "import os, shutil\nwhile os.path.exists('capture'):\n"
        "    shutil.rmtree('capture', ignore_errors=True)\n"
    )
    ours = f"{PLAIN} -m fp8verify run --steps 3-4 {options} --trace-dir capture"
    done = execute(tmp_path / "run", "{} train.py", ours, script)

    assert done.code == code
    assert done.stderr.startswith("fp8verify: there is no report: ")


@pytest.mark.parametrize(
    ("training", "exit_zero", "code"), [(7, False, 7), (0, False, 3), (0, True, 0)]
)
def test_an_error_of_the_report_comes_after_the_training(
    capsys: pytest.CaptureFixture[str], training: int, exit_zero: bool, code: int
) -> None:
    result = RunResult(Path("capture"), training)
    with (
        pytest.raises(SystemExit) as ended,
        training_comes_first(result, debug=False, exit_zero=exit_zero),
    ):
        raise ValueError("ours")

    assert ended.value.code == code
    assert "there is no report: ValueError: ours" in capsys.readouterr().err


def test_a_tool_without_torch_runs_the_script_with_the_active_environments_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = tmp_path / "active" / "bin" / "python"
    active.parent.mkdir(parents=True)
    active.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {PLAIN} "$@"\n')
    active.chmod(0o755)
    torch_in(tmp_path)
    monkeypatch.setattr(command, "find_spec", lambda _: None)

    chosen = command.choose_python(None, {"VIRTUAL_ENV": f"{tmp_path / 'active'}"})

    assert chosen == (str(active), "of VIRTUAL_ENV")


def test_a_tool_with_torch_runs_the_script_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: object())

    assert command.choose_python(None, {"VIRTUAL_ENV": "/elsewhere"}).program == sys.executable


# --- terminals


def test_a_terminal_that_is_resized_is_so_when_the_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, signal, time\n"
        "seen = []\n"
        "look = lambda *_: seen.append(os.get_terminal_size(1).columns)\n"
        "signal.signal(signal.SIGWINCH, look)\n"
        "pathlib.Path('ready').touch()\n"
        "while 123 not in seen: time.sleep(0.02)\n"
        "pathlib.Path('seen').touch()\n"
    )
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execve("/bin/sh", ["sh", "-c", f"{OURS} -o report train.py"], SMALL)
    wait_until((tmp_path / "ready").exists)

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 123, 0, 0))

    wait_until((tmp_path / "seen").exists)
    os.waitpid(child, 0)
    os.close(terminal)

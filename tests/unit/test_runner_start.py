"""What a training waits for before it starts, and what comes while it does."""

from __future__ import annotations

import ast
import errno
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from fp8verify.record import keeper, output, runner, terminal
from fp8verify.record.injection import make_boot_folder
from fp8verify.record.node import node_name
from fp8verify.record.runner import run_training
from fp8verify.record.settings import RunSettings
from tests.command_line import PATIENCE_S

ROOT = Path(__file__).parents[2]
OUR_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
OURS = [sys.executable, "-m", "fp8verify", "run", "--steps", "3-4"]
# Runs `fp8verify run` up to the training, and says of that moment what there is.
AT_THE_START = """
import os, sys
before = set(sys.modules)
import _posixsubprocess
def start(*words, **_):
    command = [os.fsdecode(word) for word in words[0 if isinstance(words[0], (list, tuple)) else 1]]
    modules = sorted(set(sys.modules) - before)
    files = sorted(
        os.path.relpath(os.path.join(folder, name), "capture")
        for folder, _, names in os.walk("capture") for name in names
    )
    print(repr((command, modules, files)), flush=True)
    os._exit(0)
os.posix_spawn = _posixsubprocess.fork_exec = start
from fp8verify.cli import main
sys.argv = ["fp8verify", *sys.argv[1:]]
main()
"""
# Modules of the standard library whose import takes a millisecond or more and can wait.
LATE = {
    "asyncio", "csv", "dataclasses", "difflib", "email", "hashlib", "logging", "py_compile",
    "random", "shlex", "socket", "statistics", "tempfile", "traceback",
}  # fmt: skip
# Rooms that judge and report; of those the command line takes names of options.
LATE_ROOMS = {
    "analysis", "annotate", "comparison", "integrations", "kernels", "logs", "pipeline",
    "preflight", "prove", "terms", "trace",
}  # fmt: skip
OPTIONS_OF = {"fp8verify.report", "fp8verify.model", "fp8verify.verdict.policy"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_that_can_wait_is_done_before_the_training() -> None:
    Path("train.py").write_text("print('ran')\n")
    Path("pyproject.toml").write_text('[project]\ndependencies = ["torch"]\n')
    words = [
        "run",
        "--steps",
        "10-12",
        "--trace-dir",
        "capture",
        "train.py",
        "--lr",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_START, *words],
        env=OUR_ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    command, modules, files = ast.literal_eval(done.stdout)
    assert command[1:] == ["train.py", "--lr", "1"]  # nothing else was started before

    ours = {name for name in modules if name.startswith("fp8verify.")}
    rooms = {name for name in ours if name.split(".")[1] in LATE_ROOMS}
    others = {name for name in ours if name.split(".")[1] in {"verdict", "report"}}
    assert set(modules) & LATE == set()
    assert not {
        name
        for name in modules
        if name.partition(".")[0] in {"rich", "msgspec", "isal"}
    }
    assert rooms == set()
    assert others - OPTIONS_OF <= {"fp8verify.verdict"}
    assert len(ours) < 60

    kinds = [name.split("/", 1)[-1] for name in files]
    own = [
        "_fp8verify_boot.py",
        "agent.zip",
        "config.json",
        "log.txt",
        f"runner.{node_name()}",
        "sitecustomize.py",
    ]
    assert sorted(kinds) == own


# --- the archive


@pytest.mark.parametrize("version", ["", "3.9", "3.10", "3.12", "3.13"])
def test_every_python_imports_the_agent_from_the_archive(
    tmp_path: Path, version: str
) -> None:
    python = sys.executable
    if version:
        python = next(
            map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")), ""
        )
    if not python:
        pytest.skip(f"needs Python {version}")
    make_boot_folder(tmp_path / "boot", {})
    Path("torch.py").write_text("")
    code = (
        "import sys, _fp8verify_boot as b; agent = b._load_agent('boot/agent.zip'); agent.arm;"
        "print('boot/agent.zip' in sys.path, agent.__file__.rpartition('.')[2])"
    )
    environment = {"PYTHONPATH": str(ROOT / "fp8verify" / "agent" / "boot")}
    command = [python, "-S", "-B", "-c", code]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    same = version in ("", f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert done.stdout == f"False {'pyc' if same else 'py'}\n"


# --- a run that starts, and what may fail while it does


def test_without_room_for_the_agent_nothing_is_started(tmp_path: Path) -> None:
    Path("train.py").write_text("open('ran', 'w')\n")
    limited = f"ulimit -f 256; exec {' '.join(OURS)} --trace-dir capture train.py"
    done = subprocess.run(
        ["bash", "-c", limited], env=OUR_ENVIRONMENT, capture_output=True, text=True
    )

    assert done.returncode == 2
    fact, hint = done.stderr.splitlines()
    assert (
        fact
        == f"error: Cannot write to the capture folder {tmp_path}/capture: File too large."
    )
    assert hint.startswith("hint: Make room there")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_a_run_leaves_does_not_change_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("not what was expected")

    monkeypatch.setattr(runner, "collect_result", fail)
    Path("train.py").write_text("raise SystemExit(3)\n")

    result = run_training(["train.py"], RunSettings(trace_dir=Path("capture")))

    told = "what the run left cannot be read: ValueError: not what was expected"
    assert (result.exit_code, result.notes) == (3, (told,))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("training", "code"), [(7, 7), (0, 130)])
def test_an_interrupt_between_the_run_and_its_report_keeps_the_exit_code(
    training: int, code: int
) -> None:
    Path("train.py").write_text(f"raise SystemExit({training})\n")
    interrupted = (
        "import os, signal, sys\nfrom fp8verify.cli import main\n"
        "from fp8verify.record import runner\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def interrupt(*_, **__):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "runner.holds_nothing = interrupt\n"
        "sys.argv = ['fp8verify', 'run', '--trace-dir', 'capture', 'train.py']\nmain()\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", interrupted], env=OUR_ENVIRONMENT, capture_output=True,
        text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip

    assert ended.returncode == code
    assert "fp8verify inspect" in ended.stderr
    assert "Aborted" not in ended.stderr


# Prints more than a pipe holds.
PRINTS = "import sys\nfor _ in range(300):\n    print('x' * 999)\nprint('end', file=sys.stderr)\n"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_runner_that_is_killed_at_the_start_leaves_a_reader(moment: str) -> None:
    Path("train.py").write_text(PRINTS)
    killed = (
        "import os, signal, sys\nfrom fp8verify.cli import main\n"
        "from fp8verify.record import runner\nbefore = runner.subprocess.Popen\n"
        "def start(words, **given):\n"
        "    if words[-1] != 'train.py':\n"
        "        return before(words, **given)\n"
        f"    {'before(words, **given)' if moment == 'after' else 'pass'}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "runner.subprocess.Popen = start\nsys.argv[0] = 'fp8verify'\nmain()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            killed,
            "run",
            "--steps",
            "3-4",
            "--trace-dir",
            "c",
            "train.py",
        ],
        env=OUR_ENVIRONMENT,
        capture_output=True,  # until the training and the reader of its output end
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    printed = ("x" * 999 + "\n") * 300 if moment == "after" else ""
    told = "end\n" if moment == "after" else ""
    assert (done.returncode, done.stdout, done.stderr) == (-9, printed, told)
    assert Path("c/log.txt").stat().st_size == len(printed + told)
    assert not list(Path("c").glob(".boot-*"))


# Says what it was given of what its runner holds, and of what the shell opened for both.
HELD = "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])\n"


def test_the_training_gets_no_descriptor_of_the_reader() -> None:
    Path("train.py").write_text(HELD)
    given = os.open("train.py", os.O_RDONLY)
    os.set_inheritable(given, True)
    plain = [sys.executable, "train.py"]
    command = [*OURS, "--exit-zero", "-o", "report.txt", "train.py"]
    bare, ours = (
        subprocess.check_output(words, text=True, pass_fds=[given], env=OUR_ENVIRONMENT)
        for words in (plain, command)
    )
    os.close(given)
    assert ours == bare


def test_the_reader_keeps_no_descriptor_that_the_shell_opened() -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    # The training has closed it, and the runner is gone.
    Path("train.py").write_text(
        f"import os, signal\nos.close({write_end})\nos.kill(os.getppid(), signal.SIGKILL)\n"
        "import sys\nprint('closed', flush=True)\nsys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [*OURS, "--exit-zero", "-o", "report.txt", "train.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        pass_fds=[write_end], env=OUR_ENVIRONMENT,
    ) as run:  # fmt: skip
        os.close(write_end)
        ended, _, _ = select.select(
            [read_end], [], [], 30
        )  # once nobody holds the other end
        printed, _ = run.communicate(b"go\n", timeout=PATIENCE_S)
    assert ended
    assert os.read(read_end, 1) == b""
    assert printed == b"closed\n"
    os.close(read_end)


def test_a_finder_of_the_script_is_asked_once() -> None:
    Path("torch.py").write_text("")
    Path("train.py").write_text("""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        print("asked for", name, flush=True)
sys.meta_path.insert(0, Finder())
import torch
""")
    shown = subprocess.check_output(
        [*OURS, "--exit-zero", "-o", "report", "train.py"],
        env=OUR_ENVIRONMENT,
        text=True,
    )
    assert shown.count("asked for torch\n") == 1


def test_where_no_keeper_can_be_started_the_output_is_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def none_more() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(keeper.os, "fork", none_more)
    Path("train.sh").write_text("echo out\necho err >&2\n")

    result = run_training(["sh", "train.sh"], RunSettings(trace_dir=Path("capture")))

    shown = capfd.readouterr()
    assert (result.exit_code, shown.out, shown.err) == (0, "out\n", "err\n")
    assert sorted((tmp_path / "capture" / "log.txt").read_text().split()) == [
        "err",
        "out",
    ]


def test_without_a_free_terminal_the_training_gets_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output.os, "isatty", lambda _: True)
    monkeypatch.setattr(terminal.os, "openpty", none_left)
    ends = output._pipe_like(1)
    os.write(ends[1], b"line")
    assert os.read(ends[0], 9) == b"line"

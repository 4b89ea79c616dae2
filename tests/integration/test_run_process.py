"""What surrounds the training is as without us: exit codes, signals, streams, terminals.

No torch is needed here: what is compared is all but the training.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attached import ROOT, environment
from tests.command_line import PATIENCE_S, heed_signals
from tests.integration.shells import OURS, PLAIN, compare, start, wait_until

READY = "import os, pathlib, signal, sys, time\n"
TOY = "print('a toy')\\n"
CLOSED = """
import sys
found = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
print(found)
open("found", "w").write(str(found))
"""
BROKEN = "raise ImportError('libcudart.so.13: cannot open')\\n"


@pytest.mark.parametrize(
    ("script", "line", "expected"),
    [
        ("import sys; sys.exit(7)", "", (7, "")),
        ("import sys; sys.exit('no')", "", (1, "")),
        ("import os; os._exit(5)", "", (5, "")),
        ("raise KeyError('x')", "", (1, "")),
        ("import os; os.kill(os.getpid(), 15)", "", (128 + 15, "")),
        ("import os\nos.write(1, bytes(range(256)) * 999)\nos.write(2, b'\\xff end')", "",
         (0, None)),
        (
            "import os\nfor i in range(200): os.write(1 + i % 2, b'%d\\n' % i)",
            "exec {} train.py 2>&1",  # both streams in their order
            (0, "".join(f"{number}\n" for number in range(200))),
        ),
        ("import sys; print(sys.stdin.read().upper())", "echo hi | {} train.py", (0, "HI\n\n")),
        ("import os; print(os.read(7, 9))", "exec 7< train.py; {} train.py", (0, None)),
        (
            "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)",
            "trap '' HUP; exec {} train.py",  # as nohup does
            (0, "True\n"),
        ),
        ("import importlib.util\nassert importlib.util.find_spec('torch')\nimport torch\n",
         f'printf "{BROKEN}" > torch.py; exec {{}} train.py', (1, "")),
        ("import torch\nprint(sorted(vars(torch.__loader__)))\n",
         f'printf "{TOY}" > torch.py; exec {{}} train.py', (0, "a toy\n['name', 'path']\n")),
        (
            "for i in range(10**6): print(i)",
            "( {} train.py; echo $? >&2 ) | head -c 10",  # a reader that goes away
            (0, "0\n1\n2\n3\n4\n"),
        ),
        ("import os\ntry: os.write(1, b'line')\nexcept OSError: pass\nopen('survived', 'w')",
         "exec {} train.py > /dev/full", (0, "")),
        *(
            (CLOSED, f"exec {{}} train.py {closed}", (0, None))
            for closed in (">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-")
        ),
    ],
)  # fmt: skip
def test_a_run_is_as_without_us(
    tmp_path: Path, script: str, line: str, expected: tuple[int, str | None]
) -> None:
    found = compare(tmp_path, script, line or "exec {} train.py")

    code, stdout = expected
    assert found.code == code
    assert stdout is None or found.stdout == stdout


# -- signals --------------------------------------------------------------------------------------


def begun(folder: Path, script: str, *signs: str) -> subprocess.Popen[bytes]:
    """Start a script, and wait until it has left the first of its signs."""
    line = f"exec {OURS} --trace-dir capture -o report train.py"
    child = start(
        folder, line, READY + script, start_new_session=True, preexec_fn=heed_signals
    )
    wait_until((folder / signs[0]).exists)
    return child


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT]
)
def test_signals_reach_the_script_once(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        f"heard = []\nsignal.signal({int(number)}, lambda *_: heard.append(1))\n"
        "pathlib.Path('ready').touch()\n"
        "while not heard: time.sleep(0.01)\n"
        "pathlib.Path('heard').touch()\n"
        "while len(heard) < 2: time.sleep(0.01)\n"
        "time.sleep(0.5)\nsys.exit(len(heard))\n"
    )
    child = begun(tmp_path, script, "ready")

    child.send_signal(number)  # to the runner alone, as `kill PID`
    wait_until((tmp_path / "heard").exists)
    os.killpg(child.pid, number)  # to all, as `timeout` and terminals

    assert child.wait(timeout=PATIENCE_S) == 2


def test_a_signal_right_behind_another_does_not_wait_for_a_third(
    tmp_path: Path,
) -> None:
    """Slurm sends SIGCONT and SIGTERM to a step, both to the runner alone."""
    script = (
        "heard = []\nnumbers = {signal.SIGCONT, signal.SIGTERM}\n"
        "for number in numbers: signal.signal(number, lambda n, _: heard.append(n))\n"
        "pathlib.Path('ready').touch()\n"
        "for turn in range(10):\n"
        "    while set(heard) != numbers: time.sleep(0.01)\n"
        "    heard.clear()\n"
        "    pathlib.Path(f'heard{turn}').touch()\n"
    )
    child = begun(tmp_path, script, "ready")

    for turn in range(10):
        child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
        wait_until((tmp_path / f"heard{turn}").exists)

    assert child.wait(timeout=PATIENCE_S) == 0


def test_every_signal_to_the_group_reaches_the_script_once(tmp_path: Path) -> None:
    script = (
        "kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGSEGV}\n"
        "numbers = sorted(signal.valid_signals() - kept)\nheard = []\n"
        # One that stops discards one that continues, and the other way round, if it is not taken yet.
        "alone = {signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}\n"
        "for number in numbers: signal.signal(number, lambda n, _: heard.append(n))\n"
        "for number in numbers:\n"
        "    os.killpg(0, number)\n"
        "    while number not in heard: time.sleep(0.02)\n"
        "    if number in alone: time.sleep(0.5)\n"
        "time.sleep(0.5)\n"  # for those that come a second time
        "print(sorted(heard) == numbers)\n"
    )
    found = compare(tmp_path, READY + script, "exec setsid -w {} train.py")
    assert (found.code, found.stdout) == (0, "True\n")


def test_a_signal_that_is_not_forwarded_by_name_reaches_the_script(
    tmp_path: Path,
) -> None:
    number = signal.SIGRTMIN + 3
    script = (
        f"heard = []\nsignal.signal({number}, lambda *_: heard.append(1))\n"
        "pathlib.Path('ready').touch()\nwhile not heard: time.sleep(0.01)\n"
        "time.sleep(0.3)\nsys.exit(40 + len(heard))\n"
    )
    child = begun(tmp_path, script, "ready")
    child.send_signal(number)
    assert child.wait(timeout=PATIENCE_S) == 41


@pytest.mark.parametrize("options", ["", "--no-log"])
def test_the_process_list_counts_the_script_once(tmp_path: Path, options: str) -> None:
    script = (
        "import os, pathlib, sys\ncount = 0\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    try: words, folder = (path / 'cmdline').read_bytes(), os.readlink(path / 'cwd')\n"
        "    except OSError: continue\n"
        "    count += folder == os.getcwd() and b'train.py' in words\n"
        "print(count)\n"
    )
    line = f"exec {OURS} {options} -o report train.py --name train.py"
    done = start(tmp_path, line, script, stdout=subprocess.PIPE)
    assert done.communicate(timeout=PATIENCE_S)[0] == b"1\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGABRT, signal.SIGKILL])
def test_a_run_that_a_signal_ends_ends_by_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    child = begun(
        tmp_path,
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\npathlib.Path('ready').touch()\n"
        f"os.kill(os.getpid(), {int(number)})\n",
        "ready",
    )

    assert child.wait(timeout=PATIENCE_S) == -number


@pytest.mark.parametrize(
    "options", ["", "--after-seconds 0"], ids=["plain", "by click"]
)
@pytest.mark.parametrize(("training", "code"), [(7, 7), (0, 128 + 2)])
def test_an_interrupt_after_the_training_keeps_its_exit_code(
    tmp_path: Path, options: str, training: int, code: int
) -> None:
    script = (
        "import os, pathlib\npathlib.Path('pid.part').write_text(str(os.getpid()))\n"
        f"os.rename('pid.part', 'pid')\nraise SystemExit({training})\n"
    )
    os.mkfifo(tmp_path / "report")  # which nobody reads
    run = f"exec {PLAIN} -m fp8verify run {options} --steps 3 --trace-dir capture -o report"
    child = start(
        tmp_path, f"{run} train.py", script, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=heed_signals,
    )  # fmt: skip
    wait_until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(pid))

    def interrupted() -> bool:
        child.send_signal(signal.SIGINT)
        return child.poll() is not None

    wait_until(interrupted, every=0.2)

    assert child.returncode == code
    assert b"fp8verify inspect" in child.communicate()[1]


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


# -- terminals ------------------------------------------------------------------------------------


def on_a_terminal(folder: Path, script: str) -> tuple[int, int]:
    """Start a script on a terminal of its own; return the process and the terminal."""
    (folder / "train.py").write_text(READY + script)
    child, terminal = pty.fork()
    if not child:
        heed_signals()
        os.chdir(folder)
        run = f"exec {OURS} --trace-dir capture -o report train.py"
        os.execve("/bin/sh", ["sh", "-c", run], environment())
    wait_until((folder / "ready").exists)
    return child, terminal


@pytest.mark.parametrize("sender", ["a process", "the terminal"])
def test_an_interrupt_on_a_terminal_reaches_the_script_once(
    tmp_path: Path, sender: str
) -> None:
    script = (
        "seen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "pathlib.Path('ready').touch()\nwhile not seen: time.sleep(0.02)\n"
        "time.sleep(0.3)\npathlib.Path('seen').write_text(str(len(seen)))\n"
    )
    child, terminal = on_a_terminal(tmp_path, script)

    if sender == "a process":
        os.kill(child, signal.SIGINT)
    else:
        os.write(terminal, b"\x03")

    wait_until((tmp_path / "seen").exists)
    os.waitpid(child, 0)
    os.close(terminal)
    assert (tmp_path / "seen").read_text() == "1"


def test_a_terminal_that_is_resized_is_so_when_the_run_is_told(tmp_path: Path) -> None:
    script = (
        "seen = []\nlook = lambda *_: seen.append(os.get_terminal_size(1).columns)\n"
        "signal.signal(signal.SIGWINCH, look)\npathlib.Path('ready').touch()\n"
        "while 123 not in seen: time.sleep(0.02)\npathlib.Path('seen').touch()\n"
    )
    child, terminal = on_a_terminal(tmp_path, script)

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 123, 0, 0))

    wait_until((tmp_path / "seen").exists)
    os.waitpid(child, 0)
    os.close(terminal)


def test_on_a_terminal_the_script_has_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)\n"
    )
    out = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 1024)
        out.extend(data)
        return data

    run = (
        f"cd {shlex.quote(str(tmp_path))}; stty cols 97; PYTHONPATH={ROOT} exec {OURS}"
    )
    status = pty.spawn(
        ["sh", "-c", f"{run} --trace-dir capture -o report train.py"], read
    )

    assert os.waitstatus_to_exitcode(status) == 0
    assert out == b"True True 97\r\n"
    assert (tmp_path / "capture" / "log.txt").read_bytes() == b"True True 97\n"


# -- the user's own sitecustomize -----------------------------------------------------------------


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    theirs = tmp_path / "theirs" / "sitecustomize.py"
    theirs.write_text("print('theirs', __name__)\n")
    script = "import sitecustomize, sys\nprint(sitecustomize.__file__, sys.path[1:3])\n"
    line = f"PYTHONPATH={theirs.parent}:{ROOT} exec {OURS} -o report train.py"

    done = start(tmp_path, line, script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    out, err = done.communicate(timeout=PATIENCE_S)
    # Once in the runner, which is Python as well, and once in the script.
    assert out.decode().splitlines() == [
        "theirs sitecustomize",
        "theirs sitecustomize",
        f"{theirs} {[str(theirs.parent), str(ROOT)]}",
    ]
    assert err == b""


def test_errors_in_the_users_sitecustomize_look_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    path = f"PYTHONPATH={ROOT}:{tmp_path}"
    alone, ours = (
        start(
            tmp_path, f"{path} exec {run} train.py", "", stderr=subprocess.PIPE
        ).communicate()[1]
        for run in (PLAIN, f"{OURS} -o report")
    )

    # The runner is Python as well, and complains first.
    assert b"ValueError: theirs" in alone
    assert ours == alone * 2


def test_the_start_of_every_python_is_valid_in_the_oldest() -> None:
    source = (ROOT / "fp8verify" / "agent" / "boot" / "sitecustomize.py").read_text()
    assert not re.search(r"->|f\"|: \w+ = |nonlocal|async|:=", source)

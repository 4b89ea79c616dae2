"""What surrounds the training: exit codes, signals, streams, terminals; no torch needed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.command_line import heed_signals

ROOT = Path(__file__).parents[2]
ATTACH = Path(__file__).parent / "scripts" / "attach.py"


def start(tmp_path: Path, script: str, **options: object) -> subprocess.Popen[bytes]:
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, ATTACH, "3", "0", tmp_path / "capture", tmp_path / "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}  # type: ignore[dict-item]
    options.setdefault("preexec_fn", heed_signals)
    return subprocess.Popen(command, env=environment, cwd=tmp_path, **options)  # type: ignore[call-overload,no-any-return]


def run(tmp_path: Path, script: str, **options: object) -> tuple[int, bytes, bytes]:
    child = start(tmp_path, script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.02)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    with suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            assert time.monotonic() < deadline, f"process {pid} never ended"
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('no')", 1),
        ("os._exit(5)", 5),
        ("raise KeyError('x')", 1),
        ("os.kill(os.getpid(), 15)", 128 + 15),
        ("pass", 0),
    ],
)
def test_the_exit_code_is_the_runs_own(tmp_path: Path, ending: str, code: int) -> None:
    assert run(tmp_path, f"import os, sys\n{ending}\n")[0] == code


def test_streams_are_echoed_byte_for_byte(tmp_path: Path) -> None:
    script = "import os\nos.write(1, bytes(range(256)) * 999)\nos.write(2, b'\\xff no newline')\n"

    code, out, err = run(tmp_path, script)

    assert (code, out, err) == (0, bytes(range(256)) * 999, b"\xff no newline")


def test_one_file_for_both_streams_keeps_their_order(tmp_path: Path) -> None:
    script = "import os\nfor i in range(200): os.write(1 + i % 2, b'%d\\n' % i)\n"

    child = start(tmp_path, script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    out, _ = child.communicate(timeout=60)
    assert out.split() == [b"%d" % i for i in range(200)]


def test_input_reaches_the_script(tmp_path: Path) -> None:
    script = "import sys\nprint(sys.stdin.read().upper())\n"
    child = start(tmp_path, script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    assert child.communicate(b"hello", timeout=60)[0] == b"HELLO\n"


def test_descriptors_that_the_shell_opened_reach_the_script(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"data")
    os.close(writer)
    script = f"import os\nprint(os.read({reader}, 9))\n"

    _, out, _ = run(tmp_path, script, pass_fds=[reader])

    os.close(reader)
    assert out == b"b'data'\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT])
def test_signals_reach_the_script(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(9))\n"
        "pathlib.Path('ready').touch()\n"
        "time.sleep(90)\n"
    )
    child = start(tmp_path, script, start_new_session=True)
    wait_for(tmp_path / "ready")

    child.send_signal(number)

    assert child.wait(timeout=60) == 9


@pytest.mark.parametrize("sender", ["a process", "the terminal"])
def test_an_interrupt_on_a_terminal_reaches_the_script_once(tmp_path: Path, sender: str) -> None:
    (tmp_path / "script.py").write_text(
        "import pathlib, signal, time\nseen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "pathlib.Path('ready').touch()\n"
        "while not seen: time.sleep(0.02)\n"
        "time.sleep(0.3)\npathlib.Path('seen').write_text(str(len(seen)))\n"
    )
    child, terminal = pty.fork()
    if not child:
        heed_signals()
        os.chdir(tmp_path)
        words = [sys.executable, str(ATTACH), "3", "0", "capture", "script.py"]
        os.execve(sys.executable, words, {**os.environ, "PYTHONPATH": str(ROOT)})
    wait_for(tmp_path / "ready")
    if sender == "a process":
        os.kill(child, signal.SIGINT)
    else:
        os.write(terminal, b"\x03")

    wait_for(tmp_path / "seen")
    os.waitpid(child, 0)
    os.close(terminal)
    assert (tmp_path / "seen").read_text() == "1"


@pytest.mark.parametrize(
    ("signs", "code"),
    [(("ready", "interrupted"), 9), (("ready", "interrupted", "asked"), 128 + 9)],
    ids=["two", "three"],
)
def test_the_second_interrupt_asks_to_terminate_and_the_third_kills(
    tmp_path: Path, signs: tuple[str, ...], code: int
) -> None:
    last = "pass" if "asked" in signs else "sys.exit(9)"
    script = (
        "import pathlib, signal, sys, time\n"
        "def terminate(*_):\n"
        f"    pathlib.Path('asked').touch()\n    {last}\n"
        "signal.signal(signal.SIGINT, lambda *_: pathlib.Path('interrupted').touch())\n"
        "signal.signal(signal.SIGTERM, terminate)\n"
        "pathlib.Path('ready').touch()\n"
        "while True: time.sleep(0.1)\n"
    )
    child = start(tmp_path, script, start_new_session=True)
    for sign in signs:
        wait_for(tmp_path / sign)
        child.send_signal(signal.SIGINT)

    assert child.wait(timeout=60) == code


@pytest.mark.parametrize("options", [(), ("--after-seconds", "0")], ids=["plain", "by click"])
@pytest.mark.parametrize(("training", "code"), [(7, 7), (0, 128 + 2)])
def test_an_interrupt_after_the_training_keeps_its_exit_code(
    tmp_path: Path, options: tuple[str, ...], training: int, code: int
) -> None:
    (tmp_path / "script.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path('pid.part').write_text(str(os.getpid()))\n"
        f"os.rename('pid.part', 'pid')\nraise SystemExit({training})\n"
    )
    os.mkfifo(tmp_path / "report")  # which nobody reads
    command = [sys.executable, "-m", "fp8verify", "run", *options, "--steps", "3"]
    command += ["--trace-dir", "capture", "-o", "report", "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    child = subprocess.Popen(
        command,
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    wait_for(tmp_path / "pid")
    wait_until_gone(int((tmp_path / "pid").read_text()))
    while child.poll() is None:
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)

    assert child.returncode == code
    assert child.stderr is not None
    assert b"fp8verify inspect" in child.stderr.read()


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    script = "import signal\nprint(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\n"

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    _, out, _ = run(tmp_path, script, preexec_fn=ignore)

    assert out == b"True\n"


def test_a_background_process_does_not_hold_the_run(tmp_path: Path) -> None:
    script = (
        "import pathlib, subprocess\n"
        "child = subprocess.Popen(['sleep', '90'])\n"
        "pathlib.Path('child').write_text(str(child.pid))\n"
        "print('done')\n"
    )
    with (tmp_path / "out").open("wb") as out:
        child = start(tmp_path, script, stdout=out)

        assert child.wait(timeout=60) == 0  # far less than the sleep
    assert (tmp_path / "out").read_bytes() == b"done\n"
    os.kill(int((tmp_path / "child").read_text()), signal.SIGTERM)


def test_a_reader_that_goes_away_ends_the_run_as_without_us(tmp_path: Path) -> None:
    script = "import sys\nfor i in range(10**6): print(i)\n"
    child = start(tmp_path, script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(10)

    child.stdout.close()

    assert child.wait(timeout=30) == 1
    assert b"BrokenPipeError" in child.stderr.read()
    child.stderr.close()


def test_on_a_terminal_the_script_has_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)\n"
    )
    out = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 1024)
        out.extend(data)
        return data

    environment = f"PYTHONPATH={ROOT}"
    command = ["env", environment, sys.executable, ATTACH, "3", "0", tmp_path / "capture"]
    shell = "stty cols 97; exec " + " ".join(map(str, [*command, tmp_path / "script.py"]))
    status = pty.spawn(["sh", "-c", shell], read)

    assert os.waitstatus_to_exitcode(status) == 0
    assert out == b"True True 97\r\n"
    assert (tmp_path / "capture" / "log.txt").read_bytes() == b"True True 97\n"


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs', __name__)\n")
    path = f"{theirs}{os.pathsep}{ROOT}"

    _, out, err = run(
        tmp_path,
        "import sitecustomize, sys\nprint(sitecustomize.__file__)\nprint(sys.path[1:3])\n",
        env={"PYTHONPATH": path},
    )

    # Once in the driver, which is Python as well, and once in the script.
    assert out.decode().splitlines() == [
        "theirs sitecustomize",
        "theirs sitecustomize",
        str(theirs / "sitecustomize.py"),
        str([str(theirs), str(ROOT)]),
    ]
    assert err == b""


def test_errors_in_the_users_sitecustomize_look_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    plain = subprocess.run(
        [sys.executable, "-c", ""], env={**os.environ, **environment}, capture_output=True
    )

    _, _, err = run(tmp_path, "", env=environment)

    # The driver is Python as well, and complains first.
    assert b"ValueError: theirs" in plain.stderr
    assert err == plain.stderr * 2


def test_a_broken_torch_fails_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open')\n")
    script = "import importlib.util\nassert importlib.util.find_spec('torch')\nimport torch\n"

    code, _, err = run(tmp_path, script)

    assert code == 1
    assert err.decode().splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/script.py", line 3, in <module>',
        "    import torch",
        f'  File "{tmp_path}/torch.py", line 1, in <module>',
        "    raise ImportError('libcudart.so.13: cannot open')",
        "ImportError: libcudart.so.13: cannot open",
    ]


def test_a_foreign_module_named_torch_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('a toy')\n")

    code, out, err = run(tmp_path, "import torch\nprint(sorted(vars(torch.__loader__)))\n")

    assert (code, out, err) == (0, b"a toy\n['name', 'path']\n", b"")

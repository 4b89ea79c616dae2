"""A script on a terminal is as without us: job control, keys, sizes, prompts, curses.

No torch is needed here. Each script runs on a pseudo-terminal, with and without us, and is typed
the same keys when it has printed the same text.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.attached import ROOT, environment
from tests.command_line import PATIENCE_S, heed_signals
from tests.integration.shells import OURS, PLAIN, text_of, wait_until

RUN = f"{OURS} --trace-dir capture -o report"


class Session:
    """A process on a terminal of its own, and what it has shown there."""

    def __init__(self, pid: int, terminal: int) -> None:
        self.pid = pid
        self.terminal = terminal
        self.shown = ""
        self._end = time.monotonic() + PATIENCE_S

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    def wait_for(self, pattern: str) -> str:
        """Read until a pattern is shown after what was waited for before; return what it is."""
        while not (found := re.search(pattern, self.shown)):
            assert self._read(), f"it ended without {pattern!r}: {self.shown!r}"
        self.shown = self.shown[found.end() :]
        return found[0]

    def type_until(self, keys: str, pattern: str) -> None:
        """Type keys again and again until a pattern is shown."""
        while not re.search(pattern, self.shown):
            self.type(keys)
            until = time.monotonic() + 1
            while time.monotonic() < until:
                assert self._read()
        self.wait_for(pattern)

    def wait(self) -> int:
        """Read to the end; return the exit code, negative for a signal."""
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def modes(self) -> object:
        return termios.tcgetattr(self.terminal)

    def _signals(self) -> str:
        """Say which signals the process blocks, ignores and catches, to understand a hang."""
        with suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            return " ".join(re.findall(r"Sig\w+:\s+\w+", status))
        return "it has gone"

    def _read(self) -> bool:
        assert time.monotonic() < self._end, (
            f"it hangs after {self.shown!r}: {self._signals()}"
        )
        if select.select([self.terminal], [], [], 0.1)[0]:
            try:
                data = os.read(self.terminal, 65536)
            except OSError:
                return False
            self.shown += data.decode("utf-8", "replace")
            return bool(data)
        return True


@contextmanager
def session(
    folder: Path, words: Sequence[str], script: str = "", terminfo: str = "dumb"
) -> Iterator[Session]:
    """Start a command on a terminal of 30 lines and 100 columns."""
    folder.mkdir(exist_ok=True)
    if script:
        (folder / "train.py").write_text(script)
    pid, terminal = pty.fork()
    if not pid:
        heed_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        size = struct.pack("HHHH", 30, 100, 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        variables = {**environment(), "TERM": terminfo, "PS1": "$ ", "HISTFILE": ""}
        for size_of_ours in (
            "LINES",
            "COLUMNS",
        ):  # GNU readline, once loaded, sets them
            variables.pop(size_of_ours, None)
        os.execvpe(words[0], list(words), variables)
    try:
        yield Session(pid, terminal)
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def line_of(command: str) -> list[str]:
    return ["/bin/sh", "-c", f"exec {command} train.py"]


both = pytest.mark.parametrize("command", [PLAIN, RUN], ids=["plain", "ours"])


@both
@pytest.mark.parametrize("redirection", ["", "< /dev/null", "2> err", "> out"])
def test_the_script_is_in_the_foreground_of_a_terminal(
    tmp_path: Path, command: str, redirection: str
) -> None:
    script = (
        "import os\nterminal = os.open('/dev/tty', os.O_RDWR)\n"
        "own = os.tcgetpgrp(terminal) == os.getpgrp()\n"
        "os.write(terminal, b'own %d size %d' % (own, os.get_terminal_size(terminal)[0]))\n"
    )
    words = ["/bin/sh", "-c", f"exec {command} train.py {redirection}"]
    with session(tmp_path, words, script) as run:
        run.wait_for("own 1 size 100")
        assert run.wait() == 0


@both
def test_a_password_is_asked_on_the_terminal_and_not_shown(
    tmp_path: Path, command: str
) -> None:
    script = (
        "import getpass, sys\nprint('got', getpass.getpass()[::-1])\n"
        "print('line', input('? ').upper())\nprint(sys.stdin.read().upper())\n"
    )
    with session(tmp_path, line_of(command), script) as run:
        run.wait_for("Password: ")
        run.type("secret\n")
        assert run.wait_for(r"(?s).*got terces") == "\r\ngot terces"
        run.wait_for(r"\? ")
        run.type("an x\x7fswer\n")  # edited by the terminal, which also shows it
        assert "LINE" not in run.wait_for(r"(?s).*line AN SWER")
        run.type("rest\n\x04")
        run.wait_for("REST")
        assert run.wait() == 0


CURSES = """
import curses
def main(screen):
    key = 0
    while key != ord("q"):
        rows, columns = screen.getmaxyx()
        screen.clear()  # all of it is drawn anew
        screen.addstr(0, 0, f"size {rows}x{columns} key {curses.keyname(key).decode()}")
        screen.refresh()
        key = screen.getch()
curses.wrapper(main)
print("left")
"""


@both
def test_curses_gets_keys_and_sizes(tmp_path: Path, command: str) -> None:
    with session(tmp_path, line_of(command), CURSES, "xterm") as run:
        run.wait_for("size 30x100")
        run.type("\x1bOA")
        run.wait_for("KEY_UP")
        run.resize(41, 77)
        # A signal between two system calls of curses is noticed at the next key.
        run.type_until("x", "41x77")
        run.type("q")
        run.wait_for("left")
        assert run.wait() == 0


@both
def test_a_window_that_is_resized_is_told_once(tmp_path: Path, command: str) -> None:
    script = (
        "import os, signal, time\nseen = []\n"
        "look = lambda *_: seen.append(os.get_terminal_size().columns)\n"
        "signal.signal(signal.SIGWINCH, look)\nprint('ready', flush=True)\n"
        "while not seen: time.sleep(0.02)\ntime.sleep(0.3)\nprint('seen', seen)\n"
    )
    with session(tmp_path, line_of(command), script) as run:
        run.wait_for("ready")
        run.resize(40, 123)
        run.wait_for(r"seen \[123\]")
        assert run.wait() == 0


@both
def test_ctrl_c_ends_the_run_by_its_signal(tmp_path: Path, command: str) -> None:
    script = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    with session(tmp_path, line_of(command), script) as run:
        before = run.modes()
        run.wait_for("ready")
        run.type("\x03")
        assert run.wait() == -signal.SIGINT
        assert "KeyboardInterrupt" in run.shown
        assert run.modes() == before


@both
def test_ctrl_c_reaches_the_job_and_each_process_once(
    tmp_path: Path, command: str
) -> None:
    script = (
        "import signal, subprocess, sys, time\nheard = []\n"
        "signal.signal(signal.SIGINT, lambda *_: heard.append(1))\n"
        "child = subprocess.Popen(['sh', '-c', 'trap \"echo child; exit\" INT;"
        " echo ready; while :; do sleep 0.05; done'])\n"
        "while not heard: time.sleep(0.02)\nchild.wait()\ntime.sleep(0.3)\n"
        "print('heard', len(heard), flush=True)\n"
    )
    job = f"trap 'echo job' INT; {command} train.py; echo code $?"
    with session(tmp_path, ["/bin/sh", "-c", job], script) as run:
        run.wait_for("ready")
        run.type("\x03")
        run.wait_for("child")
        run.wait_for("heard 1")
        run.wait_for("job\r\ncode 0")
        run.wait()


COUNTS = (
    "import os, sys, time\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
    "    own = os.tcgetpgrp(1) == os.getpgrp()\n    print('got', own, line.upper())\n"
)


@pytest.mark.parametrize(
    "command",
    [PLAIN, RUN, f"{OURS} --no-log --trace-dir capture -o report"],
    ids=["plain", "ours", "no log"],
)
def test_job_control_of_a_shell(tmp_path: Path, command: str) -> None:
    with session(tmp_path, ["bash", "--norc", "-i"], COUNTS) as run:
        run.wait_for(r"\$ ")
        run.type(f"PYTHONPATH={ROOT} {command} train.py\n")
        run.wait_for("\nready")
        run.type("one\n")
        run.wait_for("got True ONE")

        run.type("\x1a")
        run.wait_for(r"Stopped .*\n")
        run.type("echo $((6 * 7))\n")
        run.wait_for("42")  # the shell has the terminal
        run.type("fg\n")
        run.wait_for("train.py")
        run.type("two\n")
        run.wait_for("got True TWO")

        run.type("\x1a")
        run.wait_for(r"Stopped .*\n")
        run.type("bg\n")
        run.type_until("\n", r"Stopped .*\n")  # it wants to read, from the background
        run.type("fg\n")
        run.wait_for("train.py")
        run.type("three\n")
        run.wait_for("got True THREE")
        run.type("\x04")
        run.wait_for(r"\$ ")
        run.type("echo code $?; exit\n")
        run.wait_for("code 0")
        run.wait()


@both
def test_a_run_in_the_background_leaves_the_keys_to_the_shell(
    tmp_path: Path, command: str
) -> None:
    script = (
        "import os, pathlib, sys, time\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.02)\n"
        "print('foreground', os.tcgetpgrp(1) == os.getpgrp(), flush=True)\n"
        "print('got', sys.stdin.readline().upper())\n"
    )
    with session(tmp_path, ["bash", "--norc", "-i"], script) as run:
        run.wait_for(r"\$ ")
        run.type(f"PYTHONPATH={ROOT} {command} train.py &\n")
        run.wait_for(r"\$ ")
        run.type("echo $((6 * 7)); touch go\n")
        run.wait_for("42")
        run.wait_for("foreground False")
        run.type_until("\n", r"Stopped .*\n")  # a shell says so with its prompt
        run.type("fg\n")
        run.wait_for("train.py")
        run.type("three\n")
        run.wait_for("got THREE")
        run.type_until("\n", r"\$ ")
        run.type("exit\n")
        run.wait()


@both
def test_a_reader_that_leaves_ends_the_script(tmp_path: Path, command: str) -> None:
    script = "import sys\nfor i in range(10**6): print(i)\n"
    line = f"{command} train.py 2> /dev/null | head -1; echo end"
    with session(tmp_path, ["/bin/bash", "-c", line], script) as run:
        assert run.wait_for(r"(?s).*end") == "0\r\nend"
        run.wait()


def test_the_terminal_is_given_back_when_the_runner_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.02)\nprint('still here')\n"
    )
    line = f"trap : HUP; {RUN} train.py; sleep 60"
    with session(tmp_path, ["/bin/sh", "-c", line], script) as run:
        before = run.modes()
        run.wait_for("ready")
        wait_until(lambda: run.modes() != before)
        log = tmp_path / "capture" / "log.txt"  # written after the terminal
        wait_until(lambda: text_of(log) == "ready\n")
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)

        wait_until(lambda: run.modes() == before)
        (tmp_path / "go").touch()
        run.wait_for("still here")
        wait_until(lambda: text_of(log) == "ready\nstill here\n")


def test_a_terminal_that_is_closed_after_the_runner_was_killed_ends_the_script(
    tmp_path: Path,
) -> None:
    script = "import os\nprint('pid', os.getpid(), flush=True)\ninput()\n"
    with session(tmp_path, line_of(RUN), script) as run:
        training = int(run.wait_for(r"pid \d+").split()[1])
        os.kill(run.pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{training}").exists())


def test_what_a_script_leaves_running_is_not_hung_up(tmp_path: Path) -> None:
    script = (
        "import subprocess\nsubprocess.Popen('sleep 0.5; touch uploaded', shell=True,"
        " stdin=-3, stdout=-3, stderr=-3)\n"
    )
    line = f"{RUN} train.py; while [ ! -e uploaded ]; do sleep 0.1; done; ls"
    with session(tmp_path, ["/bin/sh", "-c", line], script) as run:
        run.wait_for("uploaded")
        run.wait()

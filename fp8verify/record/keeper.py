"""The keeper: a fork of the runner that keeps what the script needs if the runner is killed.

- It holds the other ends of the script's output, and forwards what comes once the runner is gone:
  it was killed, or a child that outlives the script still prints.
- Where the script shares our process group, the keeper does so too, and all signals stay pending
  in it: so the runner knows which ones the whole group got.
- Where the script has a terminal of its own, the keeper is to it what a shell is: leader of its
  session and parent of the script. Without a parent of its session a script could not be stopped
  by Ctrl-Z.

It has the runner's command line, as a fork has, and all signals are blocked in it.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress

from fp8verify.record.leftovers import hold
from fp8verify.record.log import BoundedLog
from fp8verify.record.output import Relay, reserve_closed_streams
from fp8verify.record.terminal import STDERR, STDIN, STDOUT

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import NoReturn

    from fp8verify.record.output import Output
    from fp8verify.record.terminal import Terminal

MESSAGE = struct.Struct("=ii")  # its kind and a number
# What a runner orders; one that is killed orders nothing any more.
START = 1  # the script, in the foreground (1) or not (0)
FOREGROUND = 2  # the same for a script that runs
CLOSE = 3  # an output that has no reader any more
FORGET = 4  # a signal that is pending
RUNS = 5  # the script, which the runner has started itself
CONTINUE = 6  # a script that was stopped
ENDED = 7
# What a keeper reports of a script that it has started.
STARTED = 11  # and its process
FAILED = 12  # to start, and the number of the error
STOPPED = 13  # by a signal
DONE = 14  # and the exit code, negative for a signal

PATIENCE_S = 0.1  # for senders that go from process to process
POLL_S = 0.005
JOB_CONTROL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


class Keeper:
    """What the runner knows of its keeper.

    Args:
        pid: its process.
        orders: where to write what it is to do.
        reports: where to read what has happened.
    """

    def __init__(self, pid: int, orders: int, reports: int) -> None:
        self.pid = pid
        self._orders = orders
        self._reports = reports

    def order(self, kind: int, number: int = 0) -> None:
        """Tell it something; one that was killed does nothing any more."""
        with suppress(OSError):
            os.write(self._orders, MESSAGE.pack(kind, number))

    def report(self) -> tuple[int, int] | None:
        """Wait for what it reports; None if it was killed."""
        return _read(self._reports)

    def end(self, *, stays: bool) -> None:
        """Say that the run has ended; it stays if children of the script may still print."""
        self.order(ENDED)
        os.close(self._orders)
        os.close(self._reports)
        if not stays:
            os.waitpid(self.pid, 0)

    # --- the signals of our process group

    def has_got(self, number: int) -> bool:
        """Whether a signal that we got was for all of our process group."""
        if self._status(b"State:") in (b"", b"Z"):  # it was killed
            return number == signal.SIGINT and os.isatty(STDIN)
        if not self._comes_to_be(number, pending=True):
            return False
        self.order(FORGET, number)
        self._comes_to_be(number, pending=False)
        return True

    def _comes_to_be(self, number: int, *, pending: bool) -> bool:
        until = time.monotonic() + PATIENCE_S
        while self._is_pending(number) != pending:
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def _is_pending(self, number: int) -> bool:
        numbers = int(self._status(b"ShdPnd:") or b"0", 16)
        return bool(numbers >> (number - 1) & 1)

    def _status(self, name: bytes) -> bytes:
        """Return the first word that the kernel says of it under a name."""
        with suppress(OSError), open(f"/proc/{self.pid}/status", "rb") as status:  # noqa: PTH123 - pathlib is slow
            for line in status:
                if line.startswith(name):
                    return line.split()[1]
        return b""


def start_keeper(
    output: Output, boot: str, launch: Launch | None = None
) -> Keeper | None:
    """Start a keeper while there is one thread; None if no process can be started.

    Args:
        output: of the script.
        boot: the boot folder, which the keeper removes if the runner is killed.
        launch: the script, where the keeper is to start it on a terminal of its own.
    """
    orders, order = os.pipe()
    report, reports = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            os.close(order)
            os.close(report)
            _keep(_Keeping(output, boot, launch, orders, reports))
    except OSError:
        os.close(order)
        os.close(report)
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(orders)
        os.close(reports)
    return Keeper(pid, order, report)


class ScriptOnTerminal:
    """A script that the keeper runs on a terminal of its own, as the runner sees it.

    Args:
        keeper: its parent.
        terminal: ours.
        tell_group: sends a signal to the others of our process group.
        ignoring: what keeps us from forwarding a signal, once.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        keeper: Keeper,
        terminal: Terminal,
        tell_group: Callable[[int], object],
        ignoring: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        self._keeper = keeper
        self._terminal = terminal
        self._ignoring = ignoring
        self._has_ended = False
        terminal.take()
        keeper.order(START, terminal.is_foreground())
        kind, number = keeper.report() or (FAILED, 0)
        if kind == FAILED:
            raise OSError(number, os.strerror(number))
        self.pid = number
        terminal.open(
            lambda is_foreground: keeper.order(FOREGROUND, is_foreground),
            tell_group,
        )

    def send_signal(self, number: int) -> None:
        """Send it a signal; a hang-up is for its whole process group, as from a shell."""
        if self._has_ended:
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGHUP:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def wait(self) -> int:
        """Return its exit code, or the negative number of the signal that ended it."""
        while (report := self._keeper.report()) is not None:
            kind, number = report
            if kind == DONE:
                self._has_ended = True
                return number
            if number in JOB_CONTROL:
                self._stop_as_it_did()
        return self._wait_alone()

    def _stop_as_it_did(self) -> None:
        with self._ignoring(signal.SIGCONT):  # the one that lets us go on
            self._terminal.suspend()
        self._keeper.order(CONTINUE)  # once it is in the foreground, if we are

    def _wait_alone(self) -> int:
        """Wait for a script whose keeper was killed: the kernel has hung up its terminal."""
        with suppress(ProcessLookupError):
            while True:
                os.kill(self.pid, 0)
                time.sleep(PATIENCE_S)
        self._has_ended = True
        return -signal.SIGHUP


# --- in the keeper itself


class Launch:
    """How to start a script on a terminal of its own.

    Args:
        arguments: the command.
        environment: its variables.
        slave: its terminal.
        given: what it gets for our standard streams, where it is not our own.
        mask: the signals that are to be blocked in it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        slave: int,
        given: Mapping[int, int],
        mask: set[signal.Signals] | set[int],
    ) -> None:
        self.slave = slave
        self._arguments = arguments
        self._environment = environment
        self._given = given
        self._mask = mask

    def lead_session(self) -> None:
        """Become leader of a session that the terminal controls."""
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def start(self, *, in_foreground: bool) -> int:
        """Start the script and return its process.

        Raises:
            OSError: it cannot be started.
        """

        def join_job() -> None:
            os.setpgid(0, 0)
            if in_foreground:
                os.tcsetpgrp(self.slave, os.getpid())
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

        script = subprocess.Popen(  # noqa: S603 - running the user's command is the job
            self._arguments,
            env=self._environment,
            stdin=self._given.get(STDIN),
            stdout=self._given.get(STDOUT),
            stderr=self._given.get(STDERR),
            close_fds=False,  # the shell may have opened some for the script: <(zcat …)
            preexec_fn=join_job,
        )
        return script.pid

    def give_foreground(self, group: int) -> None:
        """Make a process group of the session the one that the keys are for."""
        with suppress(OSError):
            os.tcsetpgrp(self.slave, group)


def _keep(keeping: _Keeping) -> NoReturn:
    try:
        keeping.run()
    finally:
        os._exit(0)


class _Keeping:
    """The work of the keeper."""

    def __init__(
        self,
        output: Output,
        boot: str,
        launch: Launch | None,
        orders: int,
        reports: int,
    ) -> None:
        self._log = output.log.descriptor if output.log is not None else None
        self._ends = dict(enumerate(output.ends))
        self._terminal = output.terminal
        self._boot = boot
        self._launch = launch
        self._orders = orders
        self._reports = reports
        self._script: int | None = None
        self._held: int | None = None  # of the boot folder

    def run(self) -> None:
        """Keep what there is to keep until nobody needs it any more."""
        self._held = hold(self._boot)
        if self._launch is None:
            self._drop_descriptors()
        else:
            self._launch.lead_session()
        has_ended = self._obey()
        with suppress(OSError):  # it leads a session already
            os.setsid()
        if not has_ended and self._terminal is not None:
            self._terminal.restore_if_raw()
            threading.Thread(
                target=self._hang_up_with, args=(self._terminal,), daemon=True
            ).start()
        has_output = bool(self._ends)
        if has_output:
            self._relay(is_logged=not has_ended)
        if has_ended:
            return
        if self._script is not None:
            self._outlive_script(self._script)
        if (
            has_output or self._script is not None
        ):  # else it may run, and we do not know it
            import shutil  # seldom needed: the runner was killed and could not

            shutil.rmtree(self._boot, ignore_errors=True)

    def _obey(self) -> bool:
        """Do what the runner orders; True once the run has ended, False if it was killed."""
        while (order := _read(self._orders)) is not None:
            kind, number = order
            if kind == ENDED:
                return True
            if kind == START:
                self._start(in_foreground=bool(number))
            elif kind == FOREGROUND:
                self._move(to_foreground=bool(number))
            elif kind == CONTINUE:
                self._continue()
            elif kind == RUNS:
                self._script = number
            elif kind == CLOSE:
                os.close(self._ends.pop(number).read_end)
            elif kind == FORGET:
                while signal.sigtimedwait([number], 0) is not None:
                    pass
        return False

    def _start(self, *, in_foreground: bool) -> None:
        assert self._launch is not None  # noqa: S101 - else the runner starts it
        try:
            self._script = self._launch.start(in_foreground=in_foreground)
        except OSError as error:
            self._report(FAILED, error.errno or 0)
            return
        self._drop_descriptors()
        self._report(STARTED, self._script)
        threading.Thread(target=self._watch, args=(self._script,), daemon=True).start()

    def _move(self, *, to_foreground: bool) -> None:
        if self._launch is not None and self._script is not None:
            group = self._script if to_foreground else os.getpgrp()
            self._launch.give_foreground(group)

    def _continue(self) -> None:
        if self._script is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._script, signal.SIGCONT)

    def _watch(self, script: int) -> None:
        """Report what happens to the script."""
        while True:
            _, status = os.waitpid(script, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            self._report(STOPPED, os.WSTOPSIG(status))
        # Its children lose the keys, as where a shell takes them back. Their group is not hung up
        # when we end.
        self._move(to_foreground=False)
        assert self._launch is not None  # noqa: S101 - it has started the script
        os.close(self._launch.slave)
        self._report(DONE, os.waitstatus_to_exitcode(status))
        self._script = None

    def _hang_up_with(self, terminal: Terminal) -> None:
        """Tell the script when our terminal is hung up, where the runner cannot any more."""
        hang_up = select.poll()
        hang_up.register(terminal.descriptor, 0)
        hang_up.poll()
        if self._script is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._script, signal.SIGHUP)
                os.killpg(self._script, signal.SIGCONT)

    def _report(self, kind: int, number: int) -> None:
        with suppress(OSError):  # the runner was killed
            os.write(self._reports, MESSAGE.pack(kind, number))

    def _drop_descriptors(self) -> None:
        """Close all that is not ours to keep, such as what a shell opened for the script."""
        kept = {self._orders, self._reports, self._log, self._held}
        for end in self._ends.values():
            kept |= {end.read_end, end.target}
        if self._terminal is not None:
            kept.add(self._terminal.descriptor)
        if self._launch is not None:
            kept.add(self._launch.slave)
        opened = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - pathlib is slow
        for descriptor in opened:
            if descriptor not in kept:
                with suppress(OSError):  # the one that listed them is closed
                    os.close(descriptor)
        reserve_closed_streams()

    def _relay(self, *, is_logged: bool) -> None:
        """Forward what still comes; after the end of the script it is not logged."""
        if self._log is None or not is_logged:
            log = BoundedLog(os.open(os.devnull, os.O_WRONLY))
        else:
            log = BoundedLog(self._log)
        relay = Relay(log, list(self._ends.values()))
        relay.join()
        log.close()

    def _outlive_script(self, script: int) -> None:
        """Wait for a script that still reads the boot folder."""
        with suppress(OSError, AttributeError):  # it has ended; this kernel cannot wait
            poll = select.poll()
            poll.register(os.pidfd_open(script), select.POLLIN)
            poll.poll()


def _read(descriptor: int) -> tuple[int, int] | None:
    """Read a message; None at the end, where whoever wrote them is gone."""
    message = os.read(descriptor, MESSAGE.size)
    if not message:
        return None
    kind, number = MESSAGE.unpack(message)
    return kind, number

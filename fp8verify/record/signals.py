"""Pass signals on to the script that it has not got itself, and end by the signal that ended it.

Every signal that can be caught is passed on. Ctrl-C, `timeout`, `kill -- -PGID` and Slurm send a
signal to the script as well as to us; `kill PID` and a scheduler that knows only us do not. The
keeper tells them apart: it is a process of our group in which signals stay pending.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from fp8verify.record.threads import start_deaf

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import TypeAlias

    from fp8verify.record.keeper import Keeper, ScriptOnTerminal

    Script: TypeAlias = "subprocess.Popen[bytes] | ScriptOnTerminal"

STOP_S = 1.0  # of a busy machine to stop the script
POLL_S = 0.005
# What the kernel sends to a thread for what the thread does: no handler could return from it.
FAULTS = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip
# While these are blocked, the terminal may be used from the background.
OF_BACKGROUND = {signal.SIGTTIN, signal.SIGTTOU}
STOPPING = {signal.SIGTSTP, *OF_BACKGROUND}
WAITED_FOR = FAULTS | OF_BACKGROUND
NOT_FORWARDED = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGWINCH,
    *WAITED_FOR,
}


class SignalForwarder:
    """Forward what arrives to the script; before there is one, as soon as there is.

    Attributes:
        mask: the signals that were blocked when we were started, as they are to be in the script.
        on_resize: called when the size of our terminal has changed.
        on_late_interrupt: handles SIGINT from when nothing is forwarded any more, where Python
            would raise KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.on_resize: Callable[[], object] = lambda: None
        self.on_late_interrupt: Callable[[int, FrameType | None], object] | None = None
        self._script: Script | None = None
        self._has_script_got: Callable[[int], bool] = lambda _: False
        self._shares_group = True
        self._arrived: SimpleQueue[int | None] = SimpleQueue()
        self._own: set[int] = set()  # that we send to our group ourselves

    def watch(
        self, script: Script, keeper: Keeper | None, *, shares_group: bool = True
    ) -> None:
        """Begin to forward; once the script has ended, nothing is forwarded any more.

        Args:
            script: gets the signals.
            keeper: None if no process could be started for it.
            shares_group: whether script and keeper are of our process group.
        """
        if shares_group:
            self._has_script_got = _is_interrupt if keeper is None else keeper.has_got
        self._shares_group = shares_group
        early = self._arrived.qsize()
        self._script = script
        forward = threading.Thread(target=self._forward, args=(early,), daemon=True)
        start_deaf(forward)
        faults = threading.Thread(target=self._wait_for_faults, daemon=True)
        start_deaf(faults)

    def take(self, number: int, _: FrameType | None = None) -> None:
        """Handle a signal; what is done about it takes a moment."""
        if number in self._own:
            self._own.discard(number)
        else:
            self._arrived.put(number)

    def resize(self, _: int, __: FrameType | None) -> None:
        """Handle a change of the terminal's size."""
        self.on_resize()

    def tell_group(self, number: int) -> None:
        """Send a signal to the others of our process group; the script has it already."""
        self._own.add(number)
        os.killpg(0, number)

    @contextmanager
    def ignoring(self, number: int) -> Iterator[None]:
        """Do not forward a signal while inside, once."""
        self._own.add(number)
        try:
            yield
        finally:
            self._own.discard(number)

    def stop(self) -> None:
        """Ask the script to stop, as a scheduler does."""
        if self._script is not None:
            self._script.send_signal(signal.SIGTERM)

    def leave(self) -> None:
        """Forward nothing any more."""
        self._arrived.put(None)

    def _wait_for_faults(self) -> None:
        while True:
            self.take(signal.sigwait(WAITED_FOR))

    def _forward(self, early: int) -> None:
        script = self._script
        assert script is not None  # noqa: S101 - `watch` has set it
        while (number := self._arrived.get()) is not None:
            early -= 1
            is_early = early >= 0  # it came before the script was there to get it
            if is_early or not self._has_script_got(number):
                script.send_signal(number)
            if self._shares_group and number in STOPPING and _comes_to(script, b"T"):
                self._stop_with(script)

    def _stop_with(self, script: Script) -> None:
        """Stop as the script did, and go on with it."""
        self._own.add(
            signal.SIGCONT
        )  # the one that lets us go on, as it does the script
        os.kill(os.getpid(), signal.SIGSTOP)
        if not _comes_to(script, b"RSDIZX") and self._arrived.empty():
            script.send_signal(signal.SIGCONT)  # it was for us alone


def _is_interrupt(number: int) -> bool:
    """Whether a signal is one that a terminal sends to all of a process group."""
    return number == signal.SIGINT and os.isatty(0)


def _comes_to(script: Script, states: bytes) -> bool:
    """Wait a moment until the script is in one of some states, as proc(5) calls them."""
    until = time.monotonic() + STOP_S
    while time.monotonic() < until:
        with suppress(OSError):
            status = Path(f"/proc/{script.pid}/stat").read_bytes()
            state = status.rpartition(b") ")[2][:1]
            if state in states:
                return True
        time.sleep(POLL_S)
    return False


@contextmanager
def forwarded_signals() -> Iterator[SignalForwarder]:
    """Forward signals while inside. Those that are ignored (nohup) stay so, for the run as well."""
    forwarder = SignalForwarder()
    if threading.current_thread() is not threading.main_thread():
        yield forwarder
        return
    handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(
        signal.valid_signals() - NOT_FORWARDED, forwarder.take
    )
    handlers[signal.SIGWINCH] = forwarder.resize
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
    try:
        yield forwarder
    finally:
        forwarder.leave()
        signal.pthread_sigmask(signal.SIG_SETMASK, forwarder.mask)
        late = forwarder.on_late_interrupt
        if late is not None and before.get(signal.SIGINT) is signal.default_int_handler:
            before[signal.SIGINT] = late
        for number, handler in before.items():
            if handler is not None:  # None: it was not set by Python
                signal.signal(number, handler)


def end_by(number: int) -> None:
    """End this process by a signal, as the run did: a shell's loop ends only so on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the run has left its own
    with suppress(OSError, ValueError):  # SIGKILL has no action to restore
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)

"""Pass signals on to the run, so that whoever stops us stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class SignalForwarder:
    """Forward what arrives to the child; before there is one, as soon as there is.

    Attributes:
        mask: the signals that were blocked before SIGINT was, None if it is not.
    """

    def __init__(self) -> None:
        self.mask: set[int] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._interrupts = 0
        self._on_resize: Callable[[], bool] = lambda: False

    def watch(self, child: subprocess.Popen[bytes], on_resize: Callable[[], bool] | None) -> None:
        """Begin to forward to `child`; once it has ended, nothing is forwarded any more."""
        self._child, self._on_resize = child, on_resize or self._on_resize
        for number in self._early:
            child.send_signal(number)

    @contextmanager
    def mask_of_caller(self) -> Iterator[None]:
        """Start processes inside with the signals blocked that were when we were started."""
        if self.mask is None:
            yield
            return
        ours = signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ours)

    def forward(self, number: int, _: FrameType | None) -> None:
        """Handle a signal that the run is to get as well."""
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)

    def stop(self) -> None:
        """Ask the run to stop, as a scheduler does."""
        self.forward(signal.SIGTERM, None)

    def interrupt(self, *, from_terminal: bool) -> None:
        """Handle SIGINT, which a terminal sends to the run as well.

        The second one also asks the run to terminate, the third kills it.
        """
        self._interrupts += 1
        if self._child is None:  # nor was there one that the terminal could send it to
            self._early.append(signal.SIGINT)
        elif self._interrupts > 1:
            self._child.send_signal(signal.SIGTERM if self._interrupts == 2 else signal.SIGKILL)
        elif not from_terminal:
            self._child.send_signal(signal.SIGINT)

    def resize(self, _: int, __: FrameType | None) -> None:
        """Handle a change of the terminal's size."""
        if self._on_resize():
            # The run got the signal before its own terminal had the new size.
            os.killpg(os.getpgrp(), signal.SIGWINCH)


@contextmanager
def forwarded_signals() -> Iterator[SignalForwarder]:
    """Forward signals while inside. Those that are ignored (nohup) stay so, for the run as well."""
    forwarder = SignalForwarder()
    if threading.current_thread() is not threading.main_thread():
        yield forwarder
        return
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys(FORWARDED, forwarder.forward),
        # While the run is spawned; at all other times a thread takes it.
        signal.SIGINT: lambda *_: forwarder.interrupt(from_terminal=True),
        signal.SIGWINCH: forwarder.resize,
    }
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        with _interrupts_with_sender(forwarder) if signal.SIGINT in before else nullcontext():
            yield forwarder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _interrupts_with_sender(forwarder: SignalForwarder) -> Iterator[None]:
    """Take SIGINT on a thread, since a handler in Python does not learn who sent it.

    The main thread blocks it, and so do threads and processes that start from here on.
    """
    over = threading.Event()

    def wait() -> None:
        while True:
            sent = signal.sigwaitinfo({signal.SIGINT})
            if over.is_set():
                return
            forwarder.interrupt(from_terminal=sent.si_code > 0)  # as all that the kernel sends

    forwarder.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiter = threading.Thread(target=wait, daemon=True)
    try:
        waiter.start()
        yield
    finally:
        over.set()
        if waiter.ident is not None:
            with suppress(ProcessLookupError):
                signal.pthread_kill(waiter.ident, signal.SIGINT)
            waiter.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, forwarder.mask)

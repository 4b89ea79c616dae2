"""Our terminal, where the script has one of its own, as `script(1)` gives to a shell.

The script's is a pseudo-terminal that controls a session of its own. Ours is raw meanwhile: keys
and window sizes pass through, and the script's terminal alone interprets them. Ctrl-C and Ctrl-Z
are for the whole job, though, as at a shell: its other processes get them from us.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import termios
import threading
import time
from contextlib import suppress

from fp8verify.record.threads import start_deaf

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STDIN = 0
STDOUT = 1
STDERR = 2
CHUNK = 4096
BACKGROUND_POLL_S = 0.2  # no signal tells a job that it comes to the foreground
PATIENCE_S = 0.5
LAG_MS = 10  # what is written to a pseudo-terminal arrives a little later
EARLY_KEYS_S = 0.02
DISABLED = b"\x00"  # of a key that no signal is bound to
# Keys for the whole job; what a stopped script does to it is seen by its stopping.
KEYS = {signal.SIGINT: termios.VINTR, signal.SIGQUIT: termios.VQUIT}


def controlling_terminal() -> int | None:
    """Return the standard output or error that is our controlling terminal, if one is.

    None too where standard output is a pipe: a pager there may want the keys.
    """
    with suppress(OSError):
        kind = os.fstat(STDOUT).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            return None
    return next(filter(controls_us, (STDOUT, STDERR)), None)


def controls_us(descriptor: int) -> bool:
    """Whether it is our controlling terminal."""
    try:
        os.tcgetpgrp(descriptor)
    except OSError:
        return False
    return os.get_inheritable(descriptor)  # else it is closed, and a file of ours


class Pty:
    """A pseudo-terminal, with the modes and the size of the terminal that it stands for.

    Raises:
        OSError: the system has no more of them.
    """

    def __init__(self, model: int) -> None:
        self.master, self.slave = os.openpty()
        with suppress(termios.error):
            termios.tcsetattr(self.slave, termios.TCSANOW, termios.tcgetattr(model))
        copy_window_size(model, self.slave)

    def leave_line_ends(self) -> None:
        """Have them made by the terminal behind this one, once."""
        with suppress(termios.error):
            attributes = termios.tcgetattr(self.slave)
            attributes[1] &= ~termios.OPOST
            termios.tcsetattr(self.slave, termios.TCSANOW, attributes)


def copy_window_size(source: int, target: int) -> None:
    """Give one terminal the size of another; the kernel tells its foreground, if it differs."""
    with suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def raw_attributes(attributes: list[Any]) -> list[Any]:
    """Return what makes a terminal pass every byte through, both ways (`cfmakeraw`)."""
    input_flags, output_flags, control_flags, local_flags, *rest, characters = (
        attributes
    )
    input_flags &= ~(
        termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP
        | termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IXON
    )  # fmt: skip
    output_flags &= ~termios.OPOST
    control_flags = control_flags & ~(termios.CSIZE | termios.PARENB) | termios.CS8
    local_flags &= ~(
        termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN
    )
    characters = list(characters)
    characters[termios.VMIN] = 1
    characters[termios.VTIME] = 0
    return [input_flags, output_flags, control_flags, local_flags, *rest, characters]


class Terminal:
    """Our own terminal, from the start of the script to its end.

    Args:
        pty: the script's.

    Raises:
        OSError, termios.error: it cannot be opened.
    """

    def __init__(self, pty: Pty) -> None:
        self.descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        self._pty = pty
        self._master = pty.master
        self._attributes = termios.tcgetattr(self.descriptor)
        self._raw = raw_attributes(self._attributes)
        self._is_attended: bool | None = None
        self._lock = threading.Lock()  # of what the terminal is made to do
        self._over = threading.Event()
        self._tell_keeper: Callable[[bool], object] = lambda _: None
        self._tell_job: Callable[[int], object] = lambda _: None
        self._keys = threading.Thread(target=self._pass_keys, daemon=True)
        self._wake: tuple[int, int] | None = None

    def is_foreground(self) -> bool:
        """Whether keys are for our job."""
        with suppress(OSError):
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        return False

    def take(self) -> None:
        """Take the terminal, with what was typed there already, before the script starts."""
        if self._attend():
            self._pass_early_keys()

    def open(
        self, tell_keeper: Callable[[bool], object], tell_job: Callable[[int], object]
    ) -> None:
        """Begin to pass keys on.

        Args:
            tell_keeper: called when we come to the foreground (True) or leave it.
            tell_job: called with the number of a signal that a key stands for.
        """
        self._tell_keeper = tell_keeper
        self._tell_job = tell_job
        self._wake = os.pipe()
        start_deaf(self._keys)

    def close(self) -> None:
        """Give the terminal back as it was."""
        self._over.set()
        if self._wake is not None:
            os.close(self._wake[1])
            self._keys.join(PATIENCE_S)
        with self._lock:
            self._restore()

    def suspend(self) -> None:
        """Stop the whole job, as the script was; return when it goes on. For the main thread."""
        self._wait_for_quiet()
        with self._lock:
            self._restore()
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.killpg(0, signal.SIGTSTP)  # stops us here, unless nobody could resume us
            signal.signal(signal.SIGTSTP, handler)
        self._attend()

    def _wait_for_quiet(self) -> None:
        """Return once what the script has printed is read, which another thread does."""
        unread = select.poll()
        unread.register(self._master, select.POLLIN)
        until = time.monotonic() + PATIENCE_S
        while unread.poll(LAG_MS) and time.monotonic() < until:
            time.sleep(LAG_MS / 1000)

    def follow_size(self) -> None:
        """Give the script's terminal the size of ours."""
        copy_window_size(self.descriptor, self._master)

    def restore_if_raw(self) -> None:
        """Give the terminal back for a runner that was killed, if nobody else has done so."""
        with suppress(OSError, termios.error):
            if termios.tcgetattr(self.descriptor) == self._raw:
                self._set(self._attributes)

    def _attend(self) -> bool:
        """Take the terminal if our job is in the foreground; return whether it is."""
        with self._lock:
            is_foreground = self.is_foreground()
            if is_foreground == self._is_attended or self._over.is_set():
                return is_foreground
            self._is_attended = is_foreground
            if is_foreground:
                self._set(self._raw)
                self.follow_size()
            self._tell_keeper(is_foreground)
            return is_foreground

    def _restore(self) -> None:
        # In the background it is the shell's, whose modes are its own.
        if self._is_attended and self.is_foreground():
            self._set(self._attributes)
        self._is_attended = None

    def _set(self, attributes: list[Any]) -> None:
        with suppress(termios.error):  # it was hung up
            termios.tcsetattr(self.descriptor, termios.TCSADRAIN, attributes)

    def _pass_keys(self) -> None:
        assert self._wake is not None  # noqa: S101 - `open` has made it
        either = select.poll()
        either.register(self.descriptor, select.POLLIN)
        either.register(self._wake[0], 0)
        while not self._over.is_set():
            if not self._attend():
                self._over.wait(BACKGROUND_POLL_S)
                continue
            either.poll()
            if self._over.is_set() or not self.is_foreground():
                continue
            try:
                keys = os.read(self.descriptor, CHUNK)
            except OSError:  # EIO: in the background after all, or hung up
                if self.is_foreground():
                    return
                continue
            if not keys or not self._pass_on(keys):
                return

    def _pass_early_keys(self) -> None:
        """Pass on what was typed before; our terminal has shown it, so the script's does not."""
        ready = select.poll()
        ready.register(self.descriptor, select.POLLIN)
        with suppress(OSError, termios.error):
            if not ready.poll(0):
                return
            keys = os.read(self.descriptor, CHUNK)
            attributes = termios.tcgetattr(self._pty.slave)
            # An end of file that was typed is kept as a zero.
            keys = keys.replace(b"\x00", attributes[6][termios.VEOF])
            silent = [*attributes[:3], attributes[3] & ~termios.ECHO, *attributes[4:]]
            termios.tcsetattr(self._pty.slave, termios.TCSANOW, silent)
            os.write(self._master, keys)
            time.sleep(EARLY_KEYS_S)  # the kernel shows them on a thread of its own
            termios.tcsetattr(self._pty.slave, termios.TCSANOW, attributes)

    def _pass_on(self, keys: bytes) -> bool:
        """Give keys to the script; False once it has no terminal any more."""
        numbers = self._signals_of(keys)
        try:
            while keys:
                keys = keys[os.write(self._master, keys) :]
        except OSError:
            return False
        for number in numbers:
            self._tell_job(number)
        return True

    def _signals_of(self, keys: bytes) -> list[int]:
        """Return the signals that the script's terminal makes of some keys."""
        try:
            _, _, _, local_flags, *_, characters = termios.tcgetattr(self._master)
        except termios.error:
            return []
        if not local_flags & termios.ISIG:
            return []
        return [
            number
            for number, place in KEYS.items()
            if characters[place] in keys and characters[place] != DISABLED
        ]

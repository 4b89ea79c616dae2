"""Give the run its stdout and stderr, and have what it writes carried to ours and into the log."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fp8verify.record.channels import Channel, open_channels
from fp8verify.record.folder import writing_to

PACKAGE = Path(__file__).parents[2]
START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from fp8verify.record.carrier import main; main()"
)
ANSWER_S = 10.0  # longer than the carrier takes, unless somebody has stopped it
ASKS_TO_DRAIN = b"d"
# Sent to whole process groups and jobs; the carrier has to see the others' last words.
NOT_FOR_CARRIER = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGPIPE,
)  # fmt: skip


class Output:
    """The channels of one run and, once it has started, the process that reads them: `carrier`."""

    def __init__(self, log: Path) -> None:
        self._log = _create(log)
        self._channels = open_channels()
        self._asked, self._ask = os.pipe()
        self._answer, self._answered = os.pipe()
        self._carries = False

    def carry(self, boot: Path) -> None:
        """Begin to carry what the run writes, before the run starts.

        Where no process can be started, a thread of ours does it, for as long as we are here.
        """
        self._carries = True
        control = (self._asked, self._answered)
        streams = [(channel.read_end, channel.target) for channel in self._each]
        try:
            _start(self._log, control, boot, streams)
        except OSError:
            from fp8verify.record.carrier import carry_in_thread

            carry_in_thread(self._log, control, streams)
        else:
            self._close_ends()

    def _close_ends(self) -> None:
        ends = (channel.read_end for channel in self._each)
        for descriptor in (self._log, self._asked, self._answered, *ends):
            os.close(descriptor)

    def stream(self, target: int) -> int | None:
        """Return what the run gets as its stdout (1) or stderr (2); None for our own."""
        channel = self._channels.get(target)
        return None if channel is None else channel.write_end

    def resize(self) -> bool:
        """Follow a change of our terminal's size; return whether there was one."""
        resized = [channel.resize() for channel in self._each]
        return any(resized)

    def finish(self) -> None:
        """Return when all that the run has written is echoed and logged.

        Children that it left behind still write; the carrier stays for them.
        """
        for channel in self._each:
            os.close(channel.write_end)
        if self._carries:
            answers = select.poll()
            answers.register(self._answer, select.POLLIN)
            with suppress(OSError):  # the carrier was killed
                os.write(self._ask, ASKS_TO_DRAIN)
                answers.poll(1000 * ANSWER_S)
        else:  # nothing was run
            self._close_ends()
        os.close(self._ask)
        os.close(self._answer)

    @property
    def _each(self) -> Iterator[Channel]:
        return iter(dict.fromkeys(self._channels.values()))


def _start(log: int, control: tuple[int, int], boot: Path, streams: list[tuple[int, int]]) -> None:
    ends = [f"{read_end}:{target}" for read_end, target in streams]
    given = (log, *control)
    words = [sys.executable, "-I", "-S", "-c", START, str(PACKAGE), str(boot)]
    # The run waits for this, and `subprocess` would take half a millisecond longer.
    with _inherited([*given, *(read_end for read_end, _ in streams)]):
        os.posix_spawn(
            sys.executable,
            [*words, *map(str, given), *ends],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setsigmask=NOT_FOR_CARRIER,
        )


@contextmanager
def _inherited(descriptors: list[int]) -> Iterator[None]:
    """Have processes that are started inside inherit the descriptors."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)


def _create(log: Path) -> int:
    with writing_to(log.parent):
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


@contextmanager
def carried_output(log: Path) -> Iterator[Output]:
    """Yield the streams for a run; what it has written by the end is echoed and in the log."""
    output = Output(log)
    try:
        yield output
    finally:
        output.finish()

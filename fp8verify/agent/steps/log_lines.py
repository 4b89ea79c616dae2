"""Hear the lines that a training logs, for the step numbers in them.

Lines are heard where they are made, between the hooks of two steps; in a pipe outside they would
arrive at any time. Logged ones are heard on ranks too whose handlers drop them.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from ..record.debug import debug

MAX_LINE = 4096
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class StepLine(NamedTuple):
    """A line that tells a step number.

    Attributes:
        framework: whose form it has.
        pattern: finds the number.
        ahead: how far it is ahead of the steps that are complete.
    """

    framework: str
    pattern: re.Pattern[str]
    ahead: int = 0


# Both log a step after its optimizer's: scripts/train.py and metrics/logger.py of KempnerForge
# (5666d0d), train_step in trainer.py and components/metrics.py of torchtitan (b5bcd76). The other
# lines come before the first step: checkpoint/manager.py and torchtitan/trainer.py.
STEP_LINES = (
    StepLine("KempnerForge", re.compile(r"\[step (\d{1,12})\] loss=")),
    StepLine("KempnerForge", re.compile(r"Resumed from step (\d{1,12}),")),
    StepLine("torchtitan", re.compile(r"\bstep: *(\d{1,12}) +loss:")),
    StepLine("torchtitan", re.compile(r"Training starts at step (\d{1,12})\b"), ahead=1),
)

Hear = Callable[[int], None]


def number_in(line: str) -> int | None:
    """Return how many steps are complete by a line; None for a line that tells no number."""
    if "step" not in line:
        return None
    text = COLOURS.sub("", line[:MAX_LINE])
    for kind in STEP_LINES:
        match = kind.pattern.search(text)
        if match is not None:
            return int(match[1]) - kind.ahead
    return None


class LogLines:
    """Calls `hear` with the number when the main thread makes such a line."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._streams: list[tuple[Any, Any]] = []
        self._factory: Any = None
        self._parts = ""

    def install(self) -> None:
        """Listen to `logging` and to what is written to stdout and stderr."""
        self._before = logging.getLogRecordFactory()
        self._factory = self._make_record
        logging.setLogRecordFactory(self._factory)
        for stream in dict.fromkeys((sys.stdout, sys.stderr)):
            with suppress(AttributeError, TypeError):  # a stream of another kind
                write = stream.write
                stream.write = self._writing(write)  # type: ignore[method-assign]
                self._streams.append((stream, write))

    def uninstall(self) -> None:
        """Listen no more."""
        self._hear = lambda _: None
        if logging.getLogRecordFactory() == self._factory:
            logging.setLogRecordFactory(self._before)
        for stream, _ in self._streams:
            with suppress(AttributeError):
                del stream.write
        self._streams.clear()

    def _make_record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._before(*args, **kwargs)
        with suppress(Exception):  # a message that does not fit its arguments is not our error
            if isinstance(record.msg, str) and "step" in record.msg:
                self._look(record.getMessage())
        return record

    def _writing(self, write: Callable[[str], int]) -> Callable[[str], int]:
        def heard(text: str) -> int:
            written = write(text)
            with suppress(Exception):
                self._take(text)
            return written

        return heard

    def _take(self, text: str) -> None:
        """Put together a line that is printed in parts."""
        *lines, rest = (self._parts + text).split("\n")
        self._parts = rest[-MAX_LINE:]
        for line in lines:
            self._look(line)

    def _look(self, line: str) -> None:
        number = number_in(line)
        if number is not None and threading.current_thread() is threading.main_thread():
            debug.event(f"the log says that {number} steps are complete")
            self._hear(number)

"""Listen to the lines that a training logs, for the step numbers in them.

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
from typing import Any

MAX_LINE = 4096
DIGITS = re.compile(r"\d+")
WORDS = ("step", "iter", "update")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


LEAST_LINES = 3  # for different steps, before a number is believed
MAX_KINDS = 64  # of numbers that are followed; a script may print any text

# A number after a word for step: `iteration 6/`, `[step=12/18`, `step: 14`, `{"global_step": 7}`.
NUMBER = re.compile(
    r"(?P<word>(?<![a-z])(?:[a-z]+[_ -])?(?:steps?|iter(?:ation)?s?|updates?))"
    r"[\"']?\s{0,4}[:=#\[(]?\s{0,8}(?P<number>\d{1,12})(?![\d,.]*\d|\s*(?:%|[a-z]?s\b))",
    re.IGNORECASE,
)
# In a later epoch a step may be counted from the epoch's begin.
LATER_EPOCH = re.compile(r"\bepoch\W{0,4}(?:[2-9]|[1-9]\d)", re.IGNORECASE)
GLOBAL = re.compile(r"global|total", re.IGNORECASE)
BEFORE = 24  # characters that tell one number of a line from another


class StepNumbers:
    """Finds, in the lines of a log, the number that grows with the steps that are counted.

    A number is followed by the text before it. It is the step's if it equals our own count plus a
    constant in all its lines, for at least three steps. Numbers that disagree with one another give
    none: nothing tells which one is meant.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, set[int]] | None] = {}  # None of one that was wrong

    def hear(self, line: str, step: int) -> None:
        """Take the numbers of a line that is about the `step`-th step of this run."""
        text = COLOURS.sub("", line[:MAX_LINE])
        later = LATER_EPOCH.search(text) is not None
        for found in NUMBER.finditer(text):
            if later and not GLOBAL.search(found["word"]):
                continue
            kind = DIGITS.sub("#", text[max(0, found.start() - BEFORE) : found.start("number")])
            self._follow(" ".join(kind.split()), int(found["number"]) - step, step)

    def _follow(self, kind: str, offset: int, step: int) -> None:
        if kind not in self._kinds:
            if len(self._kinds) < MAX_KINDS:
                self._kinds[kind] = (offset, {step})
            return
        known = self._kinds[kind]
        if known is None:
            return
        if known[0] != offset:
            self._kinds[kind] = None
        elif len(known[1]) < LEAST_LINES:
            known[1].add(step)

    @property
    def offset(self) -> int | None:
        """What the log's numbers are ahead of our count; None if that is not known."""
        believed = {
            known[0] for known in self._kinds.values() if known and len(known[1]) >= LEAST_LINES
        }
        return believed.pop() if len(believed) == 1 else None


class LogLines:
    """Calls `hear` with each line of the main thread that may tell a step's number."""

    def __init__(self, hear: Callable[[str], None]) -> None:
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
            if isinstance(record.msg, str):
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
        lower = line[:MAX_LINE].lower()
        if any(word in lower for word in WORDS) and _on_main_thread():
            self._hear(line)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

"""The step numbers of a framework or a loop, which continue when a run resumes.

They come from `fp8verify.step(number)`, else from the framework's own counter, else from the log.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .framework_counters import counters

# Other sources of numbers than a framework's counter.
LOG = "log"  # lines of its log
SCRIPT = "script"  # `fp8verify.step(number)`
MAX_STRIDE = 64


class GlobalSteps:
    """The number of the last complete step, and the range of numbers so far.

    Attributes:
        framework: source of the numbers: "transformers", "log", "script" and so on; None as long
            as there are none.
        counter: the source's name for the number.
        stride: increase per optimizer step: Lightning adds up several optimizers.
        lowest: the smallest number so far, None as long as there are none.
        highest: the largest.
    """

    def __init__(self) -> None:
        self.framework: str | None = None
        self.counter = "step"
        self.stride = 1
        self._offsets: dict[str, int] = {}
        self.lowest: int | None = None
        self.highest = 0
        self._last = (0, 0)  # our count and their number

    def learn(self, offset: int | None, source: str) -> None:
        """Take how far the numbers of the log or the script are ahead of our count, if known."""
        if offset is None:
            self._offsets.pop(source, None)
        else:
            self._offsets[source] = offset

    def completed(self, step: int) -> int | None:
        """Return the number of the step that is complete, from the hook of an optimizer.

        Before the first step, it is the number of the last step before this run.
        """
        number = self._read(step)
        if number is not None and step:
            self._note(step, number)
        return number

    def numbers_of(self, first: int, last: int) -> dict[str, Any] | None:
        """Return the framework and its numbers of a window, by lines or calls."""
        offset = self._offsets.get(self.framework or "")
        if offset is None:
            return None
        numbers = {"first": first + offset, "last": last + offset}
        return {"name": self.framework, "counter": self.counter, **numbers}

    def _read(self, step: int) -> int | None:
        shown = counters.shown() if SCRIPT not in self._offsets else {}
        for counter, number in shown.items():  # a framework that drives another one comes first
            self.framework, self.counter = counter.framework, counter.name
            return number + (not counter.early) if step else number
        for source in (SCRIPT, LOG):
            if source in self._offsets:
                self.framework, self.counter = source, "step"
                return step + self._offsets[source]
        return None

    def _note(self, step: int, number: int) -> None:
        (step_before, before), self._last = self._last, (step, number)
        if self.lowest is None:
            self.lowest = max(1, number - step + 1)
        elif step == step_before + 1 and 0 < number - before <= MAX_STRIDE:
            self.stride = number - before
        self.lowest, self.highest = min(self.lowest, number), max(self.highest, number)


# --- lines of the log ---------------------------------------------------------

MAX_LINE = 4096
DIGITS = re.compile(r"\d+")
WORDS = ("step", "iter", "update")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEAST_LINES = 3  # for different steps, before a number is believed
MOST_LOOKS = 1000  # steps in which another rank's offset is looked for
MAX_KINDS = 128  # of numbers that are followed; a script may print any text
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


class LoggedNumbers:
    """Finds, in the lines of a log, the number that grows with the steps that are counted.

    Numbers are identified by the text before them. A number is the step's if it equals the count of
    steps plus a constant in all its lines, for at least three steps. If several such numbers
    disagree, none is used.

    A line after a forward pass is about the step that has begun, for example if the loss is printed
    before the update. If the numbers contradict that (the forward pass was a validation, or
    torch.compile traced), they are compared with the completed steps only.
    """

    def __init__(self) -> None:
        # By whether steps that have begun count, and by the text; None of one that was wrong.
        self._kinds: dict[tuple[bool, str], tuple[int, set[int]] | None] = {}

    def take(self, line: str, steps: int, begun: bool = False) -> None:
        """Take the numbers of a line that comes after `steps` steps, in one that has `begun`."""
        text = COLOURS.sub("", line[:MAX_LINE])
        later = LATER_EPOCH.search(text) is not None
        for found in NUMBER.finditer(text):
            if later and not GLOBAL.search(found["word"]):
                continue
            before = text[max(0, found.start() - BEFORE) : found.start("number")]
            kind = " ".join(DIGITS.sub("#", before).split())
            for counts_begun in (True, False):
                step = steps + (begun and counts_begun)
                self._follow((counts_begun, kind), int(found["number"]) - step, step)

    def _follow(self, kind: tuple[bool, str], offset: int, step: int) -> None:
        if kind not in self._kinds:
            if len(self._kinds) < MAX_KINDS:
                self._kinds[kind] = (offset, {step})
            return
        known = self._kinds[kind]
        if known is not None and known[0] != offset:
            self._kinds[kind] = None
        elif known is not None and len(known[1]) < LEAST_LINES:
            known[1].add(step)

    @property
    def offset(self) -> int | None:
        """What the log's numbers are ahead of our count; None if that is not known."""
        for counts_begun in (True, False):
            believed = {
                found[0]
                for (counts, _), found in self._kinds.items()
                if counts == counts_begun and found and len(found[1]) >= LEAST_LINES
            }
            if believed:
                return believed.pop() if len(believed) == 1 else None
        return None


class SharedOffset:
    """How far the log's numbers are ahead of the count, passed from rank to rank.

    Frameworks such as Megatron-LM print their steps on one rank only. All ranks count the same
    steps, so the one that knows writes the offset into the boot folder, and the others read it.
    An offset from before this process began belongs to an earlier training: torchrun restarted its
    ranks, or a script trains twice.
    """

    def __init__(self, boot: str) -> None:
        self._path = Path(boot) / "log-offset"
        self._began = time.monotonic()  # which all processes of a machine share
        self._looks = MOST_LOOKS
        self.offset: int | None = None

    def publish(self, offset: int) -> None:
        """Write what this rank knows, once."""
        if self.offset is None:
            self.offset = offset
            part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            with suppress(OSError):  # a node that cannot write there, or a folder that is gone
                part.write_text(f"{offset} {time.monotonic()}", encoding="ascii")
                part.replace(self._path)

    def look(self) -> int | None:
        """Read another rank's offset, if it is written during the first steps."""
        if self.offset is None and self._looks:
            self._looks -= 1
            with suppress(OSError, ValueError):
                offset, written = self._path.read_text(encoding="ascii").split()
                if float(written) >= self._began:
                    self.offset = int(offset)
        return self.offset


class LogLines:
    """Calls `take` with each line of the main thread that may contain a step's number.

    Lines are read in the process, between the hooks of two steps; from a pipe they would
    arrive at any time. Logged lines are read even on ranks whose handlers drop them.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._streams: list[tuple[Any, Any]] = []
        self._before: Any = None
        self._factory: Any = None
        self._parts = ""

    def install(self) -> None:
        """Read what goes to `logging`, and to stdout and stderr."""
        self._before = logging.getLogRecordFactory()
        self._factory = self._make_record
        logging.setLogRecordFactory(self._factory)
        for stream in dict.fromkeys((sys.stdout, sys.stderr)):
            with suppress(AttributeError, TypeError):  # a stream of another kind
                write = partial(self._written, stream.write)
                stream.write = write  # type: ignore[method-assign]
                self._streams.append((stream, write))

    def uninstall(self) -> None:
        """Put back what was there, unless the script has put its own in our place."""
        self._take = lambda _: None
        if logging.getLogRecordFactory() == self._factory:
            logging.setLogRecordFactory(self._before)
        for stream, write in self._streams:
            if getattr(stream, "write", None) is write:
                del stream.write
        self._streams.clear()

    def _make_record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._before(*args, **kwargs)
        with suppress(Exception):  # a message that does not fit its arguments is not our error
            if isinstance(record.msg, str):
                self._look(record.getMessage())
        return record

    def _written(self, write: Callable[[str], int], text: str) -> int:
        written = write(text)
        with suppress(Exception):
            *lines, rest = (self._parts + text).split("\n")  # a line may be printed in parts
            self._parts = rest[-MAX_LINE:]
            for line in lines:
                self._look(line)
        return written

    def _look(self, line: str) -> None:
        lower = line[:MAX_LINE].lower()
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and any(word in lower for word in WORDS):
            self._take(line)

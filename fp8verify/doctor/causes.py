"""Name the cause of a training that failed with a message that is known."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from fp8verify.doctor.known_failures import KNOWN_FAILURES, KnownFailure

MAX_LINE = 4096
MAX_CAUSES = 5
_BEFORE = 80  # lines of a traceback


class Cause(NamedTuple):
    """A known message in a log: the line, what causes it, and the next step."""

    line: int
    text: str
    cause: str
    remedy: str
    source: str
    check: str


def causes(lines: Iterable[str]) -> list[Cause]:
    """Return what is known about the messages in a log, each cause once, the first line of it."""
    found: dict[KnownFailure, Cause] = {}
    before: deque[str] = deque(maxlen=_BEFORE)
    gate = re.compile("|".join(f"(?:{row.pattern})" for row in KNOWN_FAILURES))
    for number, raw in enumerate(lines, start=1):
        line = raw[:MAX_LINE].rstrip("\r\n")
        for row in KNOWN_FAILURES if gate.search(line) else ():
            if row not in found and _is(row, line, before):
                text = line.strip()[:300]
                found[row] = Cause(number, text, row.cause, row.remedy, row.source, row.check)
        before.append(line)
    return list(islice(found.values(), MAX_CAUSES))


def _is(row: KnownFailure, line: str, before: deque[str]) -> bool:
    if not re.search(row.pattern, line):  # compiled once, and kept by `re`
        return False
    return not row.near or any(re.search(row.near, text) for text in (line, *before))

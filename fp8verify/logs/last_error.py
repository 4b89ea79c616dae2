"""The error that a run ended with, by the tracebacks in its logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from fp8verify.errors import InputError
from fp8verify.logs.lines import read_lines

# What begins a traceback, also below a launcher's prefix such as "[rank0]: ". A SyntaxError of the
# script itself has only the second.
_BEGINS = re.compile(
    r"(.{0,80}?)(?:Traceback \(most recent call last\):|  File \"[^\"]+\", line \d)"
)
# What argparse and click print about our options placed after the script.
MISPLACED_OPTION = re.compile(
    r"(?:unrecognized arguments|No such option):.*?(--[a-z-]+)", re.IGNORECASE
)
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::.*|\s*)$")
# Raised because another process failed, by launchers and by ranks that lost a peer.
_CONSEQUENCES = re.compile(
    r"(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException|DistBackendError"
    r"|DistNetworkError|DistStoreError|SignalException|ConnectionResetError|BrokenPipeError)\b"
)
_MAX_ERROR = 160
_MAX_LINES = 200_000


def last_error(logs: Iterable[Path]) -> str | None:
    """Return the last line of the last traceback in some logs, None without one.

    Errors of a launcher or of another rank, raised because a worker failed, count only if there is
    no other.
    """
    found = list(chain.from_iterable(map(_errors_in, logs)))
    own = [error for error in found if not _CONSEQUENCES.match(error)]
    errors = own or found
    return errors[-1] if errors else None


def _errors_in(log: Path) -> Iterator[str]:
    with suppress(InputError):  # the report itself has a note on a log that cannot be read
        lines = (line.text for line in read_lines(log))
        yield from _errors(islice(lines, _MAX_LINES))


def _errors(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line that ends each traceback; those of several ranks may be interleaved."""
    within: set[str] = set()  # the prefixes of the tracebacks that have not ended
    for line in lines:
        if MISPLACED_OPTION.search(line):
            yield line.strip()[:_MAX_ERROR]
        begins = _BEGINS.match(line)
        if begins is not None:
            within.add(begins[1])
            continue
        for prefix in [prefix for prefix in within if line.startswith(prefix)]:
            text = line[len(prefix) :]
            if text.strip() and not text[0].isspace():
                within.discard(prefix)
                if _ERROR.match(text):
                    yield text.rstrip()[:_MAX_ERROR].rstrip(":")

"""A trace that comes through a pipe: it can be read only once, and names neither run nor rank."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

from fp8verify.analysis.gather import gather
from fp8verify.analysis.rank import RankEvidence
from fp8verify.errors import InputError
from fp8verify.trace import read_open_trace
from fp8verify.trace.places import STDIN, reading


def read_pipe(path: str | Path) -> RankEvidence:
    """Read the trace that comes through a pipe.

    Raises:
        InputError: it is no trace, or standard input is a terminal.
    """
    is_stdin = str(path) == STDIN
    if is_stdin and sys.stdin.isatty():
        raise InputError(
            "- reads a trace from standard input, which is a terminal.",
            "Pipe one in: zcat trace.json.gz | fp8verify inspect -",
        )
    name = "standard input" if is_stdin else str(path)
    with reading(name), _stream(path) as file:
        trace = read_open_trace(file, name)
    trace.rank = trace.rank or 0
    return gather(trace)


def _stream(path: str | Path) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if str(path) == STDIN else Path(path).open("rb")

"""Read a text as the log of a run is read; and the texts of which it is known what they say."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fp8verify.frameworks.known import declare
from fp8verify.logs.claims import read_claims
from fp8verify.logs.statements import LogReading


def read_text(text: str) -> LogReading:
    """Return what the text says, from a file named "log"."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_bytes(text.encode("utf-8", "replace"))
        return read_claims(path)


# A user's own code, which states for which steps it trains in which precision.
WITH_PHASES = {
    "claims": [r"FP8 training from step (?P<from_step>\d+)"],
    "denials": [r"training in bf16 for the first (?P<until_step>\d+) steps"],
}


@contextmanager
def declared(tables: dict[str, Any]) -> Iterator[None]:
    """Declare a user's own frameworks."""
    declare(tables, "fp8verify.toml")
    try:
        yield
    finally:
        declare({}, "")


def labelled_lines(*labels: str) -> list[tuple[str, str, str]]:
    """Return what lines of log_lines.csv say, of which framework they are or what kind, and them.

    Of each row of a framework there is one at least. Without labels these are all.
    """
    file = Path(__file__).parent / "unit" / "log_lines.csv"
    with file.open(encoding="utf-8", newline="") as table:
        rows = [(row["says"], row["of"], row["line"]) for row in csv.DictReader(table)]
    return [row for row in rows if not labels or row[0] in labels]

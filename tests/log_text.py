"""Read a text as the log of a run is read."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from fp8verify.logs.claims import read_claims
from fp8verify.logs.statements import LogReading


def read_text(text: str) -> LogReading:
    """Return what the text says, from a file named "log"."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_bytes(text.encode("utf-8", "replace"))
        return read_claims(path)

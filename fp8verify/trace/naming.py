"""What a run is called by the paths of its traces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fp8verify.text import clean, lazy_pattern
from fp8verify.trace.places import STANDARD_INPUT, is_pattern

_ENDING = lazy_pattern(
    r"(?:\.pt)?(?:\.trace)?\.(?:json|nsys-rep|sqlite|csv)(?:\.(?:gz|zst))?$", re.IGNORECASE
)
_OPEN_FILE = lazy_pattern(r"/(?:dev|proc/self)/fd/\d+")  # as shells call `<(zcat trace.json.gz)`
# What a profiler or a launcher calls every run's file: it tells no run from another.
_SAYS_NO_RUN = lazy_pattern(r"(?:rank[-_]?\d+(?:\.w\d+)?|trace)", re.IGNORECASE)


def run_name(paths: Sequence[str | Path]) -> str:
    """Return what a run is called by its paths: its folder, or its file without endings.

    Of a pattern, or of several paths, it is the folder of the first. A file called `rank0` or
    `trace`, as every run's is, has its folder before it.
    """
    text = str(paths[0])
    if text in STANDARD_INPUT:
        return "standard input"
    if _OPEN_FILE.fullmatch(text):
        return "pipe"
    parts = [part for part in text.split("/") if part not in ("", ".", "..")]
    if is_pattern(text) or len(paths) > 1:
        parts = parts[:-1]
    name = parts[-1] if parts and not text.endswith(("/..", "/.")) else Path(text).resolve().name
    stem = _ENDING.sub("", name) or name or "run"
    if stem != name and _SAYS_NO_RUN.fullmatch(stem):
        folder = parts[-2] if len(parts) > 1 else Path(text).resolve().parent.name
        return clean(f"{folder}/{stem}" if folder else stem)
    return clean(stem)

"""Single steps over JSON text that may be damaged."""

from __future__ import annotations

import json
import sys
from typing import Any

from fp8verify.text import lazy_pattern

_SPACE = lazy_pattern(rb"[\s,\0]*")

scan = json.JSONDecoder(strict=False).raw_decode


def skip_space(data: bytes | bytearray, pos: int, end: int = sys.maxsize) -> int:
    """Return where the space and commas from `pos` on end."""
    match = _SPACE.match(data, pos, end)
    return match.end() if match else pos


def end_of_event(text: str, start: int) -> tuple[Any, int] | None:
    """Return the value that starts there and where it ends; None if it is damaged or cut."""
    try:
        return scan(text, start)
    except (ValueError, RecursionError):
        return None

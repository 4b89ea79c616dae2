"""Time stamps in microseconds, as text or double, to whole nanoseconds, losing none."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

from fp8verify.text import lazy_pattern
from fp8verify.trace.kineto.events import MAX_MICROS

if TYPE_CHECKING:
    from msgspec import Raw

# Below 2**43 microseconds neighbouring doubles are less than a nanosecond apart, so the nearest
# nanosecond is the one that was written; beyond, only the text knows.
EXACT_LIMIT = 2.0**43

_PLAIN = lazy_pattern(rb'"?(-?)(\d{1,16})(?:\.(\d*))?"?')


def to_nanoseconds(micros: list[float], base: int) -> list[int]:
    """Return nanoseconds since `base` microseconds, exact for stamps that doubles hold."""
    if max(micros) - base < EXACT_LIMIT and base - min(micros) < EXACT_LIMIT:
        offset = float(base)  # exact below 2**53, and quicker to subtract than an int
        return [round((value - offset) * 1000) for value in micros]
    return [(floor(value) - base) * 1000 + round(value % 1 * 1000) for value in micros]


def parse_micros(raw: Raw) -> int:
    """Return the nanoseconds of a JSON number or of a string that holds one.

    Raises:
        ValueError: not a number, or beyond int64 nanoseconds.
    """
    text = bytes(raw)
    match = _PLAIN.fullmatch(text)
    if match is None:
        return _parse_unusual(text)
    sign, whole, fraction = match.groups()
    digits = (fraction or b"")[:4].ljust(4, b"0")
    value = int(whole) * 1000 + (int(digits) + 5) // 10
    return _bounded(-value if sign else value)


def _parse_unusual(text: bytes) -> int:
    value = float(text.strip(b'"'))
    return _bounded(round(value * 1000) if abs(value) <= MAX_MICROS else 1 << 63)


def _bounded(nanoseconds: int) -> int:
    if abs(nanoseconds) > MAX_MICROS * 1000:
        raise ValueError("time stamp out of range")
    return nanoseconds

"""What a cell says: a time in ns, a number, or a name without the marks around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fp8verify.patterns import lazy_pattern

_NS: Final = {
    "n": 1,
    "u": 10**3,
    "m": 10**6,
    "": 10**9,
}  # by the prefix of s, sec, second
IN_CELLS: Final = "?"  # where only the cells have units
UNIT: Final = r"([num]?)s(?:ec(?:ond)?s?)?"
TIME_UNIT: Final = lazy_pattern(UNIT)
GAP: Final = lazy_pattern(r" {2,}")  # between cells; within one it is a single space
_MICRO: Final = dict.fromkeys((0xB5, 0x3BC, 0xFFFD), "u")  # in Latin-1 it is no UTF-8
# Thousands are apart by commas, or by the spaces of other languages.
_APART: Final = ",'\u0020\u00a0\u202f"
_TOGETHER: Final = str.maketrans("", "", _APART)
_WHOLE_NUMBER: Final = lazy_pattern(rf"(\d[\d{_APART}]{{0,21}})(?:\.0{{0,6}})?")
_AMOUNT: Final = lazy_pattern(
    rf"((?:\d{{1,3}}(?:[{_APART}]\d{{3}}){{1,6}}|\d{{1,21}})"
    r"(?:\.\d{0,12})?(?:e[+-]?\d{1,2})?)"
    rf" ?(?:{UNIT})?"
)
_WITH_REMARK: Final = lazy_pattern(r"`([^`]{1,4096})` \([^()]{0,200}\)")


def plain(text: str) -> str:
    """Return a text without space around it, in which u stands for micro."""
    text = text.strip()
    if text.isascii():
        return text
    return text.translate(_MICRO)


def unquoted(cell: str) -> str:
    """Return a cell without Markdown's marks of code and of bold text, and a remark behind."""
    if not cell.startswith(("`", "**")):
        return cell
    code = _WITH_REMARK.fullmatch(cell)
    if code is not None:
        return code[1]
    for mark in ("**", "`"):
        is_marked = cell.startswith(mark) and cell.endswith(mark)
        if is_marked and len(cell) > 2 * len(mark):
            cell = cell.removeprefix(mark).removesuffix(mark)
    return cell


def without_index(cells: Sequence[str]) -> Sequence[str]:
    """Return the cells of a row without its number, which pandas prints."""
    if cells[0].strip().isdecimal():
        return cells[1:]
    return cells


def nanoseconds(text: str, unit: str) -> int | None:
    """Return a time; its own unit, n, u, m or none of seconds, counts more than the column's.

    None for what is no time, and for one without a unit where only cells have one.
    """
    amount = _AMOUNT.fullmatch(plain(text))
    if amount is None:
        return None
    own_unit = amount[2]
    if own_unit is None:
        own_unit = unit
    if own_unit == IN_CELLS:
        return None
    digits = amount[1].translate(_TOGETHER)
    return round(float(digits) * _NS[own_unit])


def whole(text: str) -> int | None:
    """Return a number of calls, at least 1; None for what is no whole number."""
    number = _WHOLE_NUMBER.fullmatch(text.strip())
    if number is None:
        return None
    digits = number[1].translate(_TOGETHER)
    if digits.isdecimal() and len(digits) <= 15:
        return max(1, int(digits))
    return None


def number(text: str) -> float | None:
    """Return the number that a text begins with, None if there is none."""
    amount = _AMOUNT.match(text.strip())
    if amount:
        return float(amount[1].translate(_TOGETHER))
    return None

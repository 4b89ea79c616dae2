"""Which name was meant by one that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import zip_longest

_ALIKE, _NEAR = 0.8, 0.7


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was meant by a slip of the keyboard, None if none is so near."""
    plain = name.removeprefix("--").replace("-", "_")
    if len(plain) < 4:
        return None
    close = get_close_matches(plain, sorted(names), n=1, cutoff=_NEAR)
    return close[0] if close and is_slip(plain, close[0]) else None


def is_path_slip(path: str, meant: str) -> bool:
    """Return whether two dotted names differ in one part, and there by a slip."""
    parts, others = path.split("."), meant.split(".")
    differing = [pair for pair in zip(parts, others, strict=False) if pair[0] != pair[1]]
    return len(parts) == len(others) and len(differing) == 1 and is_slip(*differing[0])


def is_slip(given: str, meant: str) -> bool:
    """Whether two names differ by merged words, or in one word by a slip of the keyboard."""
    if given.replace("_", "") == meant.replace("_", ""):
        return True
    words = zip_longest(given.split("_"), meant.split("_"), fillvalue="")
    differing = [(ours, theirs) for ours, theirs in words if ours != theirs]
    if (
        abs(len(given) - len(meant)) > 3
        or len(differing) > 1
        or given.rstrip("s") == meant.rstrip("s")
    ):
        return False
    ours, theirs = differing[0]
    if sorted(ours) == sorted(theirs):
        return True
    if min(len(ours), len(theirs)) < 4 or any(char.isdigit() for char in ours + theirs):
        return False
    return bool(get_close_matches(ours, [theirs], n=1, cutoff=_ALIKE)) and ours[:1] == theirs[:1]

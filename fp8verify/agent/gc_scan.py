"""Find objects among all that are alive, where that takes a moment only.

The training waits meanwhile: a Python loop over eight million objects takes a second. Types are
compared in C here, and beyond some number of objects nobody looks.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import compress
from typing import Any

MAX_BLOCKS = 4_000_000  # of memory, one or more an object: 0.1 s (Python 3.11)


class TooManyObjectsError(Exception):
    """There are too many objects to look through."""


def can_look() -> bool:
    """Return whether there are few enough objects to look through all."""
    return sys.getallocatedblocks() <= MAX_BLOCKS


def find_instances(wanted: Callable[[type], bool], *, patient: bool = False) -> list[Any]:
    """Return the live objects whose class is wanted, but for those frozen by `gc.freeze`.

    Raises:
        TooManyObjectsError: nobody looked, since the caller is not `patient`.
    """
    if not patient and not can_look():
        raise TooManyObjectsError
    objects = gc.get_objects()
    # type(), not isinstance(): a lazy proxy would be woken by being asked for its __class__.
    kinds = {kind for kind in set(map(type, objects)) if wanted(kind)}
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))

"""Modules that this process will need, imported while it waits for others to do its work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from importlib import import_module

_planned: deque[str] = deque()


def plan(modules: Iterable[str]) -> None:
    """Name modules to import in that order, of which each one alone takes milliseconds.

    They take the place of those that an earlier reading had no time to import.
    """
    _planned.clear()
    _planned.extend(modules)


def import_next() -> bool:
    """Import one; False if there is none left."""
    if not _planned:
        return False
    import_module(_planned.popleft())
    return True

"""The live objects that count a framework's steps: heard of when they are made, else searched for.

Their class's `__init__` is announced as soon as its module is imported. Where objects may have been
made before that, as in a script that begins to watch itself, they are searched for once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from ..live_objects import TooManyObjectsError, find_instances
from ..record.debug import debug
from .announce import Announced, announce, silence
from .framework_counters import COUNTERS, StepCounter

MADE = "__init__"


class CounterOwners:
    """The objects of `COUNTERS` in this process.

    Attributes:
        may_miss: whether some that were made before us were not looked for: there are too many
            objects.
    """

    def __init__(self) -> None:
        self.may_miss = False
        self._owners: list[tuple[StepCounter, weakref.ref[Any]]] = []
        self._listens = False
        self._complete: set[type] = set()  # classes of which no live object is unknown

    def listen(self, after_import: Callable[[str, Callable[[], object]], None]) -> None:
        """Hear of all that is made from now on; `after_import` calls back after an import."""
        self.look()
        for counter in COUNTERS:
            if counter.module not in sys.modules:
                after_import(counter.module, partial(self._is_imported, counter))

    def look(self) -> None:
        """Listen to the frameworks that are imported by now."""
        self._listens = True
        for counter, cls in _imported():
            self._announce(counter, cls)

    def rest(self) -> None:
        """Hear of nothing any more, and forget what is known."""
        for _, cls in _imported():
            silence(cls, MADE)
        self.may_miss = self._listens = False
        self._complete.clear()
        self._owners.clear()

    def live(self) -> list[tuple[StepCounter, Any]]:
        """Return those that are alive, a framework that drives another one first."""
        if self._listens:
            self.look()
        self._search()
        live = [(counter, reference()) for counter, reference in self._owners]
        found = [(counter, owner) for counter, owner in live if owner is not None]
        return sorted(found, key=lambda pair: COUNTERS.index(pair[0]))

    def _is_imported(self, counter: StepCounter) -> None:
        cls = _class_of(counter)
        if self._listens and cls is not None and self._announce(counter, cls):
            self._complete.add(cls)

    def _announce(self, counter: StepCounter, cls: type) -> bool:
        """Return whether objects of the class are heard of from now on."""
        if MADE not in vars(cls):
            return False
        if not isinstance(vars(cls)[MADE], Announced):
            self._complete.discard(cls)  # a library may have put its own in the place of ours
            announce(cls, MADE, lambda owner: self._is_made(counter, owner))
        return True

    def _is_made(self, counter: StepCounter, owner: Any) -> None:
        with suppress(Exception):  # this runs inside a call of the script, which must not fail
            self._add(counter, owner)

    def _add(self, counter: StepCounter, owner: Any) -> None:
        alive = [pair for pair in self._owners if pair[1]() not in (None, owner)]
        self._owners = [*alive, (counter, weakref.ref(owner))]

    def unknown(self) -> dict[type, StepCounter]:
        """Return the classes of objects that may be alive without being known, subclasses too."""
        return {
            kind: counter
            for counter, cls in _imported()
            if cls not in self._complete
            for kind in _with_subclasses(cls)
        }

    def learn(self, found: Iterable[Any]) -> None:
        """Take what a search among all objects has found of the classes that were unknown."""
        counters = self.unknown()
        for owner in found:
            if type(owner) in counters:
                self._add(counters[type(owner)], owner)
        self._complete |= {cls for cls in counters if isinstance(vars(cls).get(MADE), Announced)}

    def _search(self) -> None:
        counters = self.unknown()
        if not counters:
            return
        debug.event(f"all objects are searched for those of {', '.join(map(_name, counters))}")
        try:
            self.learn(find_instances(counters.__contains__))
        except TooManyObjectsError:
            self.may_miss = True
            self.learn([])


def _imported() -> Iterator[tuple[StepCounter, type]]:
    for counter in COUNTERS:
        cls = _class_of(counter)
        if cls is not None:
            yield counter, cls


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def _class_of(counter: StepCounter) -> type | None:
    cls = getattr(sys.modules.get(counter.module), counter.cls, None)
    return cls if isinstance(cls, type) else None


def _with_subclasses(cls: Any) -> Iterator[type]:
    yield cls
    for subclass in type.__subclasses__(cls):
        yield from _with_subclasses(subclass)


owners = CounterOwners()

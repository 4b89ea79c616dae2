"""Hearing of the objects that count a framework's steps, and searching for those made before."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

from fp8verify.agent import framework_counters as counter_owners
from fp8verify.agent import process
from fp8verify.agent.framework_counters import COUNTERS, CounterOwners
from fp8verify.agent.observe import unobserve_all

MODULE = "transformers.trainer"


class Imports:
    """Modules that are not imported yet, and who waits for them."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[], object]] = {}

    def after(self, name: str, then: Callable[[], object]) -> None:
        self.waiting[name] = then


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    made: list[object] = []
    search = process.find_instances

    def counted(wanted: Callable[[type], bool]) -> list[object]:
        made.append(wanted)
        return search(wanted)

    monkeypatch.setattr(counter_owners, "find_instances", counted)
    return made


@pytest.fixture
def owners() -> Iterator[CounterOwners]:
    made = CounterOwners()
    yield made
    made.forget()
    unobserve_all()


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type:
    class Trainer:
        def __init__(self, start: int = 0) -> None:
            self.state = SimpleNamespace(global_step=start)

    for counter in COUNTERS:  # other tests of the process may have imported the frameworks
        monkeypatch.delitem(sys.modules, counter.module, raising=False)
    module = ModuleType(MODULE)
    vars(module).update(Trainer=Trainer)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return Trainer


def live(owners: CounterOwners) -> list[object]:
    return [owner for _, owner in owners.live()]


def test_whoever_hears_of_the_import_never_searches(
    owners: CounterOwners, trainer: type, searches: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    imports, module = Imports(), sys.modules[MODULE]
    monkeypatch.delitem(sys.modules, MODULE)
    owners.listen(imports.after)
    monkeypatch.setitem(sys.modules, MODULE, module)
    imports.waiting[MODULE]()

    class Own(trainer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(3)

    first, second = trainer(), Own()

    assert live(owners) == [first, second]
    del first
    gc.collect()
    assert live(owners) == [second]
    assert searches == []


def test_objects_made_before_are_searched_for_once_and_later_ones_heard_of(
    owners: CounterOwners, trainer: type, searches: list[object]
) -> None:
    before = trainer()
    owners.look()

    assert live(owners) == [before]
    after = trainer()
    assert live(owners) == [before, after]
    assert len(searches) == 1


def test_too_many_objects_are_left_alone_once_and_for_all(
    owners: CounterOwners, trainer: type, monkeypatch: pytest.MonkeyPatch, searches: list[object]
) -> None:
    monkeypatch.setattr(process, "MAX_BLOCKS", 0)
    kept = trainer()
    owners.look()

    assert (live(owners), owners.may_miss) == ([], True)
    heard = trainer()
    assert live(owners) == [heard]
    assert len(searches) == 1
    assert kept is not heard


def test_a_library_that_puts_its_own_in_our_place_makes_us_search_once_more(
    owners: CounterOwners, trainer: type, searches: list[object]
) -> None:
    owners.look()
    live(owners)
    original = trainer.__init__
    trainer.__init__ = lambda self: original(self, 5)  # type: ignore[misc]
    unheard = trainer()

    assert live(owners) == [unheard]
    heard = trainer()
    assert live(owners) == [unheard, heard]
    assert len(searches) == 2


def test_at_rest_the_class_is_as_it_was(owners: CounterOwners, trainer: type) -> None:
    made_by = vars(trainer)["__init__"]
    owners.look()
    assert vars(trainer)["__init__"] is not made_by

    owners.forget()
    unobserve_all()

    assert vars(trainer)["__init__"] is made_by

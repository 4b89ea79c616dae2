"""The step counters of frameworks, here replaced by modules of their names, and searches."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
from fp8verify.agent import instruments, layers, process  # noqa: E402 - needs torch
from fp8verify.agent.framework_counters import (  # noqa: E402
    COUNTERS,
    CounterOwners,
    FrameworkCounters,
    counter_classes,
    sets_up_an_optimizer,
)
from fp8verify.agent.instruments import InstrumentContext, ModuleList  # noqa: E402
from fp8verify.agent.observe import unobserve_all  # noqa: E402
from fp8verify.agent.process import TooManyObjectsError, find_instances  # noqa: E402

TRAINER, ENGINE = "transformers.trainer", "deepspeed.runtime.engine"


class Frameworks:
    """transformers and DeepSpeed, and what is known of their objects."""

    def __init__(self) -> None:
        class Trainer:
            def __init__(self, number: object = 0) -> None:
                self.state = SimpleNamespace(global_step=number)

        class DeepSpeedEngine:
            def __init__(self, number: object = 0) -> None:
                self.global_steps = number

        self.trainer: Any = Trainer
        self.engine: Any = DeepSpeedEngine
        self.owners = CounterOwners()
        self.waiting: dict[str, Callable[[], object]] = {}

    def after_import(self, name: str, then: Callable[[], object]) -> None:
        self.waiting[name] = then

    def live(self) -> list[object]:
        return [owner for _, owner in self.owners.live()]

    def numbers(self, *changes: Callable[[], None]) -> Any:
        """Return framework and numbers of a window in which these steps are made."""
        counters = FrameworkCounters(self.owners.live())
        for change in changes:
            change()
            counters.look()
        found = counters.result()
        return found and (found["name"], found["counter"], found["first"], found["last"])


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frameworks]:
    made = Frameworks()
    for counter in COUNTERS:  # other tests of the process may have imported the frameworks
        monkeypatch.delitem(sys.modules, counter.module, raising=False)
    for name, cls in ((TRAINER, made.trainer), (ENGINE, made.engine)):
        module = ModuleType(name)
        setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, name, module)
    made.owners.look()
    yield made
    made.owners.forget()
    unobserve_all()


def test_a_step_is_known_to_make_an_optimizers_state_by_its_caller() -> None:
    def initialize_optimizer_states(depth: int) -> bool:
        return deeper(depth)

    def deeper(depth: int) -> bool:
        return deeper(depth - 1) if depth else sets_up_an_optimizer()

    assert initialize_optimizer_states(4)
    assert not deeper(4)


def test_objects_are_known_from_the_import_of_their_class(
    frameworks: Frameworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    unobserve_all()
    module = sys.modules[TRAINER]
    monkeypatch.delitem(sys.modules, TRAINER)
    frameworks.owners.listen(frameworks.after_import)
    monkeypatch.setitem(sys.modules, TRAINER, module)
    frameworks.waiting[TRAINER]()

    class Own(frameworks.trainer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(3)

    first, second = frameworks.trainer(), Own()
    assert frameworks.live() == [first, second]
    del first
    gc.collect()
    assert frameworks.live() == [second]


def test_objects_made_before_are_learned_from_a_search(frameworks: Frameworks) -> None:
    unobserve_all()
    before = type("Own", (frameworks.trainer,), {})()
    found = find_instances(lambda kind: issubclass(kind, counter_classes()))
    frameworks.owners.learn([*found, object()])
    assert frameworks.live() == [before]


def test_a_library_that_puts_its_own_in_our_place_is_observed_again(frameworks: Frameworks) -> None:
    original = frameworks.trainer.__init__
    frameworks.trainer.__init__ = lambda self: original(self, 5)
    assert frameworks.live() == []
    after = frameworks.trainer()
    assert frameworks.live() == [after]


def test_a_counter_is_read_before_it_counts_the_step(frameworks: Frameworks) -> None:
    engine = frameworks.engine(108)
    steps = [lambda number=n: setattr(engine, "global_steps", number) for n in (109, 110, 111)]
    assert frameworks.numbers(*steps) == ("deepspeed", "global_steps", 110, 112)


def test_of_several_the_one_that_moves_counts(frameworks: Frameworks) -> None:
    resting, engine = frameworks.engine(5), frameworks.engine(0)
    numbers = frameworks.numbers(lambda: setattr(engine, "global_steps", 1))
    assert (numbers, resting.global_steps) == (("deepspeed", "global_steps", 2, 2), 5)


def test_the_trainer_comes_before_the_engine_that_it_drives(frameworks: Frameworks) -> None:
    engine, trainer = frameworks.engine(9), frameworks.trainer(4)

    def step() -> None:
        engine.global_steps, trainer.state.global_step = 10, 5

    assert frameworks.numbers(step) == ("transformers", "global_step", 6, 6)


@pytest.mark.parametrize("shown", ["many", None])
def test_a_counter_without_a_number_and_no_framework_have_none(
    frameworks: Frameworks, shown: object
) -> None:
    assert frameworks.numbers(lambda: None) is None
    engine = frameworks.engine(shown)
    assert frameworks.numbers(lambda: None) is None
    assert engine.global_steps is shown
    kept = [frameworks.engine(1)]
    assert frameworks.numbers(kept.clear) is None  # it is gone


@pytest.fixture
def _millions(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(*_: object) -> None:
        raise AssertionError("somebody looks at every object")

    monkeypatch.setattr(process, "MAX_BLOCKS", 0)
    monkeypatch.setattr(gc, "get_objects", scan)


@pytest.mark.parametrize(("live", "times"), [(None, 2), ({"every": 9}, 1)])
def test_a_watch_lists_the_modules_once(
    monkeypatch: pytest.MonkeyPatch, live: object, times: int
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(instruments, "take_census", lambda of: calls.append(of) or [])
    listed = ModuleList(InstrumentContext({"live": live}, list))
    listed.before_window()
    listed.before_window()
    assert len(calls) == times


@pytest.mark.usefixtures("_millions")
def test_among_millions_of_objects_there_is_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooManyObjectsError):
        find_instances(lambda _: True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    listed = ModuleList(InstrumentContext({"live": None}, lambda: [optimizer]))
    monkeypatch.setattr(layers, "_modules", [])
    listed.before_window()

    # The modules were not looked for, which is not the same as none.
    assert listed.record() == {"modules": [], "modules_listed": False}

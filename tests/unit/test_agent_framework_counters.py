"""The step counters of frameworks, here replaced by modules of their names, and searches."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
from fp8verify.agent import layers, process  # noqa: E402 - needs torch
from fp8verify.agent.framework_counters import counters, sets_up_an_optimizer  # noqa: E402
from fp8verify.agent.instruments import (  # noqa: E402
    FrameworkNumbers,
    InstrumentContext,
    ModuleList,
)
from fp8verify.agent.observe import unobserve_all  # noqa: E402
from fp8verify.agent.process import find_instances  # noqa: E402
from fp8verify.agent.windows.plan import GlobalPlan  # noqa: E402
from fp8verify.frameworks import for_agent  # noqa: E402


class Frameworks:
    """The classes that count steps in transformers, Lightning, DeepSpeed and OLMo-core."""

    def __init__(self) -> None:
        class Trainer:
            def __init__(self, number: object = 0) -> None:
                self.state = SimpleNamespace(global_step=number)

            def training_step(self) -> str:
                return "trained"

        class DeepSpeedEngine:
            def __init__(self, number: object = 0) -> None:
                self.global_steps = number

            def forward(self) -> None:
                pass

        class _TrainingEpochLoop:
            def __init__(self, trainer: object) -> None:
                self.trainer = trainer

            def advance(self) -> None:
                pass

        class OlmoTrainer:
            global_step = 12

            def _fit_epoch(self) -> None:
                pass

        self.trainer: Any = Trainer
        self.engine: Any = DeepSpeedEngine
        self.loop: Any = _TrainingEpochLoop
        self.olmo: Any = OlmoTrainer
        self.begun = 0

    def begins(self) -> None:
        self.begun += 1


def begin(*owners: Any) -> None:
    """Begin a step, as their loops do."""
    for owner in owners:
        (owner.training_step if hasattr(owner, "state") else owner.forward)()


def numbers(*changes: Callable[[], None]) -> Any:
    """Return framework and numbers of a window in which these steps are made."""
    instrument = FrameworkNumbers(InstrumentContext({}, list))
    instrument.begin()
    for step, change in enumerate(changes):
        change()
        instrument.after_step(step)
    found = instrument.end()["framework"]
    return found and (found["name"], found["counter"], found["first"], found["last"])


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frameworks]:
    made = Frameworks()
    for module, name, cls in (
        ("transformers.trainer", "Trainer", made.trainer),
        ("deepspeed.runtime.engine", "DeepSpeedEngine", made.engine),
        (
            "lightning.pytorch.loops.training_epoch_loop",
            "_TrainingEpochLoop",
            made.loop,
        ),
        ("olmo_core.train.trainer", "Trainer", made.olmo),
    ):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
        setattr(sys.modules[module], name, cls)
    counters.use(for_agent()["counters"])
    for _ in range(2):  # each is observed once
        counters.observe(made.begins)
    yield made
    unobserve_all()
    counters.forget()


def test_a_step_is_known_to_make_an_optimizers_state_by_its_caller() -> None:
    def initialize_optimizer_states(depth: int) -> bool:
        return deeper(depth)

    def deeper(depth: int) -> bool:
        return deeper(depth - 1) if depth else sets_up_an_optimizer()

    assert initialize_optimizer_states(4)
    assert not deeper(4)


def test_a_framework_is_heard_before_each_step(frameworks: Frameworks) -> None:
    class Own(frameworks.trainer):  # type: ignore[misc, name-defined]
        def training_step(self) -> str:
            return str(super().training_step())

    trainer = Own(4)
    assert (trainer.training_step(), frameworks.begun) == ("trained", 1)
    unobserve_all()
    trainer.training_step()

    assert frameworks.begun == 1
    assert [(one.shown, number) for one, number in counters.shown().items()] == [
        ("transformers", 4)
    ]


def test_a_library_that_puts_its_own_in_our_place_is_observed_again(
    frameworks: Frameworks,
) -> None:
    frameworks.trainer.training_step = lambda _: "faster"
    trainer = frameworks.trainer(5)
    assert (trainer.training_step(), counters.shown()) == ("faster", {})
    counters.observe(frameworks.begins)
    trainer.training_step()
    assert list(counters.shown().values()) == [5]


def test_a_counter_is_read_before_it_counts_the_step(frameworks: Frameworks) -> None:
    engine = frameworks.engine(108)
    begin(engine)
    steps = [
        lambda number=n: setattr(engine, "global_steps", number)
        for n in (109, 110, 111)
    ]
    assert numbers(*steps) == ("deepspeed", "global_steps", 110, 112)


def test_of_several_the_one_that_moves_counts(frameworks: Frameworks) -> None:
    resting, engine = frameworks.trainer(5), frameworks.engine(0)
    begin(resting, engine)
    assert numbers(lambda: setattr(engine, "global_steps", 1))[0] == "deepspeed"
    begin(frameworks.engine(7), engine)  # the last that began a step
    found = numbers(lambda: setattr(engine, "global_steps", 2))
    assert (found, resting.state.global_step) == (
        ("deepspeed", "global_steps", 3, 3),
        5,
    )


def test_the_trainer_comes_before_the_engine_that_it_drives(
    frameworks: Frameworks,
) -> None:
    engine, trainer = frameworks.engine(9), frameworks.trainer(4)
    begin(trainer, engine)

    def step(state: Any = trainer.state) -> None:
        engine.global_steps, state.global_step = 10, 5

    assert numbers(step) == ("transformers", "global_step", 6, 6)
    by_count = GlobalPlan([])
    assert (by_count.number_of(1), by_count.source) == (6, "transformers global_step")

    del trainer  # that training is over
    assert (by_count.number_of(2), by_count.source) == (11, "deepspeed global_steps")


@pytest.mark.parametrize("shown", ["many", None])
def test_a_counter_without_a_number_and_no_framework_have_none(
    frameworks: Frameworks, shown: object
) -> None:
    assert numbers(lambda: None) is None
    engine = frameworks.engine(shown)
    begin(engine)
    assert numbers(lambda: None) is None
    kept = [frameworks.engine(1)]
    begin(kept[0])
    assert numbers(kept.clear) is None  # it is gone


def test_a_counter_of_the_script_comes_before_the_frameworks(
    frameworks: Frameworks,
) -> None:
    trainer, by_count = frameworks.trainer(10), GlobalPlan([])
    begin(trainer)
    assert [by_count.number_of(step) for step in (0, 2)] == [10, 11]
    trainer.state.global_step = 11
    assert by_count.number_of(3) == 12
    for number in (32, None):
        counters.announce(number, is_new=True)
    assert by_count.number_of(5) == 33


def test_a_counter_in_another_object_and_one_that_counts_early(
    frameworks: Frameworks,
) -> None:
    by_count, olmo = GlobalPlan([]), frameworks.olmo()
    frameworks.loop(olmo).advance()
    assert [by_count.number_of(step) for step in (0, 1)] == [12, 13]

    counters.forget()
    olmo._fit_epoch()
    assert [by_count.number_of(step) for step in (0, 1)] == [12, 12]


@pytest.fixture
def _millions(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(*_: object) -> None:
        raise AssertionError("somebody looks at every object")

    monkeypatch.setattr(process, "MAX_BLOCKS", 0)
    monkeypatch.setattr(gc, "get_objects", scan)


@pytest.mark.usefixtures("_millions")
def test_among_millions_of_objects_there_is_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_instances(lambda _: True) == []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    listed = ModuleList(InstrumentContext({"live": None}, lambda: [optimizer]))
    monkeypatch.setattr(layers, "_modules", {})
    listed.before_window()

    # The modules were not looked for, which is not the same as none.
    assert listed.record() == {"modules": [], "modules_listed": False, "storage": []}

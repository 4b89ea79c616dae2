"""Finding the step counters of frameworks, here stood in for by modules of their names."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fp8verify.agent.framework_counters import (
    CounterOwners,
    FrameworkCounters,
    sets_up_an_optimizer,
)


class Engine:
    def __init__(self, global_steps: object) -> None:
        self.global_steps = global_steps


class Trainer:
    def __init__(self, global_step: object) -> None:
        self.state = SimpleNamespace(global_step=global_step)


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def _deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "deepspeed.runtime.engine", DeepSpeedEngine=Engine)


def counters() -> FrameworkCounters:
    return FrameworkCounters(CounterOwners().live())


def numbers(steps: FrameworkCounters) -> Any:
    found = steps.result()
    return found and (found["name"], found["counter"], found["first"], found["last"])


def test_a_step_is_known_to_make_an_optimizers_state_by_its_caller() -> None:
    def initialize_optimizer_states(depth: int) -> bool:
        return deeper(depth)

    def deeper(depth: int) -> bool:
        return deeper(depth - 1) if depth else sets_up_an_optimizer()

    assert initialize_optimizer_states(4)
    assert not deeper(4)


def test_no_framework_has_no_numbers() -> None:
    steps = counters()
    steps.look()

    assert steps.result() is None


@pytest.mark.usefixtures("_deepspeed")
def test_a_counter_is_read_before_it_counts_the_step() -> None:
    engine = Engine(108)
    steps = counters()

    for engine.global_steps in (109, 110, 111):
        steps.look()

    assert numbers(steps) == ("deepspeed", "global_steps", 110, 112)


@pytest.mark.usefixtures("_deepspeed")
def test_of_several_the_one_that_moves_counts() -> None:
    _resting, engine = Engine(5), Engine(0)
    steps = counters()

    engine.global_steps = 1
    steps.look()

    assert numbers(steps) == ("deepspeed", "global_steps", 2, 2)


@pytest.mark.usefixtures("_deepspeed")
def test_a_counter_that_is_none_is_passed_over() -> None:
    engines = [Engine("many"), Engine(None)]
    steps = counters()
    steps.look()

    assert steps.result() is None
    assert len(engines) == 2


@pytest.mark.usefixtures("_deepspeed")
def test_the_trainer_comes_before_the_engine_it_drives(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "transformers.trainer", Trainer=Trainer)
    engine, trainer = Engine(9), Trainer(4)
    steps = counters()

    engine.global_steps, trainer.state.global_step = 10, 5
    steps.look()

    assert numbers(steps) == ("transformers", "global_step", 6, 6)


@pytest.mark.usefixtures("_deepspeed")
def test_an_engine_that_is_gone_is_no_error() -> None:
    engine = Engine(1)
    steps = counters()
    del engine

    steps.look()

    assert steps.result() is None

"""Looking for objects among all that are alive: only where the training does not wait for it."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fp8verify.agent import process
from fp8verify.agent.process import TooManyObjectsError, find_instances

pytest.importorskip("torch")

from fp8verify.agent import instruments as framework_numbers
from fp8verify.agent.framework_counters import CounterOwners
from fp8verify.agent.instruments import FrameworkNumbers, InstrumentContext, ModuleList


class Engine:
    global_steps = 7


@pytest.fixture
def _millions(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(*_: object) -> None:
        raise AssertionError("somebody looks at every object")

    monkeypatch.setattr(process, "MAX_BLOCKS", 0)
    monkeypatch.setattr(gc, "get_objects", scan)


def test_instances_are_found_by_their_class() -> None:
    engines = [Engine(), Engine()]

    found = find_instances(lambda kind: kind is Engine)

    assert {id(engine) for engine in engines} <= {id(engine) for engine in found}
    assert {type(engine) for engine in found} == {Engine}


@pytest.mark.usefixtures("_millions")
def test_among_millions_of_objects_nobody_looks() -> None:
    with pytest.raises(TooManyObjectsError):
        find_instances(lambda _: True)


@pytest.mark.usefixtures("_millions")
def test_numbers_that_nobody_looked_for_are_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = Engine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(framework_numbers, "owners", CounterOwners())
    notes: list[str] = []
    record = SimpleNamespace(note=notes.append)
    numbers = FrameworkNumbers(InstrumentContext({}, list, record=lambda: record))

    numbers.begin()
    numbers.after_step(3)

    assert numbers.end() == {"framework": None}
    assert "were not looked for: the process holds millions of objects" in notes[0]


@pytest.mark.usefixtures("_millions")
def test_modules_that_nobody_looked_for_are_not_said_to_be_none() -> None:
    import torch

    from fp8verify.agent import layers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    listed = ModuleList(InstrumentContext({}, lambda: [optimizer]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "_modules", [])
        listed.before_window()

    assert listed.record() == {"modules": [], "modules_listed": False}

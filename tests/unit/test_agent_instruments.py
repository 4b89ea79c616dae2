"""Instruments of the agent: asked together, and put away one by one when they fail."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, from the train extra")
import torch

from fp8verify.agent.instruments import (
    Instrument,
    InstrumentContext,
    InstrumentSet,
    MemoryPeak,
)

pytestmark = pytest.mark.train


class Memory(Instrument):
    steps = 0

    def after_step(self, step: int, /) -> None:
        self.steps = step

    def end(self) -> dict[str, Any]:
        return {"peak_bytes": 100 * self.steps}

    def record(self) -> dict[str, Any]:
        return {"memory": self.steps}


class Broken(Instrument):
    dropped = 0

    def begin(self) -> None:
        raise RuntimeError("no such counter")

    def drop(self) -> None:
        type(self).dropped += 1
        raise RuntimeError("nor can it be undone")


def test_an_instrument_that_fails_is_put_away_and_the_others_go_on() -> None:
    notes: list[str] = []
    context = InstrumentContext({}, list, lambda: SimpleNamespace(note=notes.append))
    instruments = InstrumentSet(context, (Broken, Memory))

    for method in ("before_window", "begin", "begin"):
        instruments.call(method)
    instruments.call("after_step", 3)

    assert instruments.call("end") == {"peak_bytes": 300}
    assert instruments.call("record") == {"memory": 3}
    assert Broken.dropped == 1
    (note,) = notes
    assert note.startswith(
        "Broken.begin failed: RuntimeError: no such counter (stored.py"
    )
    assert note.endswith("run --debug keeps the traceback")


def test_the_peak_of_memory_leaves_no_cyclic_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stats = {
        "allocated_bytes": {"all": {"peak": 1}},
        "reserved_bytes": {"all": {"peak": 2}},
    }
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda **_: stats)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: SimpleNamespace(total_memory=3),
    )
    instrument = MemoryPeak(InstrumentContext({}, list))
    gc.collect()
    gc.disable()
    try:
        found = instrument.end()
        assert gc.collect() == 0
    finally:
        gc.enable()

    assert found["memory"] == {"allocated_peak": 1, "reserved_peak": 2, "total": 3}

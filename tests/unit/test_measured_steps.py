"""Which steps `--numerics` measures, by the agent's own schedule."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
from fp8verify.agent.numerics import Numerics  # noqa: E402 - needs torch

pytestmark = pytest.mark.train


def measured(
    steps: int, boot: Path, *, every: int = 0, live: bool = False, free: int = 0
) -> list[int]:
    """Train, and return the steps that were measured; none may be before the step `free`."""
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    write = {"write_numerics": lambda _: None, "append_numerics": lambda _: None}
    record = SimpleNamespace(files=SimpleNamespace(rank=0, world_size=1, **write))
    config = {
        "numerics": True,
        "numerics_every": every,
        "numerics_eager": False,
        "live": {} if live else None,
        "ranks": {"only": (), "every": 1, "auto": False},
        "boot": f"{boot}",
    }
    context: Any = SimpleNamespace(
        config=config,
        record=lambda: record,
        optimizers=lambda: [optimizer],
        own=lambda: [optimizer],
        may_measure=lambda step: step >= free,
    )
    numerics, found = Numerics(context), []
    for step in range(1, steps + 1):
        if numerics.measures:
            found.append(step)
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
        numerics.after_step(step)
    return found


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [3]), ({"free": 4}, [6]), ({"every": 4}, [3, 7, 11, 15]),
        ({"every": 1}, list(range(3, 17))), ({"every": 4, "live": True}, [3, 7, 11, 15]),
        ({"every": 6, "live": True, "free": 2}, [4, 10, 16]),
    ],
    ids=str,
)  # fmt: skip
def test_steps_are_measured_as_often_as_asked(
    options: dict[str, Any], steps: list[int], tmp_path: Path
) -> None:
    assert measured(16, tmp_path, **options) == steps

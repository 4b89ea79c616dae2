"""A run whose script profiles itself, as KempnerForge and torchtitan do, keeps its trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attached import SCRIPTS, attach, compare

pytestmark = pytest.mark.train
SCRIPT = SCRIPTS / "self_profiling.py"


@pytest.mark.parametrize(
    ("when", "window"),
    [
        ("during", ("cut", 4, 6)), ("in-our-warm-up", ("complete", 6, 8)),
        ("before", ("complete", 8, 10)), ("before-and-done", ("complete", 4, 6)),
        ("after", ("complete", 4, 6)), ("warming-up", ("cut", 9, 11)),
    ],
)  # fmt: skip
def test_a_script_that_profiles_itself_keeps_its_trace(
    tmp_path: Path, when: str, window: tuple[str, int, int]
) -> None:
    theirs = tmp_path / "theirs.json"

    attached = compare(tmp_path, "4-6", SCRIPT, when, theirs)

    assert attached.run.code == 0
    (found,) = attached.meta().windows
    assert (found.state, found.first, found.last) == window
    assert (
        json.loads(theirs.read_text())["traceEvents"][-1]["name"] == "Record Window End"
    )
    assert found.first in attached.steps(found.trace)


@pytest.mark.parametrize(
    ("framework", "asked", "done", "window"),
    [
        ("kempnerforge", "6-8", 0, ("complete", 11, 13)),
        ("kempnerforge", "8-10", 0, ("complete", 11, 13)),
        ("torchtitan", "6", 0, ("complete", 9, 9)),
        ("torchtitan", "6", 30, ("complete", 9, 9)),
    ],
)
def test_a_window_that_a_framework_profiles_moves_behind_it(
    tmp_path: Path, framework: str, asked: str, done: int, window: tuple[str, int, int]
) -> None:
    attached = attach(tmp_path, asked, SCRIPT, framework, "traces", done)

    (found,) = attached.meta().windows
    assert (found.state, found.first, found.last) == window
    assert any("were chosen instead" in note for note in attached.meta().notes)
    traces = [path for path in (tmp_path / "traces").rglob("*") if path.is_file()]
    assert len(traces) == (2 if framework == "torchtitan" else 1)


REPEATING = """
import torch
from torch.profiler import profile, schedule
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
with profile(schedule=schedule(wait=1, warmup=1, active=3)) as profiler:
    for _ in range(14):
        train()
        profiler.step()
for _ in range(6):
    train()
"""


def test_a_window_moves_behind_a_profiler_that_records_again_and_again(
    tmp_path: Path,
) -> None:
    script = tmp_path / "repeating.py"
    script.write_text(REPEATING)

    attached = attach(tmp_path, "5-6", script)

    (found,) = attached.meta().windows
    assert (found.state, found.last - found.first) == ("complete", 1)
    assert found.first > 14

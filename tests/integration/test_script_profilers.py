"""A run whose script profiles itself, as KempnerForge and torchtitan do, is judged by its trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attached import SCRIPTS, attach, compare

pytestmark = pytest.mark.train
SCRIPT = SCRIPTS / "self_profiling.py"
OURS, THEIRS = ("fp8verify", "complete"), ("script", "complete")


@pytest.mark.parametrize(
    ("when", "windows"),
    [
        ("during", [("fp8verify", "cut", 4, 6), (*THEIRS, 5, 6)]),
        ("in-our-warm-up", [(*OURS, 6, 8)]),
        ("before", [(*OURS, 8, 10), (*THEIRS, 3, 5)]),
        ("before-and-done", [(*OURS, 4, 6)]),
        ("after", [(*OURS, 4, 6)]),
        ("warming-up", [(*THEIRS, 5, 6)]),
    ],
)
def test_a_script_that_profiles_itself_keeps_its_trace(
    tmp_path: Path, when: str, windows: list[tuple[str, str, int, int]]
) -> None:
    theirs = tmp_path / "theirs.json"

    attached = compare(tmp_path, "4-6", SCRIPT, when, theirs)

    assert attached.run.code == 0
    found = attached.meta().windows
    assert [(w.profiler, w.state, w.first, w.last) for w in found] == windows
    assert json.loads(theirs.read_text())["traceEvents"][-1]["name"] == "Record Window End"
    for window in found:
        if window.profiler == "script":
            assert (attached.capture / str(window.trace)).read_bytes() == theirs.read_bytes()
            assert any(f"whose trace {theirs} was copied" in n for n in attached.meta().notes)
        else:
            assert window.first in attached.steps(window.trace)


@pytest.mark.parametrize(
    ("framework", "window", "done", "windows"),
    [
        ("kempnerforge", "6-8", 0, [(*THEIRS, 6, 8)]),
        ("kempnerforge", "7", 0, [(*THEIRS, 6, 8)]),
        ("kempnerforge", "8-10", 0, [(*OURS, 11, 13), (*THEIRS, 6, 8)]),
        ("torchtitan", "6", 0, [(*THEIRS, 6, 6)]),
        ("torchtitan", "6", 30, [(*THEIRS, 6, 6)]),
    ],
)
def test_what_a_framework_profiles_is_the_window(
    tmp_path: Path, framework: str, window: str, done: int, windows: list[object]
) -> None:
    attached = attach(tmp_path, window, SCRIPT, framework, "traces", done)

    found = attached.meta().windows
    assert [(w.profiler, w.state, w.first, w.last) for w in found] == windows
    traces = sorted(path for path in (tmp_path / "traces").rglob("*") if path.is_file())
    assert len(traces) == (2 if framework == "torchtitan" else 1)
    kept = (attached.capture / str(found[-1].trace)).read_bytes()
    assert kept in [trace.read_bytes() for trace in traces if f"_{done + 12}/" not in f"{trace}"]

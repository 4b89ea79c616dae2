"""Sinks, and the recipes of docs/recipes.md against the real packages, asked what they have got."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fp8verify
from fp8verify.errors import UsageError
from fp8verify.record.live import WindowMetrics, open_sink
from tests.attached import ROOT

WATCHED = {
    "fp8/share_of_gemm_time": 0.75,
    "fp8/amax_bwd": 2.1851e-09,
    "train/grad_norm": 1.5,
}
LINES: list[WindowMetrics] = [
    {"step": 101, "verdict": "ACTIVE", "reason": "r", "findings": [], **WATCHED},
    {"step": 201, "verdict": "PARTIAL", "reason": "r", "findings": [], **WATCHED},
]


@pytest.fixture
def recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, Any]]:
    """Run the block of docs/recipes.md that defines a function, and return its names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fp8verify, "watch", lambda **_: contextlib.nullcontext())

    def run(function: str) -> dict[str, Any]:
        page = (ROOT / "docs/recipes.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        [block] = [one for one in blocks if f"def {function}(" in one]
        names: dict[str, Any] = {"fp8verify": fp8verify}
        exec(block, names)
        sink = open_sink(names[function])
        for line in LINES:
            sink(line)
        return names

    return run


def test_tensorboard_reads_the_scalars(recipe: Callable[[str], dict[str, Any]]) -> None:
    pytest.importorskip("tensorboard")
    recipe("to_tensorboard")

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("runs/fp8").Reload()
    for name, value in WATCHED.items():
        assert [t.step for t in events.Tensors(name)] == [101, 201]
        assert events.Tensors(name)[0].tensor_proto.float_val[0] == pytest.approx(value)


def test_wandb_offline_takes_the_scalars(
    recipe: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": ".",
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    run = recipe("to_wandb")["run"]
    summary = dict(run.summary)
    run.finish()
    assert WATCHED.items() <= summary.items()
    assert (summary["fp8/step"], summary["fp8/verdict"]) == (201, "PARTIAL")


@pytest.mark.parametrize(
    ("what", "fact", "hint"),
    [
        ("tensorboard:runs", "is not a file", "docs/recipes.md has recipes"),
        ("wandb:", "is not a file", "docs/recipes.md has recipes"),
        ("/proc/none/a.jsonl", "cannot write metrics to /proc", "may be written"),
    ],
)
def test_what_is_no_sink_is_an_error_before_the_run(
    what: str, fact: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=fact) as caught:
        open_sink(what)
    assert hint in caught.value.hint

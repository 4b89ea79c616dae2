"""Which clock counted, what the framework calls the steps, and what the agent remarked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Report, inspect
from fp8verify.report import forms
from tests.hand_built import TraceBuilder

WINDOW = {"first": 10, "last": 12, "state": "complete", "trace": "rank0.json"}
GLOBAL = {"name": "transformers", "counter": "global_step", "first": 109, "last": 111}
META = {"schema": 1, "rank": 0, "steps_seen": 14, "leader": "AdamW", "window": [WINDOW]}


def capture(folder: Path, *changes: dict[str, Any]) -> Report:
    """Inspect a capture of as many ranks as there are changes to `META`."""
    for rank, change in enumerate(changes):
        trace = TraceBuilder(rank=rank, world=len(changes)).step(10).linear(64, 64, 64, fp8=True)
        trace.write(folder / f"rank{rank}.json")
        windows = [{**WINDOW, "trace": f"rank{rank}.json"}]
        meta = {**META, "rank": rank, "window": windows, **change}
        (folder / f"rank{rank}.meta.json").write_text(json.dumps(meta))
    return inspect(folder)


def clock_of(report: Report) -> str | None:
    lines = [
        line.split(maxsplit=1) for line in forms.render(report, "text", verbose=True).splitlines()
    ]
    return next((line[1] for line in lines if line[:1] == ["steps"]), None)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"window": [{**WINDOW, "framework": GLOBAL}], "steps_skipped": 1},
            "optimizer steps (AdamW.step), window 10-12 = transformers global_step",
        ),
        ({"clock": "explicit"}, "fp8verify.step(), window 10-12"),
        ({"steps_skipped": 2}, "(AdamW.step), window 10-12; 2 steps skipped by"),
        ({"leader": None}, "optimizer steps, window 10-12"),
        ({"window": [{**WINDOW, "state": "never", "reason": "x"}]}, "optimizer steps (AdamW.step)"),
        (
            {"window": [WINDOW, {**WINDOW, "first": 500, "last": 500, "trace": None}]},
            "optimizer steps (AdamW.step), window 10-12, window 500",
        ),
    ],
    ids=["framework", "explicit", "skipped", "unknown", "never", "two"],
)
def test_the_text_says_what_was_counted(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    shown = clock_of(capture(tmp_path, change))

    assert shown is not None
    assert line in shown


def test_a_capture_of_an_earlier_version_names_its_only_optimizer(tmp_path: Path) -> None:
    report = capture(tmp_path, {"leader": None, "optimizer_updates": {"SGD": 9, "Adam": 0}})
    assert "(SGD.step)" in str(clock_of(report))


def test_the_json_has_the_numbers_apart(tmp_path: Path) -> None:
    window = {**WINDOW, "framework": GLOBAL}
    report = capture(tmp_path, {"window": [window], "optimizer_updates": {"AdamW": 28}})
    clock = json.loads(report.to_json())["ranks"][0]["clock"]
    (found,) = clock.pop("windows")
    assert found == {
        **{key: WINDOW[key] for key in ("first", "last", "state")},
        "framework": "transformers",
        "counter": "global_step",
        "framework_first": 109,
        "framework_last": 111,
    }
    assert (clock["source"], clock["counts"], clock["updates"]) == (
        "optimizer", "AdamW.step", {"AdamW": 28},
    )  # fmt: skip
    assert (clock["steps_seen"], clock["steps_skipped"]) == (14, 0)


def test_a_trace_alone_has_no_clock(tmp_path: Path) -> None:
    report = inspect(TraceBuilder().step(1).linear(64, 64, 64, fp8=True).write(tmp_path / "a.json"))

    assert report.ranks[0].clock is None
    assert clock_of(report) is None


def test_clocks_that_differ_are_told_of_each_rank(tmp_path: Path) -> None:
    report = capture(tmp_path, {}, {}, {"steps_skipped": 1})

    text = forms.render(report, "text", verbose=True)
    assert "ranks 0-1: optimizer steps (AdamW.step), window 10-12" in text
    assert "rank 2: optimizer steps (AdamW.step), window 10-12; 1 step skipped" in text


def test_remarks_of_the_agents_are_passed_on_once(tmp_path: Path) -> None:
    slow, own = "step 1 includes set-up", "the layers could not be named: x"

    report = capture(tmp_path, {"notes": [slow]}, {"notes": [slow]}, {"notes": [slow, own]})

    assert report.notes == (slow, f"rank 2: {own}")


def test_remarks_are_passed_on_where_there_is_no_trace(tmp_path: Path) -> None:
    never = {**WINDOW, "state": "never", "reason": "the run ended", "trace": None}
    meta = {**META, "window": [never], "notes": ["stopped observing after step 3: KeyError: 'x'"]}
    (tmp_path / "rank0.meta.json").write_text(json.dumps(meta))

    assert "note     stopped observing after step 3" in forms.render(inspect(tmp_path), "text")

"""Which clock counted, what the framework calls the steps, and what the agent remarked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Report, inspect
from fp8verify.report import forms
from tests.hand_built import TraceBuilder, write_meta

WINDOW = {"first": 10, "last": 12, "state": "complete", "trace": "rank0.json"}
GLOBAL = {"name": "transformers", "counter": "global_step", "first": 109, "last": 111}
META = {"steps_seen": 14, "leader": "AdamW"}


def capture(folder: Path, *changes: dict[str, Any]) -> Report:
    """Inspect a capture of as many ranks as there are changes to `META`."""
    for rank, change in enumerate(changes):
        trace = (
            TraceBuilder(rank=rank, world=len(changes))
            .step(10)
            .linear(64, 64, 64, fp8=True)
        )
        trace.write(folder / f"rank{rank}.json")
        windows = [{**WINDOW, "trace": f"rank{rank}.json"}]
        write_meta(folder, rank=rank, **{**META, "window": windows, **change})
    return inspect(folder)


def clock_of(report: Report) -> str | None:
    text = forms.render(report, "text", verbose=True)
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    return next((line[1] for line in lines if line[:1] == ["steps"]), None)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"window": [{**WINDOW, "framework": GLOBAL}], "steps_skipped": 1},
         "optimizer steps (AdamW.step), window 10-12 = transformers global_step"),
        ({"clock": "explicit"}, "fp8verify.step(), window 10-12"),
        ({"steps_skipped": 2}, "(AdamW.step), window 10-12; 2 steps skipped by"),
        ({"leader": None}, "optimizer steps, window 10-12"),
        ({"window": [{**WINDOW, "state": "never", "reason": "x"}]}, "optimizer steps (AdamW.step)"),
        ({"window": [WINDOW, {**WINDOW, "first": 500, "last": 500, "trace": None}]},
         "optimizer steps (AdamW.step), window 10-12, window 500"),
    ],
    ids=["framework", "explicit", "skipped", "unknown", "never", "two"],
)  # fmt: skip
def test_the_text_says_what_was_counted(
    tmp_path: Path, change: dict[str, Any], line: str
) -> None:
    assert line in str(clock_of(capture(tmp_path, change)))


def test_a_capture_of_an_earlier_version_names_its_only_optimizer(
    tmp_path: Path,
) -> None:
    report = capture(
        tmp_path, {"leader": None, "optimizer_updates": {"SGD": 9, "Adam": 0}}
    )
    assert "(SGD.step)" in str(clock_of(report))


def test_the_json_has_the_numbers_apart(tmp_path: Path) -> None:
    window = {**WINDOW, "framework": GLOBAL}
    report = capture(tmp_path, {"window": [window], "optimizer_updates": {"AdamW": 28}})
    clock = json.loads(report.to_json())["ranks"][0]["clock"]
    (found,) = clock.pop("windows")
    assert found == {
        "first": 10, "last": 12, "state": "complete", "framework": "transformers",
        "counter": "global_step", "framework_first": 109, "framework_last": 111,
    }  # fmt: skip
    assert clock == {
        "source": "optimizer", "counts": "AdamW.step", "updates": {"AdamW": 28}, "steps_seen": 14,
        "steps_skipped": 0,
    }  # fmt: skip


def test_a_trace_alone_has_no_clock(build: TraceBuilder) -> None:
    report = build.step(1).linear(64, 64, 64, fp8=True).report()
    assert report.ranks[0].clock is None
    assert clock_of(report) is None


def test_clocks_that_differ_are_told_of_each_rank(tmp_path: Path) -> None:
    report = capture(tmp_path, {}, {}, {"steps_skipped": 1})

    text = forms.render(report, "text", verbose=True)
    assert "ranks 0-1: optimizer steps (AdamW.step), window 10-12" in text
    assert "rank 2: optimizer steps (AdamW.step), window 10-12; 1 step skipped" in text


def test_remarks_of_the_agents_are_passed_on_once(tmp_path: Path) -> None:
    slow, own = "step 1 includes set-up", "the layers could not be named: x"

    report = capture(
        tmp_path, {"notes": [slow]}, {"notes": [slow]}, {"notes": [slow, own]}
    )

    assert report.notes == (slow, f"rank 2: {own}")


def test_remarks_are_passed_on_where_there_is_no_trace(tmp_path: Path) -> None:
    never = {**WINDOW, "state": "never", "reason": "the run ended", "trace": None}
    notes = ["stopped observing after step 3: KeyError: 'x'"]
    write_meta(tmp_path, **META, window=[never], notes=notes)

    assert "note     stopped observing after step 3" in forms.render(
        inspect(tmp_path), "text"
    )

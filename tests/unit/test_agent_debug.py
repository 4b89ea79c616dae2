"""The debug log of the agent, and how an error is told without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.agent import debug as debug_room
from fp8verify.agent.debug import DebugLog, describe
from fp8verify.agent.windows.plan import Plan
from fp8verify.capture.files import boot_errors


def opened(folder: Path, *, wanted: bool = True) -> DebugLog:
    log = DebugLog()
    log.open({"capture": str(folder), "debug": wanted})
    return log


def test_nothing_is_written_unless_it_is_wanted(tmp_path: Path) -> None:
    log = opened(tmp_path, wanted=False)
    log.event("prepare")
    log.error("prepare")

    assert not list(tmp_path.iterdir())


def test_events_and_tracebacks_are_written(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.event("stop window 1")
    try:
        raise ValueError("so\udce9")
    except ValueError:
        log.error("prepare")

    text = (tmp_path / log.name).read_text()
    assert "MainThread: stop window 1\n" in text
    assert "prepare failed\nTraceback (most recent call last):" in text
    assert "ValueError: so" in text


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug_room, "MAX_BYTES", 1000)
    log = opened(tmp_path)
    for _ in range(1000):
        log.event("x" * 100)

    text = (tmp_path / log.name).read_text()
    assert len(text) < 1100
    assert text.count("no more is written: the log is full") == 1


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    opened(tmp_path / "gone").event("prepare")


def test_an_error_is_told_with_the_line_of_the_agent() -> None:
    with pytest.raises(ValueError, match="too many values") as caught:
        Plan([(1, 2, 3)])

    told = describe(caught.value)
    assert told.startswith("ValueError: too many values to unpack")
    assert "(windows/plan.py:" in told


def test_an_error_outside_of_the_agent_is_told_as_such() -> None:
    assert describe(KeyError("x")) == "KeyError: 'x' (outside of fp8verify)"


TRACEBACK = """Traceback (most recent call last):
  File "{boot}/sitecustomize.py", line 72, in exec_module
    _load_agent().arm(config)
  File "{archive}/_fp8verify_agent/steps/hooks.py", line 11, in <module>
    from torch.optim.optimizer import (
  File "/site/torch/__init__.py", line 5, in __getattr__
ImportError: cannot import name 'x'
"""


@pytest.mark.parametrize("debug", [False, True])
def test_an_agent_that_cannot_start_says_where(tmp_path: Path, debug: bool) -> None:
    boot, capture = tmp_path / "boot", tmp_path / "capture"
    boot.mkdir()
    capture.mkdir()
    assert boot_errors(boot, capture) == ()
    text = TRACEBACK.format(boot=boot, archive=boot / "agent.zip")
    (boot / "errors.txt").write_text(text)

    (note,) = boot_errors(boot, capture if debug else None)

    where = "the agent could not start: ImportError: cannot import name 'x' (steps/hooks.py:11)"
    assert note == f"{where}; run --debug keeps the traceback"
    kept = [path.read_text() for path in capture.iterdir()]
    assert kept == ([text] if debug else [])

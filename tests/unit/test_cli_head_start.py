"""A plain `run` starts before click is imported, and means to it what it means to click."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.cli.group import cli
from fp8verify.cli.head_start import run_plain
from fp8verify.errors import Fp8VerifyError

PLAIN = [
    "--steps 10-12 train.py",
    "--steps=10-12,20 train.py --steps 1 -- x",
    "--steps 3 -m pkg.train --lr 1",
    "-m --steps 3 pkg.train",
    "--steps 3 --ranks all --trace-dir out --job j -- torchrun --nproc-per-node 2 train.py",
    "--steps 3 --layers --no-log --no-shapes train.py --format json",
    "--steps 3 --format json -o report.json --strict --exit-zero -v train.py",
    "--steps 3 --min-share 50% --tolerance=0.1 --save-baseline base.json train.py",
    "--steps 1 --steps 4 train.py",
]
LEFT_TO_CLICK = [
    "",
    "--steps 3",
    "train.py",
    "--help",
    "--steps 3 --dry-run train.py",
    "--step 3 train.py",
    "--steps --layers train.py",
    "--steps ten train.py",
    "--steps 3 --after-seconds 5 train.py",
    "--steps 3 --layers=yes train.py",
    "--steps 3 --format pdf train.py",
    "--steps 3 -o . train.py",
    "--steps 3 -oreport.txt train.py",
    "--steps 3 --min-share 700 train.py",
    "--steps 3 --baseline none.json train.py",
    "--steps 3 --unknown train.py",
]
WORDS = sorted({word for line in PLAIN + LEFT_TO_CLICK for word in line.split()})


class _RunError(Exception):
    """Stands for the training."""


@pytest.fixture(name="calls")
def _calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def note(*call: Any) -> None:
        calls.append(call)
        raise _RunError

    monkeypatch.setattr("fp8verify.runner.parent.run_training", note)
    return calls


def _started(calls: list[Any], words: Sequence[str], *, by_click: bool) -> Any:
    """Return the command and settings that a command line runs, None if it runs nothing."""
    calls.clear()
    with suppress(_RunError, click.ClickException, click.exceptions.Exit, Fp8VerifyError):
        if by_click:
            cli.main(["run", *words], standalone_mode=False)
        else:
            run_plain(["run", *words])
    return calls[0] if calls else None


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_runs_what_click_would_run(line: str, calls: list[Any]) -> None:
    started = _started(calls, line.split(), by_click=False)
    assert started is not None
    assert started == _started(calls, line.split(), by_click=True)


@pytest.mark.parametrize("line", LEFT_TO_CLICK)
def test_anything_else_is_left_to_click(line: str, calls: list[Any]) -> None:
    assert _started(calls, line.split(), by_click=False) is None


@given(words=st.lists(st.sampled_from(WORDS), max_size=7))
def test_no_line_runs_other_than_by_click(words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        calls: list[Any] = []

        def note(*call: Any) -> None:
            calls.append(call)
            raise _RunError

        monkeypatch.setattr("fp8verify.runner.parent.run_training", note)
        started = _started(calls, words, by_click=False)
        assert started is None or started == _started(calls, words, by_click=True)


def test_other_commands_are_left_alone(calls: list[Any]) -> None:
    assert run_plain(["inspect", "--steps", "3", "train.py"]) is None
    assert run_plain([]) is None
    assert calls == []


def test_the_script_does_not_wait_for_click(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    python = [sys.executable, "-X", "importtime", "-c", "from fp8verify.cli import main; main()"]
    done = subprocess.run(
        [*python, "run", "--steps", "3", "--no-log", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    # The child inherits stderr but not -X: these are the imports of the parent, in the order in
    # which they were complete. That of rank_logs follows the training.
    modules = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    before = set(modules[: modules.index("fp8verify.runner.rank_logs")])
    assert "fp8verify.runner.parent" in before
    assert not {"click", "dataclasses", "shutil", "tempfile", "inspect", "msgspec"} & before
    assert "click" in modules

"""What a window costs, counted: searches among all objects, and walks over the modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attached import SCRIPTS, Run, attach, execute
from tests.shared_torch import FORKS_RUN, python_of_our_commands, python_with_torch

pytestmark = pytest.mark.train
COUNTED = SCRIPTS / "counted_searches.py"


def counts(run: Run) -> list[tuple[int, ...]]:
    assert run.code == 0, run.stderr
    return [tuple(map(int, line.split())) for line in run.stdout.splitlines()[-4:]]


def test_a_watch_from_outside_never_searches_and_walks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in FORKS_RUN.items():
        monkeypatch.setenv(name, value)
    command = [
        python_of_our_commands(),
        "-m",
        "fp8verify",
        "run",
        "--every",
        10,
        "--metrics",
        "fp8.jsonl",
    ]
    options = ["--trace-dir", tmp_path / "cap", "-o", tmp_path / "report.txt"]
    launch = [python_with_torch(), COUNTED, 10]
    run = execute(*command, *options, "--", *launch, cwd=tmp_path)

    searches = counts(run._replace(code=0))
    assert [searched for searched, _ in searches] == [0, 0, 0, 0]
    assert [walks for _, walks in searches[2:]] == [0, 0]
    assert len((tmp_path / "fp8.jsonl").read_text().splitlines()) == 4


def test_windows_by_their_steps_never_search_and_walk_once(tmp_path: Path) -> None:
    attached = attach(tmp_path, "5-6,15-16,25-26,35-36", COUNTED, 10)

    assert attached.states == ["complete"] * 4
    first, *later = counts(attached.run)
    assert first[0] == 0
    assert later == [(0, 0), (0, 0), (0, 0)]

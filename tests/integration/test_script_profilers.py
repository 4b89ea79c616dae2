"""A run whose script profiles itself, as KempnerForge and torchtitan do, is judged by its trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attached import SCRIPTS, attach


@pytest.mark.train
@pytest.mark.parametrize("window", ["6-8", "5-7", "7"])
def test_kempnerforge_in_the_window(tmp_path: Path, window: str) -> None:
    config = tmp_path / "debug.toml"
    config.write_text(
        '[profiling]\nenable = true\nstart_step = 5\nend_step = 8\ntrace_dir = "profiler_traces"\n'
    )

    attached = attach(tmp_path, window, SCRIPTS / "kempnerforge_profiling.py", config)

    (found,) = attached.meta().windows
    assert (found.profiler, found.state, found.first, found.last) == ("script", "complete", 6, 8)
    (theirs,) = (tmp_path / "profiler_traces").iterdir()
    assert (attached.capture / str(found.trace)).read_bytes() == theirs.read_bytes()


@pytest.mark.train
def test_kempnerforge_that_ends_before_the_window_does(tmp_path: Path) -> None:
    config = tmp_path / "debug.toml"
    config.write_text('[profiling]\nstart_step = 5\nend_step = 8\ntrace_dir = "t"\n')

    attached = attach(tmp_path, "8-10", SCRIPTS / "kempnerforge_profiling.py", config)

    ours, theirs = attached.meta().windows
    assert (ours.profiler, ours.state, ours.first, ours.last) == ("fp8verify", "complete", 11, 13)
    assert (theirs.profiler, theirs.first, theirs.last) == ("script", 6, 8)


@pytest.mark.train
@pytest.mark.parametrize("done", [0, 30])
def test_torchtitan_round_after_round(tmp_path: Path, done: int) -> None:
    folder = tmp_path / "traces"

    attached = attach(tmp_path, "6", SCRIPTS / "torchtitan_profiling.py", folder, done)

    (found,) = attached.meta().windows
    assert (found.profiler, found.first, found.last) == ("script", 6, 6)
    assert len(list(folder.iterdir())) == 2
    theirs = folder / f"iteration_{done + 6}" / "rank0_trace.json"
    assert (attached.capture / str(found.trace)).read_bytes() == theirs.read_bytes()

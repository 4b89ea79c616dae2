"""Jobs attached to by environment variables alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fp8verify as package
from fp8verify.capture.files import find_metas, read_meta
from tests.attached import ROOT, SCRIPTS
from tests.command_line import fp8verify
from tests.shared_torch import python_with_torch
from tests.shown import run

RAY_LIKE = '''"""Start workers as Ray does: own processes, with the environment of the driver."""

import os, subprocess, sys

ranks = sys.argv[1:]
command = ["{python}", "{loop}", "--steps", "4"]
workers = [subprocess.Popen(command, env={{**os.environ, "RANK": r, "WORLD_SIZE": str(len(ranks))}})
           for r in ranks]
sys.exit(max(worker.wait() for worker in workers))
'''


@pytest.mark.train
def test_workers_are_attached_by_environment_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a capture"
    driver = tmp_path / "driver.py"
    driver.write_text(
        RAY_LIKE.format(python=python_with_torch(), loop=SCRIPTS / "loop.py")
    )

    done = run(
        f'eval "$(fp8verify env --steps 2-3 --ranks all --trace-dir "{folder}")"\n'
        f"{sys.executable} {driver} 0 1\n",
        tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 8
    metas = [read_meta(path) for path in find_metas(folder)]
    assert [(meta.rank, meta.windows[0].state) for meta in metas] == [
        (0, "complete"),
        (1, "complete"),
    ]
    report = package.inspect(folder)
    assert [rank.rank for rank in report.ranks] == [0, 1]


def test_a_job_that_was_not_reached_is_told(tmp_path: Path) -> None:
    assert (
        fp8verify("env", "--steps", "2", "--trace-dir", "c", cwd=tmp_path).returncode
        == 0
    )

    done = fp8verify("inspect", "c", cwd=tmp_path)

    assert done.returncode == 3
    assert "PYTHONPATH did not reach it" in " ".join(done.stdout.split())


@pytest.mark.train
def test_an_agent_that_cannot_start_is_told(tmp_path: Path) -> None:
    assert (
        fp8verify("env", "--steps", "2", "--trace-dir", "c", cwd=tmp_path).returncode
        == 0
    )
    (boot,) = tmp_path.glob("c/.boot-*")
    Path(boot, "config.json").write_text("{}")
    environment = {**os.environ, "PYTHONPATH": f"{boot}:{ROOT}"}
    subprocess.run(
        [python_with_torch(), SCRIPTS / "loop.py", "--steps", "1"],
        env=environment,
        check=True,
        capture_output=True,
    )

    done = fp8verify("inspect", "c", cwd=tmp_path)

    assert "the agent could not start: KeyError" in " ".join(done.stdout.split())


@pytest.mark.parametrize(("before", "after"), [("", ""), ("/old", ":/old")])
def test_a_shell_puts_the_folder_in_front(
    tmp_path: Path, before: str, after: str
) -> None:
    line = fp8verify("env", "--steps", "2", "--trace-dir", "it's", cwd=tmp_path).stdout
    script = f'PYTHONPATH={before}\n{line}\necho "$PYTHONPATH"'
    said = subprocess.check_output(["sh", "-ec", script], text=True)
    (boot,) = (tmp_path / "it's").glob(".boot-*")
    assert said == f"{boot}{after}\n"

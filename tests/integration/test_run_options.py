"""Options of `fp8verify run`, before the script and after it."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.command_line import fp8verify
from tests.shared_torch import FORKS_RUN, python_with_torch

SCRIPT = "import json, sys\nprint('ran with', json.dumps(sys.argv[1:]))\n"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, line: str, **environment: str) -> CompletedProcess[str]:
    forked = {**FORKS_RUN, **environment}
    return fp8verify("run", *line.split(), cwd=folder, **forked)


def seen_by_the_script(done: CompletedProcess[str]) -> list[str]:
    found: list[str] = json.loads(done.stdout.removeprefix("ran with "))
    return found


@pytest.mark.parametrize(
    ("line", "seen", "first_step"),
    [
        ("train.py --lr 3 --steps 10-12", ["--lr", "3"], 10),
        ("train.py --steps 3-4 -- --steps 9", ["--steps", "9"], 3),
        ("-m package --steps 10-12", [], 10),
        ("train.py --steps=10-12,20 x", ["x"], 10),
        ("python train.py --lr 3 --steps 10-12", ["--lr", "3"], 10),
    ],
)
def test_a_window_after_the_script_is_ours(
    line: str, seen: list[str], first_step: int, folder: Path
) -> None:
    done = run(folder, line)

    assert done.returncode == 3, done.stderr  # nothing trains here
    assert seen_by_the_script(done) == seen
    told, report = done.stderr.split("\n", 1)
    assert "INCONCLUSIVE" in report
    assert told.startswith("fp8verify: takes --steps")
    assert f"{first_step}-" in told
    # Nothing was recorded, so the folder that nobody named is gone.
    assert not list(folder.glob("fp8verify-capture-*"))


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("train.py --steps 200", ["--steps", "200"]),
        ("train.py -- --steps 10-12", ["--steps", "10-12"]),
        ("-- train.py --steps 10-12", ["--steps", "10-12"]),
        ("train.py --layers --min-share 0.9", ["--layers", "--min-share", "0.9"]),
        ("--steps 10-12 train.py --steps 200 -- x", ["--steps", "200", "x"]),
        ("-- train.py -q -- x -- y", ["-q", "--", "x", "--", "y"]),
    ],
)
def test_everything_else_is_the_script_s(
    line: str, seen: list[str], folder: Path
) -> None:
    done = run(folder, line)
    assert seen_by_the_script(done) == seen
    assert "takes" not in done.stderr


def test_options_of_ours_behind_the_script_are_named_once(folder: Path) -> None:
    done = run(folder, "train.py --name=a -o b --lr 3 -o c -- -q")

    assert seen_by_the_script(done) == [
        "--name=a",
        "-o",
        "b",
        "--lr",
        "3",
        "-o",
        "c",
        "-q",
    ]
    (line,) = (
        line for line in done.stderr.splitlines() if "left to the script" in line
    )
    assert line.endswith(
        "left to the script: --name, -o (options of fp8verify come before it)"
    )


@pytest.mark.parametrize(
    ("end", "code", "said", "fix"),
    [
        (
            "raise ValueError('no data')",
            1,
            "1 after step 2, before its window: ValueError: no",
            "Fix the run's own error first",
        ),
        (
            "os.kill(os.getpid(), 15)",
            -15,
            "by SIGTERM (exit code 143) at or after step 1, before",
            "It was ended from outside, and shows no error of its own: choose earlier",
        ),
        (
            "print('ValueError: of a worker'); sys.exit(137)",
            137,
            "exit code 137 after step 2, before its window",
            "out-of-memory killer",
        ),
    ],
)
def test_a_run_that_fails_before_its_window_is_told_its_own_error(
    folder: Path, end: str, code: int, said: str, fix: str
) -> None:
    pytest.importorskip("torch", reason="needs torch, from the train extra")
    step = "    sum(p.sum() for p in model.parameters()).backward(); optimizer.step()"
    (folder / "train.py").write_text(
        "import os, sys, torch\nmodel = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"for _ in range(2):\n{step}\n{end}\n"
    )
    python = str(python_with_torch())
    done = run(folder, "--steps 10-12 train.py", FP8VERIFY_PYTHON=python)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert fix in " ".join(done.stderr.split())


_WATCH_CACHE = """
import os, sys
def heard(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and CACHE in str(arguments[:1]):
        os.write(2, b"the cache was read\\n")
sys.addaudithook(heard)
"""


@pytest.mark.parametrize("reads", [False, True])
def test_a_run_without_kernels_of_triton_reads_no_cache(
    folder: Path, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the runner nor the script does; what listens in both would hear it."""
    cache = folder / "cache_of_triton"
    (cache / "HASH").mkdir(parents=True)
    (cache / "HASH" / "kernel.ptx").write_text("wgmma")
    watch = _WATCH_CACHE.replace("CACHE", repr(cache.name), 1)
    (folder / "sitecustomize.py").write_text(watch)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    look = "import os; os.listdir(os.environ['TRITON_CACHE_DIR'])" if reads else ""
    (folder / "train.py").write_text(f"{look}\nprint('trained')\n")
    done = run(folder, "train.py")
    assert "trained" in done.stdout
    assert ("the cache was read" in done.stderr) is reads


@pytest.mark.parametrize("end", ["", "\n"], ids=["amid a line", "at its end"])
def test_the_report_begins_a_line_of_its_own(folder: Path, end: str) -> None:
    (folder / "train.py").write_text(f"import sys\nsys.stderr.write({f'bar{end}'!r})\n")

    assert run(folder, "train.py").stderr.startswith("bar\nINCONCLUSIVE")
    assert run(folder, "-o report.txt train.py").stderr == f"bar{end}"


def test_an_option_of_ours_that_the_script_refuses_is_named(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args()\n"
    )
    done = run(folder, "train.py --min-share 0.9")
    assert done.returncode == 2
    said = "left to the script: --min-share (options of fp8verify come before it)"
    assert said in " ".join(done.stderr.split())

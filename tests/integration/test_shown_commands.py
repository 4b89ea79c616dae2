"""Commands of the documentation, run as its pages show them: `tests/shown.py`."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.docs.notebooks import NOTEBOOKS
from scripts.docs.notebooks import shown as outputs
from tests.captures import ROOT as TRACES
from tests.fake_ncu import install, log_of
from tests.other_tools import record, write_nsys, write_rocprof_csv
from tests.shared_torch import FORKS_RUN, python_with_torch
from tests.shown import ROOT, Shown, put, without_pip

LOOP = ROOT / "tests" / "integration" / "scripts" / "numerics.py"
_EXECUTE = (
    "from nbclient.cli import main; main()"  # what the program jupyter-execute does
)
STAND_IN = f"#!{sys.executable}\nprint('trained')\n"


def capture(folder: Path, **names: str) -> None:
    """Put captures that ship with the project where the commands expect their own."""
    for name, source in names.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(TRACES / source)


def test_a_clone_is_installed_and_gives_verdicts(shown: Shown, tmp_path: Path) -> None:
    """Pip's settings keep it from the network and from this environment; the rest is literal."""
    pytest.importorskip(
        "hatchling", reason="hatchling is not installed (the test extra)"
    )
    for name in ("fp8verify", "scripts", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    capture(
        tmp_path,
        traces=".",
        **{
            "YOUR_TRACE.json.gz": "fp8_compiled/rank0.json.gz",
            "train.log": "fp8_compiled/log.txt",
        },
    )
    installed = tmp_path / "installed"
    put(tmp_path, "python3", without_pip(sys.executable))
    put(tmp_path, "pip", f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n')
    put(tmp_path, "fp8verify", f'#!/bin/sh\nexec "{installed}/bin/fp8verify" "$@"\n')
    settings = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    says = {
        "-m venv": "",
        "pip": "",
        "auto_filter": "CONTRADICTED ",
        "YOUR_TRACE": "ACTIVE ",
    }
    for command in shown.commands:
        environment = {
            "PIP_TARGET": str(installed),
            **settings,
            "PYTHONPATH": str(installed),
        }
        if command.startswith("pip"):
            environment["PYTHONPATH"] = ""
        done = shown.run(command, **environment)
        (said,) = (
            words for name, words in says.items() if name in command.split("#")[0]
        )
        assert done.returncode == (1 if said == "CONTRADICTED " else 0), done.stderr
        assert re.search(rf"^{said}", done.stdout, re.MULTILINE), done.stdout
    assert (installed / "fp8verify" / "cli").is_dir()


@pytest.mark.train
def test_numerics_are_measured_and_read(shown: Shown, tmp_path: Path) -> None:
    if find_spec("torchao") is None:
        pytest.skip("needs torchao, from the train extra")
    source = LOOP.read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(source.replace("default=6)", "default=16)"))
    for command in shown.commands:
        python = str(python_with_torch())
        done = shown.run(command, FP8VERIFY_PYTHON=python, **FORKS_RUN)
        assert done.returncode == 3, done.stderr  # no GPU kernels
    assert len(list(tmp_path.glob("fp8verify-capture-*/rank0.numerics.json"))) == 2


def test_two_and_many_runs(shown: Shown, tmp_path: Path) -> None:
    bf16 = dict.fromkeys(("bf16", "bf16-capture"), "bf16_width4096")
    fp8 = dict.fromkeys(("fp8", "fp8-capture", "sweep/a"), "fp8_width4096")
    capture(tmp_path, **bf16, **fp8)
    for command in shown.commands:
        done = shown.run(command)
        assert done.returncode == 0, done.stderr
        if "-o" not in command:
            assert "1.34x (95" in " ".join(done.stdout.split())
    for page in ("compare.html", "sweep.html"):
        assert (
            (tmp_path / page).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        )


def test_a_baseline_is_saved_and_kept_to(shown: Shown, tmp_path: Path) -> None:
    capture(tmp_path, capture="fp8_compiled")
    for command in shown.commands:
        done = shown.run(command)
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "fp8-baseline.json").read_text())
    assert done.stdout.startswith("::notice title=FP8 ACTIVE::")


def test_a_page_and_a_labeled_trace(shown: Shown, tmp_path: Path) -> None:
    capture(
        tmp_path,
        capture="fp8_compiled",
        **{"trace.json.gz": "fp8_compiled/rank0.json.gz"},
    )
    for command in shown.commands:
        assert shown.run(command).returncode == 0
    assert (tmp_path / "fp8.html").stat().st_size
    assert (tmp_path / "annotated.json.gz").stat().st_size


def test_the_doctor(shown: Shown, tmp_path: Path) -> None:
    capture(tmp_path, **{"accelerate.yaml": "../examples/accelerate/torchao.yaml"})
    for name in ("7b.toml", "configs/7b.toml"):
        capture(tmp_path, **{name: "../examples/kempnerforge/7b.toml"})
    put(tmp_path, "torchrun", STAND_IN)
    (tmp_path / "train.py").write_text(STAND_IN)
    for command in shown.commands:
        done = shown.run(command)
        assert done.returncode in (0, 1), done.stderr  # 1 where there is no GPU
        assert "requests FP8" in done.stdout or "7b" not in command


def test_completion_is_set_up(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    for command in shown.commands:
        done = shown.run(command)
        assert (done.returncode, done.stderr) == (0, "")
    (fish,) = (tmp_path / ".config").rglob("fp8verify.fish")
    assert "complete" in fish.read_text()


def test_the_hardware_is_asked(shown: Shown, tmp_path: Path) -> None:
    """The counters are those of a stand-in for Nsight Compute; names.md says what a GPU counted."""
    flops = 2 * 4096 * 1024 * 2048
    log = log_of(("nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_TNT", flops, 0, ""))
    install(tmp_path, log)
    (tmp_path / "train.py").write_text("print('step 1 loss 2.5')\n")
    (command,) = shown.commands
    done = shown.run(command)
    assert done.returncode == 0, done.stderr
    assert "agree with the class of 1 of 1 GEMM kernels" in done.stdout


def test_files_of_other_recorders_are_read(shown: Shown, tmp_path: Path) -> None:
    recorded = record(TRACES / "fp8_compiled" / "rank0.json.gz")
    write_nsys(recorded, tmp_path)
    (found,) = tmp_path.glob("*.sqlite")
    found.rename(tmp_path / "run.sqlite")
    assert sqlite3.connect(tmp_path / "run.sqlite").execute("SELECT 1").fetchone()
    (tmp_path / "HOST").mkdir()
    write_rocprof_csv(recorded, tmp_path / "HOST")
    assert len(shown.commands) == 2
    for command in shown.commands:
        done = shown.run(command)
        assert done.returncode == 0, done.stderr
        assert "135 of 135 linear-layer GEMMs ran in FP8" in done.stdout


def test_the_notebook_runs_as_a_program_and_says_what_it_shows(
    shown: Shown, tmp_path: Path
) -> None:
    for package in ("nbclient", "pandas", "ipykernel"):
        pytest.importorskip(package, reason="needs the docs and pandas extras")
    import nbformat

    (notebook,) = NOTEBOOKS
    executed = tmp_path / "executed.ipynb"
    main = f'exec "{sys.executable}" -c \'{_EXECUTE}\' --output "{executed}" "$@"'
    put(tmp_path, "jupyter", f"#!/bin/sh\nshift\n{main}\n")
    capture(tmp_path, traces=".", examples="../examples")
    (command,) = shown.commands
    done = shown.run(command, IPYTHONDIR=str(tmp_path / "ipython"))
    assert done.returncode == 0, done.stderr
    new = outputs(nbformat.read(executed, as_version=4))
    kept = outputs(nbformat.read(notebook, as_version=4))
    assert len(new) == len(kept)
    for fresh, committed in zip(new, kept, strict=True):
        # Versions of pandas lay tables out differently: the words and figures are the same.
        assert re.findall(r"[\w.]+", fresh) == re.findall(r"[\w.]+", committed)
    assert kept[0].startswith("ACTIVE")

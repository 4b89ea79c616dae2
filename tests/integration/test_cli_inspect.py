"""`fp8verify inspect` as a user meets it: a subprocess, its output and its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import ROOT
from tests.command_line import PATIENCE_S, fp8verify
from tests.shown import run


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("fp8_compiled", 0, "ACTIVE  "),
        ("bf16_filter_rejects_all", 1, "CONTRADICTED  "),
        ("bf16_compiled --exit-zero", 0, "INACTIVE  "),
        ("fp8_rowwise_gw_hp --min-share 90%", 1, "PARTIAL  "),
        ("fp8_te_modules_block --require-format fp8_block", 0, "ACTIVE  "),
        (
            "fp8_te_modules_block --require-format nvfp4",
            1,
            "[required-format] nvfp4 was required",
        ),
    ],
)
def test_the_verdict_is_printed_and_options_change_the_exit_code(
    line: str, code: int, says: str
) -> None:
    done = fp8verify("inspect", *line.split(), cwd=ROOT)
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"exit {code}")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    assert (
        run(f"fp8verify inspect {ROOT / 'fp8_compiled'} -v | head -1", tmp_path).stderr
        == ""
    )


def test_output_that_cannot_hold_a_sign_replaces_it() -> None:
    done = fp8verify("inspect", ROOT / "fp8_compiled", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "ACTIVE" in done.stdout


def _at_the_end(say: str, *args: str) -> str:
    """Return what a process of ours prints when a command has ended."""
    code = (
        "import sys, atexit; sys.argv = ['fp8verify', *sys.argv[1:]]\n"
        f"def say():\n{say}\n"
        "atexit.register(say)\n"
        "from fp8verify.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stderr.strip()


@pytest.mark.parametrize("args", [("--help",), ("inspect", str(ROOT / "fp8_compiled"))])
def test_nothing_heavy_is_imported(args: tuple[str, ...]) -> None:
    heavy = "('torch', 'pandas', 'hta', 'numpy', 'torchao', 'dask', 'plotly')"
    say = f"  print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    assert _at_the_end(say, *args) == "[]"


def test_what_a_capture_does_not_need_is_not_imported() -> None:
    say = (
        "  waits = 'csv importlib.resources shutil sqlite3 subprocess tempfile'.split()\n"
        "  print([name for name in waits if name in sys.modules], file=sys.stderr)"
    )
    assert _at_the_end(say, "inspect", str(ROOT / "fp8_compiled")) == "[]"


def test_both_ways_in_are_the_same() -> None:
    done = fp8verify("--version")
    assert done.returncode == 0
    script = Path(sys.executable).with_name("fp8verify")
    if not script.exists():
        pytest.skip("the package is not installed beside this Python")
    same = subprocess.run(
        [script, "--version"], capture_output=True, text=True, check=False
    )
    assert same.stdout == done.stdout

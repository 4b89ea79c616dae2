"""What a user meets first: help, four lines, widths, colours, files by their suffix, completion."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fp8verify.cli.group import COMMANDS
from tests.captures import ROOT
from tests.command_line import fp8verify
from tests.shown import run

CAPTURE = ROOT / "fp8_compiled"


def test_every_command_has_help_with_an_example() -> None:
    listed = " ".join(fp8verify("--help").stdout.split())
    for command, text in COMMANDS.items():
        done = fp8verify(command, "--help")
        assert done.returncode == 0
        assert re.search(rf"^ +.*fp8verify {command} ", done.stdout, re.MULTILINE)
        assert text in listed


def test_quiet_is_a_few_lines_with_the_command_for_the_rest() -> None:
    done = fp8verify("inspect", CAPTURE, "-q")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ACTIVE", "135", "speed", "exit"]
    assert lines[1].startswith("135 of 135 linear-layer GEMMs")
    assert lines[-1] == f"exit 0 · whole report: fp8verify inspect {CAPTURE}"


def test_quiet_names_the_log_too_and_no_command_for_what_came_through_a_pipe(
    tmp_path: Path,
) -> None:
    trace, log = CAPTURE / "rank0.json.gz", CAPTURE / "log.txt"
    done = fp8verify("inspect", trace, "--log", log, "-q")
    assert (
        done.stdout.splitlines()[-1]
        == f"exit 0 · whole report: fp8verify inspect {trace} --log {log}"
    )
    lines = run(f"fp8verify inspect - -q < {trace}", tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ACTIVE", "135", "speed", "exit"]


def test_quiet_says_why_a_run_that_is_active_fails(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    fp8verify("inspect", CAPTURE, "-q", "--save-baseline", baseline)
    done = fp8verify("inspect", ROOT / "fp8_te_delayed", "-q", "--baseline", baseline)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ACTIVE,", "90", "error", "exit"]
    assert lines[0].startswith("ACTIVE, with 1 error  fp8_te_delayed")
    assert "[baseline-not-comparable] the baseline" in lines[2]
    assert lines[3].startswith(
        "exit 1: baseline-not-comparable is an error · whole report: fp8verify inspect"
    )


def test_quiet_with_a_file_names_the_file_that_has_the_whole_report(
    tmp_path: Path,
) -> None:
    out = tmp_path / "fp8.html"
    done = fp8verify("inspect", CAPTURE, "-q", "-o", out)
    assert done.stdout.splitlines()[-1] == f"exit 0 · whole report: {out}"
    assert out.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("name", "begin"),
    [("a.html", "<!DOCTYPE html>"), ("a.JSON", "{"), ("a.md", "## "), ("a.csv", "rank,"),
     ("a.xml", "<?xml"), ("a.txt", "ACTIVE  "), ("a", "ACTIVE  ")],
)  # fmt: skip
def test_a_file_gets_the_form_of_its_suffix(
    name: str, begin: str, tmp_path: Path
) -> None:
    done = fp8verify("inspect", CAPTURE, "-o", tmp_path / name)
    assert done.returncode == 0
    assert (tmp_path / name).read_text().startswith(begin)


def test_a_form_that_is_asked_for_goes_before_the_suffix(tmp_path: Path) -> None:
    fp8verify("inspect", CAPTURE, "-o", tmp_path / "a.html", "--format", "json")
    assert json.loads((tmp_path / "a.html").read_text())["verdict"] == "ACTIVE"


@pytest.mark.parametrize(
    ("columns", "widest"), [("", 80), ("90", 90), ("100", 100), ("none", 80)]
)
def test_a_pipe_is_as_wide_as_it_is_told(columns: str, widest: int) -> None:
    done = fp8verify("inspect", CAPTURE, COLUMNS=columns)
    assert widest - 10 < max(map(len, done.stdout.splitlines())) <= widest


def test_colours_reach_a_pipe_only_where_they_are_forced(tmp_path: Path) -> None:
    assert "\x1b[" not in fp8verify("inspect", CAPTURE, FORCE_COLOR="").stdout
    assert "\x1b[" in fp8verify("inspect", CAPTURE, FORCE_COLOR="1").stdout
    fp8verify("inspect", CAPTURE, "-o", tmp_path / "a.txt", FORCE_COLOR="1")
    assert "\x1b[" not in (tmp_path / "a.txt").read_text()


def _complete(words: str) -> list[str]:
    done = fp8verify(
        _FP8VERIFY_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fp8verify comp", ["plain,compare"]), ("fp8verify inspect tra", ["file,tra"]),
        ("fp8verify run trai", ["file,trai"]), ("fp8verify table ca", ["file,ca"]),
        ("fp8verify compare a b", ["file,b"]), ("fp8verify inspect x --log lo", ["file,lo"]),
        ("fp8verify compare --min", ["plain,--min-speedup"]),
        ("fp8verify inspect x --format h", ["plain,html"]),
        ("fp8verify inspect --base", ["plain,--baseline"]),
    ],
)  # fmt: skip
def test_a_shell_completes_commands_options_and_files(
    words: str, expected: list[str]
) -> None:
    assert _complete(words) == expected

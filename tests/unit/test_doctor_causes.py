"""A training that failed with a known message is told its cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fp8verify.doctor.afterwards import failure_notes
from fp8verify.doctor.causes import causes
from fp8verify.doctor.known_failures import KNOWN_FAILURES
from tests.golden.expectations import ROOT

# The messages as they are printed, in the order of the table; ⏎ is a line's end in one of them.
MESSAGES = Path(__file__).with_name("known_failures.txt").read_text(encoding="utf-8").split("\n\n")


@pytest.mark.parametrize("row", range(len(KNOWN_FAILURES)))
def test_each_message_is_told_its_own_cause(row: int) -> None:
    assert len(MESSAGES) == len(KNOWN_FAILURES)
    for message in MESSAGES[row].splitlines():
        lines = ["step 1 | loss 2.0\n", *(f"{line}\n" for line in message.split(" ⏎ "))]
        (found,) = causes(lines)
        assert found.cause == KNOWN_FAILURES[row].cause
        assert found.line == len(lines)
        assert (found.remedy, found.source) != ("", "")


def test_running_out_of_memory_elsewhere_is_no_cause_of_fp8() -> None:
    assert (
        causes(["  File model.py, in forward\n", "torch.OutOfMemoryError: CUDA out of memory."])
        == []
    )


def test_a_cause_is_told_once() -> None:
    message = "RuntimeError: Rowwise scaling is not currently supported on your device\n"
    assert [cause.line for cause in causes([message] * 8)] == [1]


def test_only_a_run_that_failed_has_notes(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("x\nValueError: end_step must be greater than start_step\n")
    assert failure_notes(tmp_path, 0) == ()
    assert failure_notes(tmp_path / "gone", 1) == ()
    (note,) = failure_notes(tmp_path, 1)
    assert note.startswith("the training failed, log.txt line 2: KempnerForge's profiling window")
    assert note.endswith("(doctor: profiling-window)")


def test_a_check_that_a_cause_names_exists() -> None:
    package = ROOT.parent / "fp8verify" / "doctor"
    text = "".join(path.read_text() for path in package.rglob("*.py"))
    codes = set(re.findall(r'(?:code=|\(\*?\(?)"([a-z0-9-]+)"', text))
    codes |= set(re.findall(r'"((?:te|torchao)-not-installed)"', text))
    assert {row.check for row in KNOWN_FAILURES} - {""} <= codes


def test_every_code_is_explained() -> None:
    package = ROOT.parent / "fp8verify" / "doctor"
    text = "".join(path.read_text() for path in package.rglob("*.py"))
    codes = set(re.findall(r'code="([a-z0-9-]+)"', text))
    explained = (ROOT.parent / "docs" / "doctor.md").read_text()
    assert {code for code in codes if f"`{code}`" not in explained} == set()

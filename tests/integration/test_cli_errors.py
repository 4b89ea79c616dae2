"""Files that are no whole trace, and a training that died: what happened, and what to do."""

from __future__ import annotations

import errno
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fp8verify.errors import InputError
from fp8verify.trace.places import reading
from tests.command_line import fp8verify
from tests.golden.expectations import ROOT
from tests.hand_built import TraceBuilder


@pytest.fixture
def packed() -> bytes:
    return (ROOT / "fp8_compiled" / "rank0.json.gz").read_bytes()


def _said(path: Path, data: bytes) -> tuple[int, str]:
    path.write_bytes(data)
    done = fp8verify("inspect", path)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_an_empty_trace_is_told_about_the_export(tmp_path: Path) -> None:
    code, said = _said(tmp_path / "a.json", b'{"traceEvents":[]}')
    assert code == 3
    assert "INCONCLUSIVE the trace holds no events" in said
    assert "on_trace_ready" in said
    assert "PYTHONPATH" not in said


def test_a_gzip_cut_before_its_kernels_is_told_to_be_copied_again(
    tmp_path: Path, packed: bytes
) -> None:
    code, said = _said(tmp_path / "a.json.gz", packed[:20_000])
    assert code == 3
    assert "cut off before its first GPU kernel" in said
    assert "ProfilerActivity.CUDA" not in said


def test_a_gzip_cut_in_its_head_cannot_be_unpacked(tmp_path: Path, packed: bytes) -> None:
    code, said = _said(tmp_path / "a.json.gz", packed[:60])
    assert code == 2
    assert "a.json.gz cannot be unpacked: the gzip data ends early." in said


def test_a_gzip_cut_before_its_first_event_is_not_called_something_else(
    tmp_path: Path, packed: bytes
) -> None:
    code, said = _said(tmp_path / "a.json.gz", packed[:200])
    assert code == 2
    assert "a.json.gz is cut off before its first event: the gzip data ends early." in said
    assert "copy or export it again" in said


def test_a_file_that_may_not_be_read_is_told_as_that() -> None:
    with pytest.raises(InputError) as caught, reading("a.json"):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert caught.value.fact == "a.json cannot be read: Permission denied."
    assert caught.value.hint == "Give this user the right to read it."


def test_junk_that_is_called_gz_is_not_called_a_trace(tmp_path: Path) -> None:
    code, said = _said(tmp_path / "a.json.gz", b"no gzip at all " * 100)
    assert code == 2
    assert "a.json.gz is not compressed as its name says, and is not JSON." in said
    header = gzip.compress(b"")[:10]
    code, said = _said(tmp_path / "b.json.gz", header + os.urandom(2000))
    assert (code, "cannot be unpacked" in said) == (2, True)


def test_a_trace_of_which_no_event_can_be_read_is_told_as_that(tmp_path: Path) -> None:
    event = b'{"ph":"X","cat":"kernel","name":"k","ts":NaN,"dur":1}'
    code, said = _said(tmp_path / "a.json", b'{"traceEvents":[%s]}' % event)
    assert code == 3
    assert "INCONCLUSIVE no event of the trace can be read" in said
    assert "a.json has 1 of 1 events that cannot be read" in said
    assert "training step" not in said


@pytest.mark.parametrize(
    ("typed", "fact", "hint"),
    [
        ("--versio", "No such option '--versio'.", "Did you mean '--version'? fp8verify --help"),
        ("foo", "No such command 'foo'.", "fp8verify --help says what it takes."),
        ("inspect", "Missing argument 'PATH…'.", "fp8verify inspect --help says what it takes."),
        (
            "inspect --width 5 x",
            "Invalid value for '--width': 5",
            "fp8verify inspect --help says what it takes.",
        ),
        ("completion", "Missing argument", "fp8verify completion --help says what it takes."),
        (
            "run --every 2 train.py",
            "Invalid value for '--every'",
            "fp8verify run --help says what it takes.",
        ),
        ("inspect no\nsuch", "no\N{REPLACEMENT CHARACTER}such does not exist", "Give a trace"),
    ],
)
def test_a_slip_is_told_in_two_lines(typed: str, fact: str, hint: str) -> None:
    done = fp8verify(*typed.split(" "))
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert first.startswith(f"error: {fact}")
    assert second.startswith(f"hint: {hint}")


@pytest.mark.parametrize(
    "typed",
    [
        "run --steps 2-3 --trace-dir {} -- true",
        "run --steps 2-3 {}/x.py",
        "run --steps 2-3 -- {}/program",
        "env --steps 2-3 --trace-dir {}",
        "doctor -- {}/program",
        "annotate {}/rank0.json -o annotated.json",
        "annotate trace.json -o {}/annotated.json",
        "inspect {}",
    ],
)
def test_a_place_without_the_right_to_it_is_told_in_two_lines(tmp_path: Path, typed: str) -> None:
    TraceBuilder().linear(64, 32, 16, fp8=True).write(tmp_path / "trace.json")
    command = [sys.executable, "-c", _DENIED, *typed.format("/denied").split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    first, second = done.stderr.splitlines()
    assert done.returncode == 2
    assert first.startswith("error: ")
    assert "Permission denied" in first
    assert second.startswith("hint: ")


@pytest.mark.parametrize(
    "typed", ["run --steps 2-3 {}.py", "doctor -- ./{}", "env --steps 2-3 --trace-dir {}", "{}"]
)
def test_a_name_that_no_disk_takes_is_told_in_two_lines(tmp_path: Path, typed: str) -> None:
    done = fp8verify(*typed.format("a" * 300).split(), cwd=tmp_path)
    first, second = done.stderr.splitlines()
    assert done.returncode == 2
    assert first.endswith("File name too long.")
    assert second.startswith("hint: ")


def test_a_full_disk_behind_standard_output_is_told_in_two_lines() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fp8verify", "inspect", ROOT / "fp8_compiled"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr.splitlines() == [
        "error: No space left on device.",
        "hint: Make room, or write elsewhere.",
    ]
    assert done.returncode == 2


def test_a_current_folder_that_was_removed_is_told_as_that(tmp_path: Path) -> None:
    command = f"rmdir {tmp_path}/gone; exec {sys.executable} -m fp8verify run --steps 2-3 -- true"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        cwd=tmp_path / "gone",
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: The current folder was removed."


# The tests may run as root, whom no folder is closed to: the system calls are made to say so.
_DENIED = """
import errno, os

def closed(call):
    def asked(path, *args, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/denied"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return call(path, *args, **options)
    return asked

import builtins, io
for name in ("stat", "scandir", "listdir", "mkdir", "unlink", "open", "access"):
    setattr(os, name, closed(getattr(os, name)))
io.open = builtins.open = closed(io.open)
from fp8verify.cli import main
main()
"""


@pytest.mark.train
def test_a_script_that_dies_at_import_is_told_as_that(tmp_path: Path) -> None:
    script = tmp_path / "die.py"
    script.write_text("import no_such_module_anywhere\n")
    done = fp8verify("run", "--trace-dir", tmp_path / "capture", "--steps", "2-3", script)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1
    assert "INCONCLUSIVE the training ended with exit code 1 before it completed a step" in said
    assert "ModuleNotFoundError: No module named 'no_such_module_anywhere'" in said
    assert "PYTHONPATH" not in said

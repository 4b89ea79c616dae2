"""Files that are no whole trace, slips, and a training that died: what happened, and what to do."""

from __future__ import annotations

import bz2
import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import CAPTURES, ROOT
from tests.command_line import fp8verify, refused
from tests.hand_built import TraceBuilder
from tests.shown import run

PACKED = (ROOT / "fp8_compiled" / "rank0.json.gz").read_bytes()
UNREADABLE = b'{"ph":"X","cat":"kernel","name":"k","ts":NaN,"dur":1}'


EMPTY = b'{"traceEvents":[]}'


@pytest.mark.parametrize(
    ("name", "data", "code", "said"),
    [
        ("a.json", EMPTY, 3, ["The trace holds no events", "on_trace_ready"]),
        ("a.json.gz", PACKED[:20_000], 3, ["cut off before its first GPU kernel"]),
        ("a.json.gz", PACKED[:60], 2, ["before its first event: the gzip data ends early."]),
        ("a.json.gz", PACKED[:200], 2, ["is damaged before its first event", "copy or"]),
        ("a.json.gz", b"no gzip" * 99, 2, ["a.json.gz is no trace: it begins with “no gzip"]),
        ("a.json.bz2", bz2.compress(b"{}"), 2, ["in a form that is not read", "(bunzip2)"]),
        ("b.json.gz", gzip.compress(b"")[:10] + os.urandom(2000), 2, ["is damaged"]),
        ("a.json", b'{"traceEvents":[%s]}' % UNREADABLE, 3,
         ["No event of the trace can be read", "a.json has 1 of 1 events that cannot be read"]),
    ],
    ids=["empty", "before kernels", "in its head", "before events", "junk", "bzip2", "random",
         "unreadable"],
)  # fmt: skip
def test_a_damaged_file_is_described_as_it_is(
    tmp_path: Path, name: str, data: bytes, code: int, said: list[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    done = fp8verify("inspect", tmp_path / name)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code
    assert [part for part in said if part not in text] == []
    # Advice for runs that were never recorded, or that recorded too little.
    assert not re.search("PYTHONPATH|ProfilerActivity|training step", text)


@pytest.mark.parametrize(
    ("typed", "fact", "hint"),
    [
        ("--versio", "No such option '--versio'.", "Did you mean '--version'? fp8verify --help"),
        ("foo", "No such command 'foo'.", "fp8verify --help lists its options."),
        ("inspekt x", "No such command 'inspekt'.", "Did you mean 'inspect'?"),
        ("explian x", "No such command 'explian'.", "Did you mean 'explain'?"),
        (f"{ROOT}", f"No such command '{ROOT}'.", f"Did you mean `fp8verify inspect {ROOT}`?"),
        (f"inspect {ROOT}", f"{ROOT} holds {len(CAPTURES)} captures.",
         f"Inspect one, such as {ROOT}/bf16_c"),
        ("inspect", "Missing argument 'PATH…'.", "fp8verify inspect --help lists its options."),
        ("inspect x --min-shar 1", "No such option '--min-shar'.", "Did you mean '--min-share'?"),
        ("inspect --workers 0 x", "Invalid value for '--workers': 0", "fp8verify inspect --help"),
        ("inspect --min-share much x", "'much' is not a share", ""),
        ("inspect --format pdf x", "Invalid value for '--format'", ""),
        (f"inspect {ROOT}/fp8_compiled --log missing.log", "missing.log", ""),
        (f"inspect {ROOT}/fp8_compiled -o missing/report.json", "missing", ""),
        ("annotate", "Missing argument", "fp8verify annotate --help lists its options."),
        ("run --every 2 train.py", "Invalid value for '--every'", "fp8verify run --help lists"),
        ("run --steps 12-10 x.py", "12-10", ""),
        ("run --steps 10-12 missing.py", "missing.py", ""),
        ("run --steps 10-12 --ranks some x.py", "'some' does not name ranks", ""),
        ("run --stpes 3-4 x.py", "one of: '--no-shapes', '--steps',", "fp8verify run --help"),
        ("run --steps 3-4 x.ipynb", "is a notebook", ""),
        ("run --steps 3-4 --python /no/python x.py", "/no/python", "Give --python"),
        ("run --steps 3-4 --trace-dir a:b x.py", "a:b cannot be in PYTHONPATH", ""),
        ('run --steps 3-4 --trace-dir a"b x.py', "cannot hold a trace", ""),
        ("run -o no/report.txt x.py", "cannot write the report to no/report.txt", ""),
        ("run --after-seconds 9 --steps 1-2 x.py", "'1-2' is not a number of steps", ""),
        ("run --steps 3 --metrics x x.py", "--metrics needs --every", ""),
        ("run --every 100 --after-seconds 5 x.py", "--every and --after-seconds do not", ""),
        ("run --every 100 --layers x.py", "--every and --layers do not", ""),
        ("run --every 10 --window 8 x.py", "do not fit into every 10", ""),
        ("run --every 100 --steps 3,5 x.py", "names the first window alone", ""),
        ("run --every 100 --stop-on BAD x.py", "'BAD' is none of ACTIVE", ""),
        ("run --every 100 --metrics /proc/x.jsonl x.py", "cannot write metrics", ""),
        ("inspect no\nsuch", "no\N{REPLACEMENT CHARACTER}such does not exist", "Give a trace"),
        ("run --steps 2-3 " + "a" * 300 + ".py", "File name too long.", ""),
        ("doctor -- ./" + "a" * 300, "File name too long.", ""),
        ("env --steps 2-3 --trace-dir " + "a" * 300, "File name too long.", ""),
        ("env --steps 2-3 --trace-dir a:b", "a:b cannot be in PYTHONPATH", ""),
        ("env --steps 2-3", "There is no folder for the capture.", ""),
        ("a" * 300, "File name too long.", ""),
        ("prove", "no command given", "Write it after --"),
    ],
    ids=lambda text: str(text)[:40],
)  # fmt: skip
def test_a_slip_is_told_in_two_lines(
    tmp_path: Path, typed: str, fact: str, hint: str
) -> None:
    (tmp_path / "x.py").write_text("print('must not run')\n")
    (tmp_path / "x.ipynb").touch()
    found, advice = refused(fp8verify(*typed.split(" "), cwd=tmp_path))
    assert fact in found
    assert advice.startswith(hint)
    assert not list(tmp_path.glob("fp8verify-capture-*"))


@pytest.mark.parametrize(
    "typed",
    [
        "run --steps 2-3 --trace-dir {} -- true", "run --steps 2-3 {}/x.py",
        "run --steps 2-3 -- {}/program", "env --steps 2-3 --trace-dir {}", "doctor -- {}/program",
        "annotate {}/rank0.json -o annotated.json", "annotate trace.json -o {}/annotated.json",
        "inspect {}",
    ],
)  # fmt: skip
def test_a_place_without_the_right_to_it_is_told_in_two_lines(
    tmp_path: Path, typed: str
) -> None:
    TraceBuilder().linear(64, 32, 16, fp8=True).write(tmp_path / "trace.json")
    command = [sys.executable, "-c", _DENIED, *typed.format("/denied").split()]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "Permission denied" in refused(done)[0]


def test_a_full_disk_behind_standard_output_is_told_in_two_lines(
    tmp_path: Path,
) -> None:
    done = run(f"fp8verify inspect {ROOT / 'fp8_compiled'} > /dev/full", tmp_path)
    assert refused(done) == (
        "No space left on device.",
        "Make room, or write elsewhere.",
    )


def test_a_current_folder_that_was_removed_is_told_as_that(tmp_path: Path) -> None:
    ours = f"exec {sys.executable} -m fp8verify run --steps 2-3 -- true"
    done = run(f"mkdir gone; cd gone; rmdir ../gone; {ours}", tmp_path)
    assert refused(done)[0] == "The current folder was removed."


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

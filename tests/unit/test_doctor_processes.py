"""What a dry start started is ended with it, whatever it did to stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fp8verify.preflight import dry_start
from fp8verify.preflight.dry_start import Tail, end_all, marked

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc"
)
STAYS = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1:] != ["worker"]:
    subprocess.Popen([sys.executable, __file__, "worker"], start_new_session=True)
open(str(os.getpid()), "w").close()
time.sleep(300)
"""


def test_workers_with_sessions_of_their_own_that_ignore_sigterm_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_start, "GRACE_S", 0.3)
    (tmp_path / "stays.py").write_text(STAYS)
    mark = f"FP8VERIFY_TEST_MARK={tmp_path}"
    child = subprocess.Popen(
        [sys.executable, "stays.py"],
        cwd=tmp_path,
        env={**os.environ, "FP8VERIFY_TEST_MARK": str(tmp_path)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    pids = {int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()}
    assert set(marked(mark)) == pids
    assert len(pids) == 2
    end_all(child, mark)
    assert set(marked(mark)) == set()
    assert child.returncode == -9


def test_only_the_end_of_an_output_is_kept() -> None:
    read, write = os.pipe()
    tail = Tail(os.fdopen(read, "rb"))
    with os.fdopen(write, "wb") as output:
        for _ in range(100):
            output.write(b"x" * 10_000)
        output.write(b"the end")
    text = tail.text()
    assert text.endswith("xthe end")
    assert len(text) <= 64 << 10

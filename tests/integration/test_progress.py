"""How far the traces have been read is shown on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from fp8verify.cli.progress import line_of
from tests.command_line import PATIENCE_S

ROOT = Path(__file__).parents[2]
# It draws at once and often, which otherwise takes a trace of hundreds of megabytes.
AT_ONCE = """
import sys
from fp8verify.cli import progress
progress.FIRST_S = 0
progress.EVERY_S = 0.001
from fp8verify.cli import main
main()
"""
TRACES = str(ROOT / "traces" / "fp8_nanochat")


def read_on_a_terminal(*arguments: str, **variables: str) -> tuple[str, str]:
    """Return what a command prints and shows, its standard error being a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **variables},
    )
    os.close(theirs)
    pieces: list[bytes] = []
    reader = Thread(target=lambda: pieces.extend(_pieces(ours)))
    reader.start()  # a terminal that nobody reads from takes no more after a while
    printed, _ = process.communicate(timeout=PATIENCE_S)
    reader.join()
    os.close(ours)
    return printed.decode(), b"".join(pieces).decode()


def _pieces(descriptor: int) -> Iterator[bytes]:
    """Yield what is shown until the other end is closed."""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            return
        if not piece:
            return
        yield piece


@pytest.mark.parametrize("command", [("inspect", TRACES), ("table", TRACES, TRACES)])
def test_a_terminal_shows_how_far_the_traces_are_read(command: tuple[str, ...]) -> None:
    printed, shown = read_on_a_terminal(*command)

    assert "reading █" in shown or "reading ░" in shown
    assert " of 1 trace  0:0" in shown
    assert shown.endswith("\r\x1b[K")
    assert "reading" not in printed


def test_the_traces_of_an_archive_are_followed_once_it_is_unpacked(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "run.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for number in range(3):
            packed.write(f"{TRACES}/rank0.json.gz", f"run/rank{number}.json.gz")

    _, shown = read_on_a_terminal("inspect", str(archive), "--workers", "1")

    lines = shown.split("\r\x1b[K")
    reading = [line for line in lines if line.startswith("reading")]
    assert any(line.endswith(" of 3 traces  0:00") for line in reading)
    assert "100%" not in reading[0]
    assert not any(line.startswith("unpacking") for line in lines[-len(reading) :])


@pytest.mark.parametrize(
    ("options", "variables"), [(("--quiet",), {}), ((), {"TERM": "dumb"})]
)
def test_nothing_is_shown_where_it_is_unwanted(
    options: tuple[str, ...], variables: dict[str, str]
) -> None:
    _, shown = read_on_a_terminal("inspect", TRACES, *options, **variables)

    assert shown == ""


def test_nothing_is_shown_in_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, "inspect", TRACES],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""


def test_the_line_has_the_share_the_traces_and_the_time() -> None:
    read = {"rank0.json": 100, "rank1.json": 50}
    sizes = {"rank0.json": 100, "rank1.json": 100}

    assert line_of(read, sizes, 75) == (
        "reading ██████████████████░░░░░░  75%  1 of 2 traces  1:15"
    )
    assert line_of({}, {}, 5) == "reading 0:05"
    assert line_of(read, sizes, 5, unpacks=True).startswith("unpacking █")

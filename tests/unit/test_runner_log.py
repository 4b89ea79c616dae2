"""The log: bounded, in whole lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fp8verify.record.log import MAX_LINE, BoundedLog, LineAssembler


@contextmanager
def bounded_log(path: Path, **limits: int) -> Iterator[BoundedLog]:
    log = BoundedLog(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), **limits)
    yield log
    log.close()


def test_a_short_log_is_kept_whole_and_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with bounded_log(path) as log:
        log.write(b"one\n")
        assert path.read_bytes() == b"one\n"
        log.write(b"two\n")
    log.write(b"after the end\n")
    log.close()
    assert path.read_bytes() == b"one\ntwo\n"


@given(st.lists(st.binary(max_size=40)))
def test_nothing_is_lost_uncounted(
    tmp_path_factory: object, chunks: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.txt"  # type: ignore[attr-defined]
    with bounded_log(path, head=30, tail=30) as log:
        for chunk in chunks:
            log.write(chunk)
    whole, kept = b"".join(chunks), path.read_bytes()
    if kept != whole:
        head, note = kept[:30], kept[30:]
        missing, _, tail = note.removeprefix(b"\n[fp8verify: ").partition(
            b" bytes left out here]\n"
        )
        assert whole == head + whole[len(head) : len(head) + int(missing)] + tail
        assert len(tail) >= 30


def test_streams_do_not_share_a_line(tmp_path: Path) -> None:
    with bounded_log(tmp_path / "log.txt") as log:
        out, err = LineAssembler(log.write), LineAssembler(log.write)
        out.write(b"Applied Float8 ")
        err.write(b"warning\n")
        out.write(b"training\n 10%\r")
        err.write(b"unfinished")
        err.flush()

    text = (tmp_path / "log.txt").read_bytes()
    assert text == b"warning\nApplied Float8 training\n 10%\runfinished\n"


def test_an_endless_line_is_not_kept_in_memory(tmp_path: Path) -> None:
    with bounded_log(tmp_path / "log.txt") as log:
        LineAssembler(log.write).write(b"x" * (MAX_LINE + 1))

        assert (tmp_path / "log.txt").stat().st_size == MAX_LINE + 1

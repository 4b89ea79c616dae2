"""A path stands for one trace a rank."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fp8verify.errors import InputError
from fp8verify.trace import find_traces
from fp8verify.trace.places import expand, is_shared, place, reading
from tests.unit.trace_events import as_document, sample


def write(path: Path, rank: int | None = None) -> Path:
    info = {"backend": "nccl"} if rank is None else {"backend": "nccl", "rank": rank}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = as_document(sample(), distributedInfo=info)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_file_stands_for_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "anything.txt")
    [file] = find_traces(path)
    assert (file.path, file.rank, file.guessed) == (path, 0, False)


def test_a_name_with_brackets_is_no_pattern_where_the_file_is_there(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "trace[1].json")
    assert expand(path) == [path]
    with pytest.raises(InputError, match="matches no file"):
        expand(tmp_path / "trace[2].json")


def test_a_mistake_in_a_program_is_not_blamed_on_a_local_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), reading(tmp_path):
        raise ZeroDivisionError
    with (
        pytest.raises(InputError, match="be read: no credentials"),
        reading("s3://bucket/x"),
    ):
        raise RuntimeError("no credentials")
    with pytest.raises(InputError) as denied, reading(tmp_path):
        raise PermissionError(13, "Permission denied")
    assert "right to read" in denied.value.hint
    for what, hint in ((tmp_path, "the path"), ("https://host/x", "the address")):
        with pytest.raises(InputError) as caught, reading(what):
            raise OSError(5, "I/O error")
        assert hint in caught.value.hint


def test_what_is_in_memory_no_other_process_can_open() -> None:
    pytest.importorskip(
        "upath", reason="needs universal-pathlib, from the remote extra"
    )
    assert [is_shared(place(url)) for url in ("x.json", "memory://x", "file:///x")] == [
        True, False, True
    ]  # fmt: skip

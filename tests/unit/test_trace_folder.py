"""A path stands for one trace a rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fp8verify.errors import InputError
from fp8verify.trace import find_traces
from fp8verify.trace.places import expand, is_shared, place, reading
from tests.unit.trace_events import HEAD, as_document, sample


def write(path: Path, rank: int | None = None) -> Path:
    info = {"backend": "nccl"} if rank is None else {"backend": "nccl", "rank": rank}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = as_document(sample(), distributedInfo=info)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def found(folder: Path) -> list[tuple[int, str]]:
    return [(file.rank, file.path.name) for file in find_traces(folder)]


def test_file_stands_for_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "anything.txt")
    [file] = find_traces(path)
    assert (file.path, file.rank, file.guessed) == (path, 0, False)


def test_rank_comes_from_the_metadata_before_the_name(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json.gz", rank=1)
    write(tmp_path / "rank1.json", rank=0)
    assert found(tmp_path) == [(0, "rank1.json"), (1, "rank0.json.gz")]


@pytest.mark.parametrize("pattern", ["rank{}", "rank-{}", "rank_{}", "rank{}_trace", "job.Rank{}"])
def test_rank_comes_from_the_name(pattern: str, tmp_path: Path) -> None:
    for rank in (2, 10):
        write(tmp_path / f"{pattern.format(rank)}.pt.trace.json")
    assert [rank for rank, _ in found(tmp_path)] == [2, 10]


def test_rank_is_else_the_place(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "rank1.json"):
        write(tmp_path / name)
    assert found(tmp_path) == [(0, "a.json"), (1, "rank1.json"), (2, "b.json")]
    assert [file.guessed for file in find_traces(tmp_path)] == [True, False, True]


def test_places_are_by_number(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        write(tmp_path / f"trace_{number}.json")
    assert found(tmp_path) == [(0, "trace_0.json"), (1, "trace_2.json"), (2, "trace_10.json")]


def test_two_files_of_one_rank_are_both_found(tmp_path: Path) -> None:
    write(tmp_path / "a.json", rank=3)
    write(tmp_path / "b.json", rank=3)
    assert [(file.rank, file.guessed) for file in find_traces(tmp_path)] == [(3, False)] * 2


def test_our_own_files_are_no_traces(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json.gz")
    for name in ("rank0.meta.json", "expected.json", "x.schema.json", "report-1.json", "log.txt"):
        write(tmp_path / name)
    files = find_traces(tmp_path)
    assert found(tmp_path) == [(0, "rank0.json.gz")]
    assert files.skipped == []


def test_unrelated_json_beside_a_trace_is_skipped_and_named(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json")
    (tmp_path / "config.json").write_text(json.dumps(HEAD))
    (tmp_path / "broken.json").write_text("{")
    files = find_traces(tmp_path)
    assert len(files) == 1
    assert [path.name for path in files.skipped] == ["broken.json", "config.json"]


def test_rank_folders_are_searched_one_level_down(tmp_path: Path) -> None:
    write(tmp_path / "node0" / "trace.json", rank=0)
    write(tmp_path / "node1" / "trace.json", rank=1)
    write(tmp_path / "node1" / "deeper" / "trace.json", rank=2)
    assert [file.rank for file in find_traces(tmp_path)] == [0, 1]


@pytest.mark.parametrize(
    ("content", "fact"),
    [({}, "has no trace"), ({"config.json": "{}"}, r"files, but no trace: config\.json")],
)
def test_folder_without_traces_is_refused(
    content: dict[str, str], fact: str, tmp_path: Path
) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=fact):
        find_traces(tmp_path)


def test_a_name_with_brackets_is_no_pattern_where_the_file_is_there(tmp_path: Path) -> None:
    path = write(tmp_path / "trace[1].json")
    assert expand(path) == [path]
    with pytest.raises(InputError, match="matches no file"):
        expand(tmp_path / "trace[2].json")


def test_a_mistake_in_a_program_is_not_blamed_on_a_local_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), reading(tmp_path):
        raise ZeroDivisionError
    with pytest.raises(InputError, match="be read: no credentials"), reading("s3://bucket/x"):
        raise RuntimeError("no credentials")
    with pytest.raises(InputError) as denied, reading(tmp_path):
        raise PermissionError(13, "Permission denied")
    assert "right to read" in denied.value.hint
    for what, hint in ((tmp_path, "the path"), ("https://host/x", "the address")):
        with pytest.raises(InputError) as caught, reading(what):
            raise OSError(5, "I/O error")
        assert hint in caught.value.hint


def test_what_is_in_memory_no_other_process_can_open() -> None:
    pytest.importorskip("upath", reason="needs universal-pathlib, from the remote extra")
    assert [is_shared(place(url)) for url in ("x.json", "memory://x", "file:///x")] == [
        True, False, True
    ]  # fmt: skip

"""Reading back what the agent wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8verify.capture.files import (
    UNOBSERVED,
    blas_logs,
    census_remarks,
    declared_traces,
    notes_on_attachment,
    read_meta,
    read_ranks,
)
from fp8verify.capture.schema import ModuleRecord, RankMeta, WindowRecord
from fp8verify.errors import InputError
from tests.hand_built import present

WINDOW = {"first": 10, "last": 12, "state": "complete"}
MINIMAL = {"schema": 1, "rank": 3, "steps_seen": 12, "window": [WINDOW]}


def write(folder: Path, content: object) -> Path:
    path = folder / "rank3.meta.json"
    path.write_bytes(
        content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    return path


def test_a_meta_file_of_a_later_version_is_read(tmp_path: Path) -> None:
    module = {
        "fqn": "lm_head",
        "class": "Linear",
        "kind": "linear",
        "state": "fp8",
        "new": 1,
    }

    meta = read_meta(
        write(tmp_path, {**MINIMAL, "modules": [module], "invented_later": {}})
    )

    assert (meta.rank, meta.steps_seen, meta.windows[0].last) == (3, 12, 12)
    assert (meta.modules[0].fqn, meta.modules[0].class_name) == ("lm_head", "Linear")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, {}, {**MINIMAL, "rank": "x"}],
    ids=["empty", "cut", "a list", "no text", "deep", "nothing in it", "wrong type"],
)
def test_what_is_no_meta_file_is_told(tmp_path: Path, content: object) -> None:
    with pytest.raises(InputError, match="is not a module list") as caught:
        read_meta(write(tmp_path, content))
    assert "\n" not in caught.value.fact


def test_another_schema_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="schema 2"):
        read_meta(write(tmp_path, {**MINIMAL, "schema": 2}))


def test_a_missing_meta_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_meta(tmp_path / "rank0.meta.json")


def census(rank: int, *states: str, prefix: str = "layers") -> RankMeta:
    modules = tuple(
        ModuleRecord(
            fqn=f"{prefix}.{at}", class_name="Linear", kind="linear", state=state
        )
        for at, state in enumerate(states)
    )
    return RankMeta(schema=1, rank=rank, steps_seen=9, windows=(), modules=modules)


def test_a_rank_that_was_not_profiled_is_named_by_its_census() -> None:
    metas = {rank: census(rank, "fp8", "fp8", "high_precision") for rank in range(8)}
    assert census_remarks(metas, {0}) == []
    metas[5] = metas[6] = census(5, "high_precision", "fp8", "high_precision")
    metas[7] = census(7, "high_precision", prefix="head")  # another stage of a pipeline
    (remark,) = census_remarks(metas, {0})
    assert remark.startswith(
        "rank 5 and 1 more: not profiled, and by its module list 1 of 3"
    )
    assert census_remarks(metas, {0, 5, 6}) == []  # its own trace says more


def test_two_processes_of_a_rank_are_one_record(tmp_path: Path) -> None:
    module = {"fqn": "up", "class": "Linear", "kind": "linear", "state": "fp8"}
    first = {
        **MINIMAL,
        "notes": ["a"],
        "modules": [module],
        "versions": {"torch": "2.13"},
    }
    later = {"first": 3, "last": 4, "state": "complete", "trace": "rank3.w2.json"}
    outside = {"count": 2, "total_ns": 10, "median_ns": 5, "samples_ns": [5, 5]}
    second = {
        **MINIMAL, "steps_seen": 40, "steps_outside": outside, "naming": {"step": 5},
        "window": [WINDOW, later], "notes": ["a", "b"],
        "modules": [module, {**module, "fqn": "down"}], "api_calls": ["te.fp8_autocast"],
        "versions": {"torch": "2.9", "torchao": "0.14"},
    }  # fmt: skip
    write(tmp_path, second).rename(tmp_path / "rank3.p2.meta.json")
    write(tmp_path, first)
    (joined,) = read_ranks(tmp_path).values()
    told = "2 processes of this rank were recorded; their windows are together"
    assert (joined.steps_seen, joined.notes) == (40, (told, "a", "b"))
    assert [window.last for window in joined.windows] == [12, 4]
    assert [one.fqn for one in joined.modules] == ["up", "down"]
    assert (joined.api_calls, joined.versions["torch"]) == (
        ("te.fp8_autocast",),
        "2.13",
    )
    assert (present(joined.steps_outside).count, present(joined.naming).step) == (2, 5)
    assert declared_traces({3: joined}) == {"rank3.w2.json": 3}


def test_no_log_outside_of_the_capture_is_read(tmp_path: Path) -> None:
    names = ("rank0.log", None, "", ".", "..", "../rank0.log", "/etc/passwd")
    windows = tuple(
        WindowRecord(
            first=1, last=1, state="complete", trace=f"{at}.json", blas_log=name
        )
        for at, name in enumerate(names)
    )
    meta = RankMeta(schema=1, rank=0, steps_seen=1, windows=windows)
    assert blas_logs(tmp_path, {0: meta}) == {"0.json": tmp_path / "rank0.log"}


def test_why_nothing_was_observed_is_told_of_exports_alone(tmp_path: Path) -> None:
    assert notes_on_attachment(tmp_path, observed=False) == ()
    boot = tmp_path / ".boot-abc"
    boot.mkdir()
    assert notes_on_attachment(tmp_path, observed=False) == (UNOBSERVED,)
    assert notes_on_attachment(tmp_path, observed=True) == ()
    frame = f'File "{boot}/_fp8verify_boot.py", line 12, in start'
    (boot / "errors.txt").write_text(f"Traceback\n  {frame}\nImportError: no agent")
    (note,) = notes_on_attachment(tmp_path, observed=True)
    assert "could not start: ImportError: no agent (_fp8verify_boot.py:12)" in note

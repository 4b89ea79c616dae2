"""Small files that would take endless time or memory, and text that would steer a terminal."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Verdict, inspect
from fp8verify.errors import InputError
from fp8verify.trace import build, nsys, read_trace, source
from fp8verify.trace.kineto import document as buffer
from tests.hand_built import BF16_KERNEL, FP8_KERNEL, TraceBuilder
from tests.other_tools import PROCESS

ROWS = 3000  # squared, more than can be read in a test


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_ids_of_nsys_that_are_not_unique_do_not_multiply(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE StringIds (id, value)")
        columns = (
            "start, end, deviceId, streamId, correlationId, globalPid, demangledName"
        )
        file.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns})")
        file.executemany("INSERT INTO StringIds VALUES (1, ?)", [(BF16_KERNEL,)] * ROWS)
        rows = [(10 * row, 10 * row + 5, 0, 7, row, PROCESS, 1) for row in range(ROWS)]
        file.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", rows
        )
    file.close()
    assert read_trace(path).health.kernels == ROWS


def test_a_query_beyond_what_a_file_can_hold_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE StringIds (id, value)")
        file.executemany(
            "INSERT INTO StringIds VALUES (?, 'x')", [(n,) for n in range(ROWS)]
        )
    file.close()
    monkeypatch.setattr(nsys, "_STEPS_FREE", 0)
    monkeypatch.setattr(nsys, "_STEPS_A_BYTE", 1)
    found = nsys.Export(path)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        list(found.rows("SELECT a.id FROM StringIds a, StringIds b, StringIds c"))
    found.close()


@pytest.mark.parametrize("content", [b"", b" "])
def test_gzip_members_without_content_are_refused(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content) * (source.MEMBERS_FREE + 9))
    with pytest.raises(InputError, match="gzip members"):
        read_trace(path)


def test_many_gzip_members_with_content_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    data = json.dumps(
        TraceBuilder().linear(64, 32, 16, fp8=True).document(), indent=500
    ).encode()
    pieces = [data[at : at + 300] for at in range(0, len(data), 300)]
    assert len(pieces) > source.MEMBERS_FREE
    for packed in (
        b"".join(map(gzip.compress, pieces)),
        gzip.compress(data + b" " * 10**6),
    ):
        path.write_bytes(packed)
        assert read_trace(path).health.complete


@pytest.mark.parametrize("where", ["metadata", "event"])
def test_an_entry_of_many_objects_is_refused(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer, "MAX_WINDOW", 1 << 20)
    path = tmp_path / "trace.json"
    many = b"[" + b"{}," * 400_000 + b"{}]"
    event = b'{"ph": "X", "cat": "kernel", "args": {"a": %s}}'
    path.write_bytes(
        b'{"rocprofiler-sdk-tool": %s}' % many
        if where == "metadata"
        else b'{"traceEvents": [%s]}' % (event % many)
    )
    with pytest.raises(
        InputError, match=r"single entry of more than 1 MB|no list of events"
    ):
        read_trace(path)


def test_of_endless_kernel_names_the_first_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_MOST_NAMES", 3)
    trace = TraceBuilder()
    for number in range(6):
        trace.launch(f"{BF16_KERNEL}_{number}")
    path = trace.write(tmp_path / "trace.json")
    found = read_trace(path)
    assert len(found.names) == 4
    assert len(found.kernels) == 6
    assert not found.health.complete
    assert inspect(path).verdict is Verdict.INCONCLUSIVE


HOSTILE = "a\x1b[31m\x9b\u202e\u2066\u2028\n::error file=x::y##[error]\ud800"


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (
            text for pair in value.items() for one in pair for text in strings(one)
        )
    elif isinstance(value, list):
        yield from (text for one in value for text in strings(one))


def test_the_name_of_a_file_is_cleaned(tmp_path: Path) -> None:
    folder = tmp_path / "run\x1b\u202e::error ::x"
    folder.mkdir()
    TraceBuilder().linear(64, 32, 16, fp8=True).write(folder / "rank0\x9b.json")
    report = inspect(folder)
    found = list(strings(json.loads(report.to_json())))
    assert all(text.isprintable() and "::error" not in text for text in found)


def test_no_name_of_a_trace_reaches_a_report_as_it_was(tmp_path: Path) -> None:
    trace = TraceBuilder(gpu=f"NVIDIA H200 {HOSTILE}").step(1)
    trace.launch(
        f"{FP8_KERNEL}{HOSTILE}", f"own::mm{HOSTILE}", parents=(f"p{HOSTILE}",)
    )
    trace.launch(HOSTILE, HOSTILE, types=(HOSTILE,), dims=((2, 2),), layer=HOSTILE)
    trace.launch(
        "ncclDevKernel", "c10d::x", **{"Collective name": HOSTILE, "dtype": HOSTILE}
    )
    document = trace.document()
    document["traceEvents"].append(
        {"ph": "X", "cat": HOSTILE, "ts": 1, "dur": 1, "name": HOSTILE}
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    report = inspect(path)
    found = list(strings(json.loads(report.to_json())))
    assert any("\ufffd" in text for text in found)
    assert all(text.isprintable() for text in found)
    assert not any("::error file" in text or "##[" in text for text in found)
    assert all(line.isprintable() for line in str(report.to_text()).splitlines())

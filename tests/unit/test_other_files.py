"""Files that are no traces of ours: read where that is simple, else told what to export."""

from __future__ import annotations

import gzip
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from fp8verify import inspect
from fp8verify.errors import InputError
from fp8verify.trace import find_traces, read_trace
from tests.hand_built import FP8, FP8_KERNEL, TraceBuilder


def test_the_streams_of_a_jax_trace_are_kernels(tmp_path: Path) -> None:
    names = [("process_name", 0, "/device:GPU:0"), ("thread_name", 21, "Stream #21(Compute)"),
             ("thread_name", 22, "XLA Modules")]  # fmt: skip
    events = [
        {"ph": "M", "pid": 1, "tid": tid, "name": what, "args": {"name": name}}
        for what, tid, name in names
    ]
    run = {"ph": "X", "pid": 1, "ts": 10.0, "dur": 40.0, "name": FP8_KERNEL}
    ran = [{**run, "tid": tid, "args": {"correlation_id": "1"}} for tid in (21, 22)]
    path = tmp_path / "host.trace.json.gz"
    document = {"displayTimeUnit": "ns", "traceEvents": [*events, *ran]}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    trace = read_trace(path)
    assert (trace.names, list(trace.kernels.duration_ns)) == ([FP8_KERNEL], [40_000])
    assert trace.health.complete


@pytest.mark.parametrize("kind", ["zip", "tar", "tgz"])
def test_an_archive_of_traces_is_read_by_rank(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{kind}"
    traces = []
    for rank in (8, 9):
        build = TraceBuilder().launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8))
        traces.append(build.write(tmp_path / f"rank{rank}.json"))
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("readme.txt", "no trace")
            for trace in traces:
                packed.write(trace, f"run/{trace.name}")
    else:
        with tarfile.open(path, "w:gz" if kind == "tgz" else "w") as tape:
            for trace in traces:
                tape.add(trace, f"run/{trace.name}")
    assert [file.rank for file in find_traces(path)] == [8, 9]
    assert inspect(path).gemm.kernels["fp8"] == 2


def test_an_archive_of_a_capture_has_no_more_ranks_than_traces(tmp_path: Path) -> None:
    trace = TraceBuilder().launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8))
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as packed:
        packed.write(trace.write(tmp_path / "rank0.json"), "run/rank0.json")
        packed.writestr("run/rank0.meta.json", "{}")
        packed.writestr("run/tokenizer.json", '{"model": 1}')
    assert [file.rank for file in find_traces(tmp_path / "run.zip")] == [0]


def damaged_zip(what: str, path: Path) -> None:
    method = zipfile.ZIP_LZMA if what == "lzma" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method) as packed:
        for rank in range(4):
            packed.writestr(f"rank{rank}.json", " " * (20 << 20) if what == "bombs" else "[]" * 99)
    data = bytearray(path.read_bytes())
    if what == "deflate":
        data[40:50] = b"\xff" * 10
    elif what == "name":
        at = data.index(b"PK\x01\x02")
        data[at + 9] |= 8
        data[at + 46 : at + 48] = b"\xff\xfe"
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["deflate", "name", "lzma", "bombs"])
def test_hostile_archives_end_in_two_lines(what: str, tmp_path: Path) -> None:
    damaged_zip(what, tmp_path / "run.zip")
    with pytest.raises(InputError, match="archive that cannot be read"):
        inspect(tmp_path / "run.zip")


SNAPSHOT = b"\x80\x04\x95" + bytes(8) + b"}\x94(\x8c\x08segments\x94]\x94u."


@pytest.mark.parametrize(
    ("name", "content", "fact", "hint"),
    [
        ("snapshot.pickle", SNAPSHOT, "memory", "export_chrome_trace"),
        ("weights.pkl", b"\x80\x04\x95" + bytes(40), "never|not loaded", "export_chrome_trace"),
        ("cublas.log", b"I! cuBLAS (v13.1.0) function", "no types", "CUBLASLT_LOG_MASK=2"),
        ("run.pftrace", b"\n8M", "Perfetto", "traceconv json"),
        ("run.ncu-rep", b"NVR", "Nsight Compute", "ncu --import"),
        ("run.nsys-rep", b"NVR", "Nsight Systems", "nsys export"),
        ("7_results.db", b"SQLite format 3", "rocprofv3", "rocpd convert"),
        ("host.xplane.pb", b"\n\x80", "xplane", "trace.json.gz"),
        ("weights.pt", None, "without a trace", "checkpoint"),
        ("broken.zip", b"PK\x03\x04" + bytes(60), "cannot be read", "Unpack"),
    ],
)
def test_what_is_of_no_use_is_named_and_what_to_export(
    name: str, content: bytes | None, fact: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is None:
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("archive/data.pkl", b"")
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=fact) as caught:
        inspect(path)
    assert hint in caught.value.hint

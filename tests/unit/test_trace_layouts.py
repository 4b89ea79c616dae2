"""Every way in which a trace is written gives the same reading."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from fp8verify.trace import read_trace
from tests.unit.trace_events import (
    HEAD,
    as_document,
    kernel,
    kernel_names,
    read_bytes,
    sample,
    view,
)


def one_line_events(events: list[dict[str, Any]]) -> bytes:
    lines = []
    for event in events:
        args = json.dumps(event.get("args", {}))
        rest = json.dumps({k: v for k, v in event.items() if k != "args"})[1:-1]
        lines.append(
            f'  {{\n    {rest},\n    "args": {{\n      {args[1:-1]}\n    }}\n  }}'
        )
    head = json.dumps(HEAD)[1:-1]
    return (
        "\n{\n" + head + ',\n"traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"
    ).encode()


def sorted_keys(events: list[dict[str, Any]]) -> bytes:
    return json.dumps({**HEAD, "traceEvents": events}, sort_keys=True).encode()


def metadata_last(events: list[dict[str, Any]]) -> bytes:
    return json.dumps({"traceEvents": events, **HEAD}, indent=4).encode()


def category_last(events: list[dict[str, Any]]) -> bytes:
    moved = [
        {**{k: v for k, v in e.items() if k != "cat"}, "cat": e.get("cat")}
        for e in events
    ]
    return as_document([{k: v for k, v in e.items() if v is not None} for e in moved])


def with_bom(events: list[dict[str, Any]]) -> bytes:
    return b"\xef\xbb\xbf" + as_document(events)


def of_torch_1_9(events: list[dict[str, Any]]) -> bytes:
    old = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    old |= {"gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}
    return as_document(
        [{**e, "cat": old.get(e.get("cat", ""), e.get("cat"))} for e in events]
    )


def with_bare_infinities(events: list[dict[str, Any]]) -> bytes:
    text = as_document(events).decode()
    return text.replace(
        '"correlation":', '"warps": -nan, "bandwidth": inf, "correlation":'
    ).encode()


LAYOUTS = [
    of_torch_1_9, with_bare_infinities, as_document, one_line_events, sorted_keys, metadata_last,
    category_last, with_bom,
    lambda events: json.dumps({**HEAD, "traceEvents": events}, separators=(",", ":")).encode(),
    lambda events: json.dumps({**HEAD, "traceEvents": events}, indent="\t").encode(),
    lambda events: as_document(events).replace(b"\n", b"\r\n"),
    lambda events: as_document(events).replace(b"\n  ]\n}", b",\n  ],\n}"),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 300, 1 << 20])
def test_layout_does_not_matter(
    layout: Callable[[list[dict[str, Any]]], bytes], block_size: int
) -> None:
    trace = read_bytes(layout(sample()), block_size=block_size)
    assert kernel_names(trace) == ["gemm_a", "gemm_b", "gemm_c"]
    assert view(trace) == view(read_bytes(as_document(sample())))
    assert trace.health.complete
    assert (trace.rank, trace.world_size) == (1, 2)
    assert (trace.gpu, trace.compute_capability) == ("NVIDIA H200", "9.0")
    assert trace.record_shapes


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
        lambda data: gzip.compress(data) + b"\0" * 512,
        zstandard.ZstdCompressor().compress,
        lambda data: zstandard.compress(data[:700]) + zstandard.compress(data[700:]),
    ],
    ids=["gzip", "gzip members", "gzip padded", "zstd", "zstd frames"],
)
def test_compression_is_told_by_content(pack: Callable[[bytes], bytes]) -> None:
    trace = read_bytes(pack(as_document(sample())))
    assert kernel_names(trace) == ["gemm_a", "gemm_b", "gemm_c"]
    assert trace.health.complete


def test_list_without_metadata() -> None:
    """The array form of the Trace Event Format, here with threads as text."""
    events = [{**event, "tid": str(event["tid"])} for event in sample()]
    trace = read_bytes(json.dumps(events, indent=2).encode(), block_size=400)
    assert view(trace).kernels == view(read_bytes(as_document(sample()))).kernels
    assert [step.number for step in trace.steps] == [3, 4]
    assert trace.rank is None


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ("4365095910349.525", 4365095910349525), ("8796093022207.999", 8796093022207999),
        ("12.5", 12500), ("-3.001", -3001), ("1.25e3", 1250000),
    ],
)  # fmt: skip
def test_no_nanosecond_is_lost(written: str, nanoseconds: int) -> None:
    data = as_document([kernel("first", 0.5, 1, 1), kernel("second", "@", 1, 2)])
    trace = read_bytes(data.replace(b'"@"', written.encode()))
    assert list(trace.kernels.start_ns) == [500, nanoseconds]


def test_stamps_since_1970_are_right_to_a_quarter_of_a_microsecond() -> None:
    stamps = ("1790857026000123.457", "1790857026000124")
    data = as_document([kernel("first", "@", 1, 1), kernel("second", "@", 1, 2)])
    trace = read_bytes(
        data.replace(b'"@"', b"%b") % tuple(stamp.encode() for stamp in stamps)
    )
    first, second = trace.kernels.start_ns
    assert second == 1790857026000124000
    assert abs(first - 1790857026000123457) < 250


def test_unknown_categories_are_counted_and_ignored() -> None:
    extra = [
        {"ph": "X", "cat": f"new_{i % 7}", "name": "n", "ts": i, "dur": 1}
        for i in range(50)
    ]
    trace = read_bytes(as_document(extra + sample() + extra), block_size=500)
    assert trace.health.events == len(sample()) + 100
    assert trace.health.complete
    assert len(trace.kernels) == 3


@pytest.mark.parametrize(("us", "ns"), [(-1, 0), (0, 0), (3.6e9, 3.6e12), (3.7e9, 0)])
def test_a_copy_of_an_absurd_time_counts_but_takes_none(us: float, ns: float) -> None:
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 1, "dur": us}
    assert read_bytes(as_document([{**copy, "args": {"bytes": 8}}])).copies == {
        "memcpy": (1, ns, 8)
    }


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        (0, 0),
        (7, 7),
        (2**31 - 1, 2**31 - 1),
        (2**31, None),
        (-1, None),
        (True, None),
        ("1", None),
    ],
)
def test_a_number_of_the_metadata_is_one_within_reason(
    value: object, rank: int | None
) -> None:
    assert (
        read_bytes(as_document(sample(), distributedInfo={"rank": value})).rank == rank
    )


def test_of_the_metadata_the_date_is_kept_and_nothing_secret() -> None:
    trace = read_bytes(
        as_document(
            [], env={"TOKEN": "secret"}, baseTimeNanoseconds=1_790_857_026_000_000_000
        )
    )
    assert trace.base_ns == 1_790_857_026_000_000_000
    assert "secret" not in repr(trace)


def test_gpu_is_the_one_that_ran_the_kernels() -> None:
    devices = [
        {"id": i, "name": f"GPU {i}", "computeMajor": i, "computeMinor": 0}
        for i in (8, 9)
    ]
    events = [kernel("k", 1, 1, 1, device=9)]
    trace = read_bytes(as_document(events, deviceProperties=devices))
    assert (trace.gpu, trace.compute_capability) == ("GPU 9", "9.0")


def test_name_stands_for_the_file_in_reports(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(as_document(sample()))
    assert read_trace(path).source == "x.json"
    assert read_trace(path, name="node3/x.json").source == "node3/x.json"

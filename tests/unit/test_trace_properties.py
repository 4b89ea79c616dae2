"""Laws that hold for any trace: against the reference reader, and under any damage."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.errors import InputError
from fp8verify.trace import Trace
from fp8verify.trace.kineto import reader
from fp8verify.trace.source import Reading, Source
from tests.golden.expectations import ROOT
from tests.unit.reference_reader import reference_read, view
from tests.unit.trace_events import HEAD, as_document, kernel_names, sample

NAMES = st.sampled_from(
    ["aten::mm", "MmBackward0", "ProfilerStep#3", "ProfilerStep#x", "Torch-Compiled Region: 0/1"]
)
KERNEL_NAMES = st.sampled_from(["gemm", "naïve\u2028", 'say "x"', "back\\slash}, {", "😀"])
BASES = st.sampled_from([0, 4365095910349, 1790857026000123])
IDS = st.integers(0, 6)


@st.composite
def times(draw: st.DrawFn, base: int) -> Any:
    thousandths = draw(st.integers(0, 60_000))
    exact = base * 1000 + thousandths
    # Relative stamps have three decimals; a double does not hold those of stamps since 1970.
    return f"@{exact // 1000}.{0 if base > 1 << 43 else exact % 1000:03d}@"


@st.composite
def events(draw: st.DrawFn, base: int) -> dict[str, Any]:
    cat = draw(
        st.sampled_from(["cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel"])
        | st.sampled_from(["gpu_memcpy", "ac2g", "new_category"])
    )
    args: dict[str, Any] = {}
    if draw(st.booleans()):
        args["External id"] = draw(IDS)
    if cat in ("cuda_runtime", "cuda_driver", "kernel") and draw(st.integers(0, 9)):
        args["correlation"] = draw(IDS)
    if cat == "cpu_op" and draw(st.booleans()):
        args |= {"Input type": ["float", ""], "Input Dims": [[draw(IDS), 4], []]}
        args["Fwd thread id"] = draw(st.integers(0, 1))
    event = {
        "ph": "X",
        "cat": cat,
        "name": draw(NAMES) if cat != "kernel" else draw(KERNEL_NAMES),
        "pid": 1,
        "tid": draw(st.integers(1, 2)),
        "ts": draw(times(base)),
        "dur": draw(st.integers(0, 30_000)) / 1000,
        "args": args,
    }
    turn = draw(st.integers(0, len(event) - 1))
    keys = list(event)
    return {key: event[key] for key in keys[turn:] + keys[:turn]}


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    base = draw(BASES)
    found = draw(st.lists(events(base), max_size=14))
    # One External id names one operator.
    seen: set[int] = set()
    for event in found:
        number = event["args"].get("External id", -1)
        if event["cat"] == "cpu_op" and number in seen:
            del event["args"]["External id"]
        elif event["cat"] == "cpu_op" and number >= 0:
            seen.add(number)
    form = draw(st.sampled_from([{"indent": 2}, {"indent": 4}, {"separators": (",", ":")}, {}]))
    shape = draw(st.sampled_from(["first", "last"]))
    parts = {**HEAD, "traceEvents": found} if shape == "last" else {"traceEvents": found, **HEAD}
    text = json.dumps(parts, ensure_ascii=draw(st.booleans()), **form)
    return text.replace('"@', "").replace('@"', "").encode("utf-8", "surrogatepass")


def read(data: bytes, block_size: int = 1 << 20) -> Trace:
    return reader.read(Source(io.BytesIO(data), "t.json"), Reading(block_size=block_size))


@given(data=documents(), block_size=st.integers(1, 4000), packed=st.booleans())
def test_stream_reads_what_the_whole_document_says(
    data: bytes, block_size: int, packed: bool
) -> None:
    trace = read(gzip.compress(data) if packed else data, block_size)
    assert view(trace) == reference_read(data)
    assert trace.health.complete


DOCUMENT = as_document(sample())
COMPACT = json.dumps({**HEAD, "traceEvents": sample()}, separators=(",", ":")).encode()
ORIGINALS = st.sampled_from([DOCUMENT, COMPACT])


def read_or_refuse(data: bytes, block_size: int) -> list[str]:
    try:
        trace = read(data, block_size)
    except InputError:
        return []
    view(trace)
    return kernel_names(trace)


@given(data=ORIGINALS, at=st.floats(0, 1), block_size=st.integers(1, 3000))
def test_a_cut_finds_a_beginning_of_the_kernels(data: bytes, at: float, block_size: int) -> None:
    names = read_or_refuse(data[: int(at * len(data))], block_size)
    assert names == ["gemm_a", "gemm_b", "gemm_c"][: len(names)]


@given(data=ORIGINALS, holes=st.tuples(st.floats(0, 1), st.floats(0, 1)), size=st.integers(1, 3000))
def test_a_hole_invents_no_kernel(data: bytes, holes: tuple[float, float], size: int) -> None:
    begin, end = sorted(int(part * len(data)) for part in holes)
    names = read_or_refuse(data[:begin] + data[end:], size)
    # A hole may join the halves of two names, but no kernel may appear that was not there.
    assert len(names) <= 3


@given(data=ORIGINALS, at=st.floats(0, 0.999), byte=st.integers(0, 255), size=st.integers(1, 3000))
def test_a_changed_byte_costs_at_most_its_neighbours(
    data: bytes, at: float, byte: int, size: int
) -> None:
    position = int(at * len(data))
    names = read_or_refuse(data[:position] + bytes([byte]) + data[position + 1 :], size)
    assert len(names) <= 3


@given(data=ORIGINALS, junk=st.binary(max_size=60), at=st.floats(0, 1), size=st.integers(1, 3000))
def test_bytes_spliced_in_never_raise(data: bytes, junk: bytes, at: float, size: int) -> None:
    position = int(at * len(data))
    read_or_refuse(data[:position] + junk + data[position:], size)


@given(at=st.floats(0, 0.999), byte=st.integers(0, 255))
def test_a_changed_byte_in_gzip_never_raises(at: float, byte: int) -> None:
    packed = gzip.compress(DOCUMENT, mtime=0)
    position = int(at * len(packed))
    read_or_refuse(packed[:position] + bytes([byte]) + packed[position + 1 :], 1 << 20)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    read_or_refuse(data, 1 << 20)
    read_or_refuse(b'{"traceEvents": [' + data, 1 << 20)


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/rank0.json.gz")), ids=lambda p: p.parent.name)
def test_shipped_captures_read_as_the_reference_does(path: Path) -> None:
    data = path.read_bytes()
    assert view(read(data, 30_011)) == reference_read(data)

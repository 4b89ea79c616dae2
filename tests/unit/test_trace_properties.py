"""Laws that hold for any trace, in blocks of any size, and under any damage."""

from __future__ import annotations

import gzip
import json
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fp8verify.errors import InputError
from fp8verify.trace.contexts import start_order
from tests.unit.trace_events import (
    HEAD,
    as_document,
    kernel_names,
    read_bytes,
    sample,
    view,
)

NAMES = st.sampled_from(
    [
        "aten::mm",
        "MmBackward0",
        "ProfilerStep#3",
        "ProfilerStep#x",
        "Torch-Compiled Region: 0/1",
    ]
)
KERNEL_NAMES = st.sampled_from(
    ["gemm", "naïve\u2028", 'say "x"', "back\\slash}, {", "😀"]
)
BASES = st.sampled_from([0, 4365095910349, 1790857026000123])
IDS = st.integers(0, 6)


@st.composite
def events(draw: st.DrawFn, base: int) -> dict[str, Any]:
    cat = draw(
        st.sampled_from(
            ["cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel"]
        )
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
        "ts": base + draw(st.integers(0, 60_000)) / 1000,
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
    form = draw(
        st.sampled_from([{"indent": 2}, {"indent": 4}, {"separators": (",", ":")}, {}])
    )
    shape = draw(st.sampled_from(["first", "last"]))
    parts = (
        {**HEAD, "traceEvents": found}
        if shape == "last"
        else {"traceEvents": found, **HEAD}
    )
    return json.dumps(parts, ensure_ascii=draw(st.booleans()), **form).encode()


@given(data=documents(), block_size=st.integers(1, 4000), packed=st.booleans())
def test_blocks_and_packing_do_not_matter(
    data: bytes, block_size: int, packed: bool
) -> None:
    trace = read_bytes(gzip.compress(data) if packed else data, block_size=block_size)
    assert view(trace) == view(read_bytes(data))
    assert trace.health.complete


DOCUMENT = as_document(sample())
COMPACT = json.dumps({**HEAD, "traceEvents": sample()}, separators=(",", ":")).encode()
ORIGINALS = st.sampled_from([DOCUMENT, COMPACT])


def read_or_refuse(data: bytes, block_size: int) -> list[str]:
    try:
        trace = read_bytes(data, block_size=block_size)
    except InputError:
        return []
    view(trace)
    return kernel_names(trace)


@given(data=ORIGINALS, at=st.floats(0, 1), block_size=st.integers(1, 3000))
def test_a_cut_finds_a_beginning_of_the_kernels(
    data: bytes, at: float, block_size: int
) -> None:
    names = read_or_refuse(data[: int(at * len(data))], block_size)
    assert names == ["gemm_a", "gemm_b", "gemm_c"][: len(names)]


@given(
    data=ORIGINALS,
    holes=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    size=st.integers(1, 3000),
)
def test_a_hole_invents_no_kernel(
    data: bytes, holes: tuple[float, float], size: int
) -> None:
    begin, end = sorted(int(part * len(data)) for part in holes)
    names = read_or_refuse(data[:begin] + data[end:], size)
    # A hole may join the halves of two names, but no kernel may appear that was not there.
    assert len(names) <= 3


@given(
    data=ORIGINALS,
    at=st.floats(0, 0.999),
    byte=st.integers(0, 255),
    size=st.integers(1, 3000),
)
def test_a_changed_byte_costs_at_most_its_neighbours(
    data: bytes, at: float, byte: int, size: int
) -> None:
    position = int(at * len(data))
    names = read_or_refuse(data[:position] + bytes([byte]) + data[position + 1 :], size)
    assert len(names) <= 3


@given(
    data=ORIGINALS,
    junk=st.binary(max_size=60),
    at=st.floats(0, 1),
    size=st.integers(1, 3000),
)
def test_bytes_spliced_in_never_raise(
    data: bytes, junk: bytes, at: float, size: int
) -> None:
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


RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.sampled_from([-1, 0]))
)


@given(ranges=RANGES)
def test_order_is_by_start_then_enclosing_first(
    ranges: list[tuple[int, int, int]],
) -> None:
    start = array("q", [begin for begin, _, _ in ranges])
    end = array("q", [begin + length for begin, length, _ in ranges])
    shape = array("i", [kind for _, _, kind in ranges])
    ordered = start_order(array("i", range(len(ranges))), start, end, shape)
    assert list(ordered) == sorted(
        range(len(ranges)), key=lambda row: (start[row], -end[row], shape[row] >= 0)
    )

"""Damage costs the events that it hits, is counted, and never ends in a traceback."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from fp8verify.errors import InputError
from fp8verify.trace import read_trace, source
from fp8verify.trace.kineto import collector
from fp8verify.trace.tables import Health
from tests.unit.trace_events import as_document, kernel_names, read_bytes, sample

ALL = ["gemm_a", "gemm_b", "gemm_c"]


@pytest.mark.parametrize("block_size", [200, 1 << 20])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"schemaVersion": 1', b'"schemaVersion": NaN'),
        (b'"Fwd thread id": 0', b'"Fwd thread id": NaN'), (b'"stream": 7', b'"stream": "7"'),
        (b'"dur": 10.5', b'"dur": "10.5"'), (b'"ts": 1060.125', b'"ts": "1060.125"'),
        (b'"bandwidth": 1', b'"bandwidth": -Infinity'), (b'"note": ""', b'"note": "a\x01\n\tb"'),
        (b'"note": ""', b'"note": "\xff\xfe"'), (b'"note": ""', b'"note": "\\ud800"'),
        (b'"note": ""', b'"note": null'), (b'"note": ""', b'"note": ' + b"[" * 500 + b"]" * 500),
    ],
)  # fmt: skip
def test_nothing_is_lost_where_values_can_be_read(
    old: bytes, new: bytes, block_size: int
) -> None:
    events = sample()
    events[2]["args"] |= {"Fwd thread id": 0, "bandwidth": 1, "note": ""}
    events[7]["args"] |= {"bandwidth": 1, "note": ""}
    data = as_document(events)
    assert old in data
    trace = read_bytes(data.replace(old, new), block_size=block_size)
    assert kernel_names(trace) == ALL
    assert trace.kernels.start_ns[0] == 1060125
    assert trace.kernels.duration_ns[0] == 10500
    assert trace.kernels.stream[0] == 7
    assert trace.health.complete
    assert trace.health.events == len(events)


@pytest.mark.parametrize("block_size", [200, 1 << 20])
@pytest.mark.parametrize(
    ("old", "bad"),
    [
        *((b"gemm_b", name) for name in (b'a "quoted" name', b"back\\slash \\x", b'ends"')),
        *((b"gemm_b", name) for name in (b"\\U0001", b'a", "b')),
        *((b"1130", time) for time in (b"", b"nan", b"-nan", b"inf", b"NaN", b"{}", b"1e999")),
        *((b"1130", time) for time in (b"9" * 30, b'"soon"', b"null")),
        *((b'"kernel",\n      "name": "gemm_b"', b'%b, "name": "gemm_b"' % category)
          for category in (b"[1]", b"{}", b"7", b"true")),
    ],
)  # fmt: skip
def test_one_bad_value_costs_one_kernel(
    old: bytes, bad: bytes, block_size: int
) -> None:
    data = as_document(sample())
    assert old in data
    trace = read_bytes(data.replace(old, bad), block_size=block_size)
    assert kernel_names(trace) == ["gemm_a", "gemm_c"]
    assert trace.health.skipped_events == 1
    assert not trace.health.complete


@pytest.mark.parametrize(
    ("room", "kernels"), [(0, ["gemm_a", "gemm_c"]), (-1, ["gemm_c"])]
)
def test_long_damage_is_not_repaired(
    room: int, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    event = json.dumps(sample()[7]).encode().replace(b"10.5", b'"10.5"')
    rest = b", ".join(
        json.dumps(one).encode() for one in (*sample()[:7], *sample()[12:])
    )
    monkeypatch.setattr(collector, "_LONG_DAMAGE", len(event) + room)
    trace = read_bytes(b'{"traceEvents": [%b, %b]}' % (event, rest))
    assert (kernel_names(trace), trace.health.skipped_events) == (
        kernels,
        2 - len(kernels),
    )


def test_damaged_metadata_is_jumped_over() -> None:
    data = as_document(sample()).replace(
        b'"schemaVersion": 1', b'"LOG": [unquoted "text], '
    )
    trace = read_bytes(data)
    assert kernel_names(trace) == ALL
    assert trace.health.notes == [
        "the metadata is damaged; the events after it were found"
    ]


def test_cut_at_any_byte_keeps_every_whole_event() -> None:
    data = as_document(sample())
    begin = data.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    for end in range(begin, len(data) - 2, 7):
        trace = read_bytes(data[:end], block_size=300)
        whole = [
            name
            for name in ALL
            if 0 <= data.index(name.encode()) < data.rfind(b"\n    },", 0, end)
        ]
        assert kernel_names(trace)[: len(whole)] == whole
        assert trace.health.truncated
        assert trace.health.skipped_events == 0


def test_cut_gzip_keeps_what_it_gives() -> None:
    packed = gzip.compress(as_document(sample()))
    for end in range(len(packed) - 12, len(packed)):
        trace = read_bytes(packed[:end])
        assert trace.health.truncated
    assert kernel_names(read_bytes(packed[:-4])) == ALL


def test_corrupt_gzip_says_so() -> None:
    packed = gzip.compress(as_document(sample()), mtime=0) + gzip.compress(b"{}")
    trace = read_bytes(packed[:-6] + b"\0\0" + packed[-4:])
    assert kernel_names(trace) == ALL
    assert trace.health.notes == ["the gzip data is corrupt"]
    assert not trace.health.complete


def test_second_document_is_reported_and_not_read() -> None:
    trace = read_bytes(as_document(sample()) * 2, block_size=900)
    assert kernel_names(trace) == ALL
    assert trace.health.extra_documents == 1
    assert not trace.health.complete


def test_missing_end_mark_alone_is_no_damage() -> None:
    assert read_bytes(as_document(sample()[:-1])).health.complete


def test_boundary_inside_an_event_is_no_boundary() -> None:
    events = sample()
    events[0]["args"]["list"] = [{"ph": 1}, {"ph": 2}, {"ph": 3}]
    data = json.dumps({"traceEvents": events}, separators=(",", ":")).encode()
    for size in (10, 250, 1 << 20):
        trace = read_bytes(data, block_size=size)
        assert kernel_names(trace) == ALL
        assert trace.health.complete


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"", "trace.json is empty."),
        (
            b"hello",
            "trace.json is not JSON.",
        ),
        (b"\x00\x01\x02", "trace.json is not JSON."),
        (b"   \n", "trace.json is not JSON."),
        (
            b"12",
            "trace.json is not JSON.",
        ),
        (b"{}", "trace.json is not a trace: no list of events in it."),
        (b"[]", "trace.json is not a trace: no list of events in it."),
        (b"[1, 2]", "trace.json is not a trace: no list of events in it."),
        (b'[{"a": 1}]', "trace.json is not a trace: no list of events in it."),
        (
            b'{"a": {"traceEvents": 3}}',
            "trace.json is not a trace: no list of events in it.",
        ),
        (b'{"traceEvents": 3}', "trace.json is not a trace: no list of events in it."),
        (
            b'{"schemaVersion": 1, "dev',
            "trace.json is not a trace: no list of events in it.",
        ),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, fact: str) -> None:
    with pytest.raises(InputError) as caught:
        read_bytes(data)
    assert caught.value.fact == fact
    assert caught.value.hint


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


def test_gzip_bomb_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "RATIO_FREE", 1 << 20)
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20) + b"]}")
    with pytest.raises(InputError, match="decompression bomb"):
        read_bytes(bomb)


def test_zstd_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(InputError) as caught:
        source.Source(io.BytesIO(source.ZSTD_MAGIC + b"rest"), "a.json.zst")
    assert "pip install zstandard" in caught.value.hint


def test_kernels_that_a_trace_holds_twice_are_named() -> None:
    events = sample()
    kernels = [event for event in events if event.get("cat") == "kernel"]
    twice = read_bytes(as_document([*events, kernels[0], kernels[1]]))
    (remark,) = [one for one in twice.remarks if "twice" in one]
    assert remark.startswith("2 kernels are recorded twice")
    assert not [
        one for one in read_bytes(as_document(events)).remarks if "twice" in one
    ]


@pytest.mark.parametrize(("skipped", "damaged"), [(10, False), (11, True)])
def test_more_than_a_tenth_that_cannot_be_read_may_outweigh_the_rest(
    skipped: int, *, damaged: bool
) -> None:
    health = Health(events=100 - skipped, skipped_events=skipped)
    assert health.too_damaged is damaged

"""Events in two halves, and what the profiler says it lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fp8verify import inspect
from tests.hand_built import TraceBuilder
from tests.unit.trace_events import Event, as_document, kernel_names, read_bytes, sample


def halves(event: Event) -> tuple[Event, Event]:
    begin = {key: value for key, value in event.items() if key != "dur"} | {"ph": "B"}
    end = {key: event[key] for key in ("pid", "tid")} | {"ph": "E"}
    return begin, end | {"ts": event["ts"] + event["dur"]}


def split(events: list[Event]) -> list[Event]:
    """Write every complete event as two halves, in the order of time."""
    whole = [event for event in events if event["ph"] == "X"]
    timed = [(half["ts"], half) for event in whole for half in halves(event)]
    rest = [event for event in events if event["ph"] != "X"]
    return [half for _, half in sorted(timed, key=lambda pair: pair[0])] + rest


@pytest.mark.parametrize("block_size", [300, 1 << 20])
def test_halves_read_as_the_whole(block_size: int, tmp_path: Path) -> None:
    events = sample()
    for offset, event in enumerate(events):  # no two events of a thread end at one time
        event["ts"] += offset / 1000
    whole = read_bytes(tmp_path, as_document(events))
    joined = read_bytes(tmp_path, as_document(split(events)), block_size=block_size)
    assert sorted(kernel_names(joined)) == sorted(kernel_names(whole))
    assert sorted(joined.kernels.start_ns) == sorted(whole.kernels.start_ns)
    assert sorted(joined.kernels.duration_ns) == sorted(whole.kernels.duration_ns)
    assert joined.steps == whole.steps
    assert set(joined.ops) == set(whole.ops)
    assert joined.health.complete
    complete = sum(event["ph"] == "X" for event in events)
    assert joined.health.events == whole.health.events + complete


def test_nanoseconds_of_absolute_stamps_survive_the_halves(tmp_path: Path) -> None:
    begin, end = halves(sample()[7])
    data = as_document([begin | {"ts": "@1"}, end | {"ts": "@2"}])
    data = data.replace(b'"@1"', b"1790857026000123.456").replace(b'"@2"', b"1790857026000133.457")
    trace = read_bytes(tmp_path, data)
    assert trace.kernels.start_ns[0] == 1790857026000123456
    assert trace.kernels.duration_ns[0] == 10001


@pytest.mark.parametrize("half", [0, 1])
def test_half_an_event_is_counted_as_lost(half: int, tmp_path: Path) -> None:
    events = sample()
    events[7:8] = [halves(events[7])[half]]
    trace = read_bytes(tmp_path, as_document(events))
    assert kernel_names(trace) == ["gemm_b", "gemm_c"]
    assert trace.health.skipped_events == 1
    assert trace.health.events == len(events) - 1


@pytest.mark.parametrize("ts", [b'"soon"', b"null", b"[1]", b"1e999999", b"NaN"])
@pytest.mark.parametrize("which", ["B", "E"])
def test_halves_with_odd_times_are_counted_as_lost(which: str, ts: bytes, tmp_path: Path) -> None:
    events = sample()
    begin, end = halves(events[7])
    events[7:8] = [begin, end]
    {"B": begin, "E": end}[which]["ts"] = "@ts"
    trace = read_bytes(tmp_path, as_document(events).replace(b'"@ts"', ts))
    assert kernel_names(trace) == ["gemm_b", "gemm_c"]
    assert trace.health.skipped_events == 1


def test_an_operator_without_duration_has_none(tmp_path: Path) -> None:
    events = sample()
    del events[2]["dur"]
    trace = read_bytes(tmp_path, as_document(events))
    assert len(trace.kernels) == 3
    assert trace.health.complete


LOG = "{}:2024-05-22 17:15:22 1:1 CuptiActivityApi.cpp:9] {}"


@pytest.mark.parametrize(
    ("level", "line", "note", "loss"),
    [
        ("WARNING", "Dropped 17 activity records", "CUPTI dropped 17 activity records", True),
        (
            "WARNING",
            "Exceeded max GPU buffer count (33 >= 33) - terminating tracing",
            "the profiler's GPU buffers (33) were full and tracing ended early",
            True,
        ),
        (
            "INFO",
            "Record counts: Out-of-range = 0, CUPTI stopped early? = 1",
            "the profiler stopped recording the GPU early",
            True,
        ),
        (
            "INFO",
            "Record counts: Out-of-range = 4181, CUPTI stopped early? = 0",
            "the profiler left out 4181 records as outside of its window",
            False,
        ),
        (
            "ERROR",
            "function cbapi_->initCallbackApi() failed with error CUPTI_ERROR_NOT_INITIALIZED (15)",
            "the profiler met CUPTI_ERROR_NOT_INITIALIZED",
            False,
        ),
    ],
)
def test_what_the_profiler_lost_is_noted(
    level: str, line: str, note: str, loss: bool, tmp_path: Path
) -> None:
    logged = {level: [LOG.format(level, "token=secret"), LOG.format(level, line)]}
    trace = read_bytes(tmp_path, as_document(sample(), **logged))
    assert trace.health.notes == [note]
    assert trace.health.complete is not loss


@pytest.mark.parametrize("log", [{}, 3, "Dropped 17 activity records", [None, 3, {"a": 1}]])
def test_an_odd_log_is_ignored(log: Any, tmp_path: Path) -> None:
    assert read_bytes(tmp_path, as_document(sample(), WARNING=log)).health.notes == []


def test_dropped_records_leave_absence_open(tmp_path: Path) -> None:
    build = TraceBuilder().linear(64, 32, 16, fp8=False)
    build.head["WARNING"] = [LOG.format("WARNING", "Dropped 17 activity records")]
    report = inspect(build.write(tmp_path / "trace.json"))
    assert report.verdict == "INCONCLUSIVE"
    finding = next(f for f in report.findings if f.code == "damaged-trace")
    assert finding.message == (
        "trace.json is incomplete, as the profiler itself says (CUPTI dropped 17 activity records)"
    )

"""Half events, and records that the profiler says it lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fp8verify import inspect
from tests.hand_built import TraceBuilder
from tests.unit.trace_events import as_document, read_bytes, sample


@pytest.mark.parametrize("half", ["B", "E"])
def test_half_an_event_is_counted_as_lost(half: str) -> None:
    events = sample()
    events[7] = {key: value for key, value in events[7].items() if key != "dur"} | {
        "ph": half
    }
    health = read_bytes(as_document(events)).health
    assert (health.skipped_events, health.complete) == (1, False)


def test_an_operator_without_duration_has_none() -> None:
    events = sample()
    del events[2]["dur"]
    trace = read_bytes(as_document(events))
    assert len(trace.kernels) == 3
    assert trace.health.complete


LOG = "{}:2024-05-22 17:15:22 1:1 CuptiActivityApi.cpp:9] {}"


@pytest.mark.parametrize(
    ("level", "line", "note", "loss"),
    [
        ("WARNING", "Dropped 17 activity records", "CUPTI dropped 17 activity records", True),
        ("WARNING", "Exceeded max GPU buffer count (33 >= 33) - terminating tracing",
         "the profiler's GPU buffers (33) were full and tracing ended early", True),
        ("INFO", "Record counts: Out-of-range = 0, CUPTI stopped early? = 1",
         "the profiler stopped recording the GPU early", True),
        ("INFO", "Record counts: Out-of-range = 4181, CUPTI stopped early? = 0",
         "the profiler left out 4181 records as outside of its window", False),
        ("ERROR",
         "function cbapi_->initCallbackApi() failed with error CUPTI_ERROR_NOT_INITIALIZED (15)",
         "the profiler met CUPTI_ERROR_NOT_INITIALIZED", False),
    ],
)  # fmt: skip
def test_what_the_profiler_lost_is_noted(
    level: str, line: str, note: str, loss: bool
) -> None:
    logged = {level: [LOG.format(level, "token=secret"), LOG.format(level, line)]}
    trace = read_bytes(as_document(sample(), **logged))
    assert trace.health.notes == [note]
    assert trace.health.complete is not loss


@pytest.mark.parametrize(
    "log", [{}, 3, "Dropped 17 activity records", [None, 3, {"a": 1}]]
)
def test_an_odd_log_is_ignored(log: Any) -> None:
    assert read_bytes(as_document(sample(), WARNING=log)).health.notes == []


def test_dropped_records_leave_absence_open(tmp_path: Path) -> None:
    build = TraceBuilder().linear(64, 32, 16, fp8=False)
    build.head["WARNING"] = [LOG.format("WARNING", "Dropped 17 activity records")]
    report = inspect(build.write(tmp_path / "trace.json"))
    assert report.verdict == "INCONCLUSIVE"
    finding = next(f for f in report.findings if f.code == "damaged-trace")
    assert finding.message == (
        "trace.json is incomplete, as the profiler itself says (CUPTI dropped 17 activity records)"
    )

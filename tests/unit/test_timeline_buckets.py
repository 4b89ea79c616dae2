"""Kernels spread over buckets, and buckets drawn as columns."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.analysis.gather import gather
from fp8verify.analysis.timeline import BUCKETS
from fp8verify.model.steps import TimelineReport
from fp8verify.report.html import TIMELINE_HEIGHT, timeline
from fp8verify.trace import Trace
from tests.hand_built import BF16, BF16_KERNEL, FP8, FP8_KERNEL, TraceBuilder

_times = st.floats(0, 1e6, allow_nan=False, allow_infinity=False)


def _buckets(trace: Trace) -> TimelineReport:
    (found,) = gather(trace).buckets
    return found


def test_all_time_is_in_the_bucket_of_its_kind(build: TraceBuilder) -> None:
    build.step(4).launch(FP8_KERNEL, types=(FP8, FP8), us=30).launch(
        "void copy_kernel()", None, us=20
    )
    found = _buckets(
        build.step(5).launch(BF16_KERNEL, types=(BF16, BF16), us=40).read()
    )
    assert sum(found.fp8_us) == pytest.approx(30)
    assert sum(found.other_precision_us) == pytest.approx(40)
    assert sum(found.rest_us) == pytest.approx(20)
    assert found.bucket_us * BUCKETS == pytest.approx(240, abs=1)
    assert [step for step, *_ in found.steps] == [4, 5]
    assert found.steps[1][1:] == (200, 240)


def test_a_kernel_longer_than_a_bucket_is_cut_at_their_ends(
    build: TraceBuilder,
) -> None:
    found = _buckets(build.launch(FP8_KERNEL, us=80).launch(BF16_KERNEL, us=20).read())
    assert found.bucket_us == 0.5
    assert found.fp8_us == (0.5,) * 160 + (0.0,) * 80


def test_a_trace_without_kernels_has_no_timeline() -> None:
    assert gather(Trace(source="trace.json")).buckets == ()


@given(st.lists(st.tuples(_times, _times, _times, _times), min_size=1, max_size=20))
def test_columns_stay_inside_the_picture(rows: list[tuple[float, ...]]) -> None:
    fp8, high, unknown, rest = (tuple(column) for column in zip(*rows, strict=True))
    report = TimelineReport(
        bucket_us=1000, fp8_us=fp8, other_precision_us=high, unknown_precision_us=unknown,
        rest_us=rest, steps=((1, 0.0, 500.0),),
    )  # fmt: skip
    for path in timeline(report).bands.values():
        for _, below, height in re.findall(r"M(\d+) (-?[\d.]+)h1v-([\d.]+)h-1z", path):
            assert float(below) <= TIMELINE_HEIGHT
            assert float(below) - float(height) >= -0.2

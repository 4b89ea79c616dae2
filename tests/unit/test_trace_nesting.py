"""Ranges of a thread are put in order, in whatever order they were recorded."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from fp8verify.trace.contexts import start_order

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.sampled_from([-1, 0])))


@given(ranges=RANGES)
def test_order_is_by_start_then_enclosing_first(ranges: list[tuple[int, int, int]]) -> None:
    start = array("q", [begin for begin, _, _ in ranges])
    end = array("q", [begin + length for begin, length, _ in ranges])
    shape = array("i", [kind for _, _, kind in ranges])
    ordered = start_order(array("i", range(len(ranges))), start, end, shape)
    assert list(ordered) == sorted(
        range(len(ranges)), key=lambda row: (start[row], -end[row], shape[row] >= 0)
    )

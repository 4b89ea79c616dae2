"""Ranges of a thread are put in order, in whatever order they were recorded."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.trace import nesting
from fp8verify.trace.columns import OpColumns
from fp8verify.trace.nesting import link_parents, link_thread, start_order

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


@given(ranges=RANGES, instants=st.lists(st.integers(0, 36)).map(sorted), usual=st.booleans())
def test_the_quick_way_links_as_the_sure_one(
    ranges: list[tuple[int, int, int]], instants: list[int], usual: bool
) -> None:
    if usual:  # as Kineto writes them: one at a time, operators by their start, then annotations
        one_each = {begin: (begin, length, kind) for begin, length, kind in ranges}.values()
        ranges = sorted(one_each, key=lambda found: (found[2] < 0, found[0]))
    ops, rows = OpColumns(), array("i", range(len(ranges)))
    for begin, length, kind in ranges:
        ops.start.append(begin)
        ops.end.append(begin + length)
        ops.inputs.append(kind)
    annotations = sorted((row for row in rows if ops.inputs[row] < 0), key=ops.start.__getitem__)
    quick, sure = (array("i", [-1]) * len(rows) for _ in range(2))

    members = array("i", [row for row in rows if row not in annotations])
    found = link_thread(members, annotations, ops, quick, instants)

    ordered = start_order(rows, ops.start, ops.end, ops.inputs)
    assert found == link_parents(ordered, ops.start, ops.end, sure, instants)
    assert quick == sure


def test_ranges_as_kineto_writes_them_are_linked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = OpColumns()
    for begin, end, kind in ((10, 20, 0), (12, 15, 0), (30, 40, 0), (5, 50, -1)):
        ops.start.append(begin)
        ops.end.append(end)
        ops.inputs.append(kind)
    parent = array("i", [-1]) * 4
    monkeypatch.setattr(nesting, "start_order", None)

    found = link_thread(array("i", range(3)), [3], ops, parent, [13, 45, 60])
    assert found == [1, 3, -1]
    assert list(parent) == [3, 0, 3, -1]

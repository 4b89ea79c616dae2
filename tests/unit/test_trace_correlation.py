"""Kernels are followed to the operator and the step that launched them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.trace_events import (
    KernelRow,
    annotation,
    as_document,
    kernel,
    launch,
    op,
    read_bytes,
    sample,
    view,
)


def rows(events: list[dict[str, Any]]) -> list[KernelRow]:
    return view(read_bytes(as_document(events))).kernels


def only(events: list[dict[str, Any]]) -> KernelRow:
    [row] = rows(events)
    return row


def test_external_id_names_the_operator() -> None:
    first, _, third = rows(sample())
    assert first.op is not None
    assert first.op.name == "aten::mm"
    assert first.op.types == ("c10::BFloat16",)
    assert first.op.dims == ((8, 16),)
    assert first.op.parents == ("aten::linear",)
    assert not first.op.backward
    assert third.op is not None
    assert third.op.backward


@pytest.mark.parametrize(
    ("events", "operator", "parents"),
    [
        pytest.param([op("outer", 0, 100, 1), op("inner", 10, 20, 2), op("later", 40, 20, 3),
             op("other thread", 15, 5, 4, tid=2), launch(9, 16), kernel("k", 50, 5, 9)],
            "inner", ("outer",), id="innermost operator of the launch's thread"),
        pytest.param([op("aten::mm", 0, 100, 1), annotation("range", 10, 50, external_id=2),
             launch(9, 20), kernel("k", 50, 5, 9, **{"External id": 2})],
            "aten::mm", (), id="the id of an annotation gives way to the launch"),
        pytest.param([op("unrelated", 0, 5, 9), op("aten::mm", 10, 20, 1), launch(9, 15),
             kernel("k", 20, 5, 9, **{"External id": 9})],
            "aten::mm", (), id="an id equal to the correlation is a placeholder"),
        pytest.param([op("outer", 0, 9, 1), op("inner", 1, 9, 2), launch(9, 5),
             kernel("k", 6, 1, 9)], "inner", ("outer",), id="rounded to end after the outer range"),
        pytest.param([op("first", 0, 10, 1), op("second", 10, 10, 2), launch(9, 12),
             kernel("k", 13, 1, 9)], "second", (), id="neighbours that share an instant"),
        pytest.param([op("first", 0, 10, 1), op("instant", 10, 0, 2),
             kernel("k", 13, 1, 9, **{"External id": 2})],
            "instant", ("first",), id="one of no length at the end of another"),
        pytest.param([*(op(f"depth {i}", i, 200 - 2 * i, i + 1) for i in range(40)), launch(9, 50),
             kernel("k", 60, 1, 9)],
            "depth 39", tuple(f"depth {i}" for i in range(38, 22, -1)), id="sixteen parents"),
        *(
            ([annotation(name, 0, 50), op("aten::mm", 10, 20, 1), launch(9, 15),
              kernel("k", 20, 5, 9)], "aten::mm", (shown,))
            for name, shown in (
                ("## Call CompiledFxGraph fqv3dn2rdeyop ##", "## Call CompiledFxGraph ##"),
                ("Torch-Compiled Region: 12/3", "Torch-Compiled Region: 12/3"),
                ("## forward ##", "## forward ##"),
            )
        ),
    ],
)  # fmt: skip
def test_the_operator_of_a_kernel_and_its_parents(
    events: list[dict[str, Any]], operator: str, parents: tuple[str, ...]
) -> None:
    row = only(events)
    assert row.op is not None
    assert (row.op.name, row.op.parents, row.launch) == (operator, parents, 2)


@pytest.mark.parametrize(
    ("events", "launched"),
    [
        ([kernel("k", 1, 1, 9)], 0),
        ([launch(9, 0), kernel("k", 1, 1, 9)], 1),
        ([annotation("range", 0, 9), launch(9, 1), kernel("k", 2, 1, 9)], 1),
        ([op("o", 0, 9, 1), launch(9, 1), kernel("k", 2, 1, 9)], 2),
        (
            [
                op("graph", 0, 9, 1),
                launch(9, 1),
                *(kernel("k", 10 + i, 1, 9) for i in range(5)),
            ],
            2,
        ),
    ],
)
def test_how_far_back_a_kernel_leads(
    events: list[dict[str, Any]], launched: int
) -> None:
    trace = read_bytes(as_document(events))
    assert set(trace.kernels.launch) == {launched}
    assert bool(trace.health.kernels_without_launch) == (launched == 0)
    assert bool(trace.health.kernels_without_op) == (launched < 2)


def test_step_is_that_of_the_launch_on_any_thread() -> None:
    """`gemm_c` runs after step 4 has ended on the CPU, launched by autograd's thread."""
    assert [row.step for row in rows(sample())] == [3, 4, 4]


def test_step_seen_on_two_threads_counts_once_as_the_longer() -> None:
    events = [
        annotation("ProfilerStep#3", 0, 10),
        annotation("ProfilerStep#3", 0, 90, tid=2),
    ]
    trace = read_bytes(as_document(events))
    assert [(s.number, s.start_ns, s.end_ns) for s in trace.steps] == [(3, 0, 90_000)]


def test_steps_are_those_of_one_profiler() -> None:
    """A script's profiler with a schedule counts beside the window of `fp8verify run`."""
    window = [annotation(f"ProfilerStep#{10 + n}", 1000 * n, 1000) for n in range(3)]
    script = [
        annotation(f"ProfilerStep#{9 + n}", 400 + 1000 * n, 1000) for n in range(2)
    ]
    cut = annotation("ProfilerStep#11", 2400, 600)
    last = annotation("busy", 2500, 5)
    for events in ([*window, *script, cut, last], [last, *script, cut, *window]):
        steps = read_bytes(as_document(events)).steps
        assert [(step.number, step.start_ns) for step in steps] == [
            (10, 0), (11, 10**6), (12, 2 * 10**6)
        ]  # fmt: skip


def test_ranges_of_one_number_that_lie_apart_are_steps_of_joined_recordings() -> None:
    events = [
        *(annotation("ProfilerStep#0", start, 50) for start in (0, 1000, 2000)),
        annotation("ProfilerStep#0", 1010, 20, tid=2),
        annotation("busy", 10, 5),
        annotation("busy", 1010, 5),
    ]
    steps = read_bytes(as_document(events)).steps
    assert [(step.number, step.end_ns - step.start_ns) for step in steps] == [
        (0, 50_000),
        (1, 50_000),
    ]


def test_kernel_launched_between_steps_has_none() -> None:
    events = [annotation("ProfilerStep#1", 0, 10), annotation("ProfilerStep#2", 30, 10)]
    assert only([*events, launch(9, 20), kernel("k", 32, 1, 9)]).step is None


@pytest.mark.parametrize(
    ("events", "backward"),
    [
        ([op("MmBackward0", 0, 9, 1)], True),
        ([op("CompiledFunctionBackward", 0, 9, 1)], True),
        ([op("autograd::engine::evaluate_function: X", 0, 9, 1)], True),
        ([op("aten::mm", 0, 9, 1, **{"Fwd thread id": 1, "Sequence number": 5})], True),
        (
            [op("aten::mm", 0, 9, 1, **{"Fwd thread id": 0, "Sequence number": 5})],
            False,
        ),
        ([op("BackwardsCompatible", 0, 9, 1)], False),
        ([annotation("ForwardBackward", 0, 9)], False),
    ],
)
def test_backward_shows_on_any_enclosing_operator(
    events: list[dict[str, Any]], backward: bool
) -> None:
    inner = [op("aten::copy_", 2, 5, 2), launch(9, 3), kernel("k", 4, 1, 9)]
    row = only(events + inner)
    assert row.op is not None
    assert row.op.backward is backward


def test_tensor_lists_have_no_shape_of_their_own() -> None:
    dims = [[[4, 4], [8]], [16, 2], []]
    events = [
        op("aten::cat", 0, 9, 1, **{"Input Dims": dims}),
        launch(9, 3),
        kernel("k", 4, 1, 9),
    ]
    row = only(events)
    assert row.op is not None
    assert row.op.dims == ((), (16, 2), ())


def test_order_of_the_file_does_not_matter() -> None:
    events = sample()
    expected = sorted(rows(events), key=lambda row: row.name)
    random.Random(5).shuffle(events)
    assert sorted(rows(events), key=lambda row: row.name) == expected


@pytest.mark.parametrize("duration", [-1.0, 1_200_930.0, 18446744073709551.0])
def test_absurd_duration_is_counted_and_takes_no_time(duration: float) -> None:
    events = [*sample(), kernel("broken", 1220, duration, 99)]
    trace = read_bytes(as_document(events))
    assert trace.health.bad_durations == 1
    assert list(trace.kernels.duration_ns) == [10_500, 10_000, 10_000, 0]


def test_an_empty_step_at_the_end_is_none() -> None:
    full = [
        annotation("ProfilerStep#1", 0, 100),
        op("mm", 10, 20, 1),
        launch(9, 16),
        kernel("k", 50, 5, 9),
    ]
    trailing = annotation("ProfilerStep#2", 100, 1)
    trace = read_bytes(as_document([*full, trailing]))
    assert [step.number for step in trace.steps] == [1]
    trace = read_bytes(as_document([*full, trailing, launch(10, 100.5)]))
    assert [step.number for step in trace.steps] == [1, 2]

"""Kernels joined to the layers that `run --layers` named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.trace import read_trace
from tests.unit.trace_events import Event, annotation, as_document, kernel, launch, op

MAIN, AUTOGRAD = 1, 2
SEQUENCE, FORWARD = "Sequence number", "Fwd thread id"


def layers(tmp_path: Path, *events: Event) -> dict[str, str | None]:
    """Return the layer of each kernel by the kernel's name."""
    path = tmp_path / "trace.json"
    path.write_bytes(as_document(list(events)))
    trace = read_trace(path, layers=True)
    return {
        trace.names[name]: trace.layers[layer] if layer >= 0 else None
        for name, layer in zip(trace.kernels.name, trace.kernels.layer, strict=True)
    }


def runs(
    name: str, ts: float, correlation: int, external_id: int, *, tid: int = MAIN
) -> list[Event]:
    """Launch a kernel inside the operator of that id."""
    correlation += 100  # old traces have ids that equal the operators' and mean nothing
    return [
        launch(correlation, ts, tid=tid),
        kernel(name, ts + 500, 5, correlation, **{"External id": external_id}),
    ]


def node(name: str, ts: float, dur: float, external_id: int, number: int, **more: int) -> Event:
    """Return an operator that autograd runs, on its own thread."""
    thread = {FORWARD: more.get("forward", 1)}
    where = {"tid": more.get("tid", AUTOGRAD)}
    return op(name, ts, dur, external_id, **{SEQUENCE: number, **thread, **where})


def forward(
    layer: str, ts: float, external_id: int, number: int, *, tid: int = MAIN
) -> list[Event]:
    """Return a product of 20 µs inside the annotation of a layer."""
    return [
        annotation(f"fp8verify:{layer}", ts, 40, tid=tid),
        op("aten::mm", ts + 10, 20, external_id, tid=tid, **{SEQUENCE: number, FORWARD: 0}),
    ]


def backward(ts: float, external_id: int, number: int, **more: int) -> list[Event]:
    """Return the node of that number with a product of 20 µs in it."""
    tid = more.get("tid", AUTOGRAD)
    name = "autograd::engine::evaluate_function: MmBackward0"
    return [
        node(name, ts, 40, external_id + 1, number, **more),
        node("MmBackward0", ts + 5, 30, external_id + 2, number, **more),
        op("aten::mm", ts + 10, 20, external_id, tid=tid),
    ]


def test_forward_kernels_have_the_layer_around_them(tmp_path: Path) -> None:
    found = layers(
        tmp_path, *forward("up", 1000, 1, 5), *runs("in", 1012, 1, 1),
        op("aten::mm", 1050, 20, 2), *runs("out", 1052, 2, 2),
    )  # fmt: skip
    assert found == {"in": "up", "out": None}


def test_of_nested_layers_the_innermost_counts(tmp_path: Path) -> None:
    found = layers(
        tmp_path, annotation("fp8verify:lora", 990, 200), *forward("lora.base", 1000, 1, 5),
        *runs("base", 1012, 1, 1), op("aten::mm", 1100, 20, 2), *runs("adapter", 1102, 2, 2),
    )  # fmt: skip
    assert found == {"base": "lora.base", "adapter": "lora"}


def test_a_launch_without_an_operator_of_its_own_has_its_place_in_time(tmp_path: Path) -> None:
    found = layers(
        tmp_path, op("CheckpointFunction", 990, 200, 9), annotation("fp8verify:up", 1000, 40),
        *runs("triton", 1010, 1, 9), *runs("other", 1060, 2, 9),
    )  # fmt: skip
    assert found == {"triton": "up", "other": None}


def test_a_launch_outside_of_the_operator_counts_less_than_the_operator(tmp_path: Path) -> None:
    found = layers(
        tmp_path, *forward("up", 1000, 1, 5), annotation("fp8verify:down", 1100, 40),
        *runs("in", 1110, 1, 1),
    )  # fmt: skip
    assert found == {"in": "up"}


def test_operators_called_like_layers_name_nothing(tmp_path: Path) -> None:
    found = layers(tmp_path, op("fp8verify:up", 1000, 40, 1), *runs("in", 1010, 1, 1))
    assert found == {"in": None}


def test_backward_kernels_have_the_layer_that_made_their_node(tmp_path: Path) -> None:
    found = layers(
        tmp_path, *forward("up", 1000, 1, 5), *forward("down", 1100, 2, 6),
        *backward(2000, 10, 6), *runs("down grad", 2012, 1, 10, tid=AUTOGRAD),
        *backward(2100, 20, 5), *runs("up grad", 2112, 2, 20, tid=AUTOGRAD),
        *backward(2200, 30, 7), *runs("lost", 2212, 3, 30, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"down grad": "down", "up grad": "up", "lost": None}


def test_the_last_operator_of_a_number_made_the_node(tmp_path: Path) -> None:
    """One before the layer that needs no node carries the same number."""
    same = {SEQUENCE: 5, FORWARD: 0}
    found = layers(
        tmp_path, op("aten::to", 980, 5, 3, **same), *forward("up", 1000, 1, 5),
        *backward(2000, 10, 5), *runs("up grad", 2012, 1, 10, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"up grad": "up"}
    after = op("aten::mm", 1060, 5, 3, **same)
    found = layers(
        tmp_path, *forward("up", 1000, 1, 5), after,
        *backward(2000, 10, 5), *runs("no layer's", 2012, 1, 10, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"no layer's": None}


def test_a_number_of_two_layers_is_joined_to_neither(tmp_path: Path) -> None:
    found = layers(
        tmp_path, *forward("up", 1000, 1, 5), *forward("down", 1100, 2, 5),
        *backward(2000, 10, 5), *runs("grad", 2012, 1, 10, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"grad": None}


def test_a_number_of_a_layer_and_of_what_encloses_it_is_the_inner_ones(tmp_path: Path) -> None:
    found = layers(
        tmp_path, annotation("fp8verify:lora", 980, 100),
        op("aten::to", 985, 5, 3, **{SEQUENCE: 5, FORWARD: 0}), *forward("base", 1000, 1, 5),
        *backward(2000, 10, 5), *runs("grad", 2012, 1, 10, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"grad": "base"}


def recomputed() -> list[Event]:
    """Two layers, of which autograd's thread runs one forward again, under a number of `down`."""
    return [
        *forward("up", 1000, 1, 5), *forward("down", 1100, 2, 6),
        node("CheckpointFunctionBackward", 1990, 300, 40, 4),
        *forward("up", 2000, 3, 6, tid=AUTOGRAD), *runs("again", 2012, 1, 3, tid=AUTOGRAD),
    ]  # fmt: skip


def test_a_recomputed_forward_has_its_own_annotation(tmp_path: Path) -> None:
    """Threads count their numbers independently: number 6 is of two layers, on two threads."""
    found = layers(
        tmp_path, *recomputed(),
        *backward(2400, 10, 6), *runs("down grad", 2412, 2, 10, tid=AUTOGRAD),
        *backward(2500, 20, 5), *runs("up grad", 2512, 3, 20, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"again": "up", "down grad": "down", "up grad": "up"}


def test_a_graph_made_on_autograds_thread_is_looked_for_there(tmp_path: Path) -> None:
    """Reentrant checkpointing: the nodes name autograd's thread as that of their forward pass."""
    more = [
        *forward("gate", 2050, 4, 7, tid=AUTOGRAD),
        *backward(2150, 60, 7, forward=2), *runs("gate grad", 2162, 4, 60, tid=AUTOGRAD),
    ]  # fmt: skip
    found = layers(
        tmp_path, *recomputed(), *more,
        *backward(2100, 50, 6, forward=2), *runs("up grad", 2112, 5, 50, tid=AUTOGRAD),
        *backward(2400, 10, 6), *runs("down grad", 2412, 2, 10, tid=AUTOGRAD),
        *backward(2500, 20, 5),
    )  # fmt: skip
    expected = {"again": "up", "gate grad": "gate", "up grad": "up", "down grad": "down"}
    assert found == expected


def test_threads_that_cannot_be_told_apart_join_nothing(tmp_path: Path) -> None:
    found = layers(
        tmp_path, *forward("up", 1000, 1, 5), *forward("down", 1000, 2, 5, tid=3),
        *backward(2000, 10, 5), *runs("grad", 2012, 1, 10, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"grad": None}


def test_an_annotation_that_was_left_open_names_nothing(tmp_path: Path) -> None:
    step = annotation("ProfilerStep#1", 900, 300)
    left_open = annotation("fp8verify:raised", 950, 5000)
    found = layers(
        tmp_path, step, left_open, op("aten::mm", 960, 10, 9), *runs("other", 962, 1, 9),
        *forward("up", 1000, 1, 5), *runs("in", 1012, 2, 1),
    )  # fmt: skip
    assert found == {"other": None, "in": "up"}


def test_a_step_that_an_optimizers_hook_began_hides_no_layer(tmp_path: Path) -> None:
    """Such a step lies in the optimizer's range and outlasts it."""
    found = layers(
        tmp_path, op("Optimizer.step#AdamW.step", 900, 60, 8),
        annotation("ProfilerStep#2", 950, 600),
        *forward("up", 1000, 1, 5), *runs("in", 1012, 1, 1),
    )  # fmt: skip
    assert found == {"in": "up"}


def test_sequences_that_lead_in_circles_end(tmp_path: Path) -> None:
    """A damaged trace may let nodes name what came after them."""
    found = layers(
        tmp_path, *forward("up", 3000, 1, 5),
        *backward(2000, 10, 5), *runs("grad", 2012, 1, 10, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"grad": None}


@pytest.mark.parametrize("number", ["-1", "99999999999999999999", '"x"', "null"])
def test_numbers_that_are_none_cost_at_most_their_event(tmp_path: Path, number: str) -> None:
    path = tmp_path / "trace.json"
    events = [*forward("up", 1000, 1, 4242), *runs("in", 1012, 1, 1)]
    path.write_bytes(as_document(events).replace(b"4242", number.encode()))
    trace = read_trace(path, layers=True)
    assert len(trace.kernels) == 1
    assert trace.health.skipped_events <= 1
    assert list(trace.kernels.layer) == [0]


def test_the_exact_reading_of_large_time_stamps_keeps_the_numbers(tmp_path: Path) -> None:
    late = 1.7e15 + 0.25
    found = layers(
        tmp_path, *forward("up", late, 1, 5), *runs("in", late + 12, 1, 1),
        *backward(late + 1000, 10, 5), *runs("grad", late + 1012, 2, 10, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"in": "up", "grad": "up"}


def test_layers_are_joined_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(as_document([*forward("up", 1000, 1, 5), *runs("in", 1012, 1, 1)]))
    trace = read_trace(path)
    assert len(trace.kernels) == 1
    assert not trace.kernels.layer
    assert not trace.layers

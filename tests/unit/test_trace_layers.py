"""Kernels joined to the layers that `run --layers` named."""

from __future__ import annotations

import pytest

from fp8verify.trace.tables import Site
from tests.unit.trace_events import (
    Event,
    annotation,
    as_document,
    kernel,
    launch,
    op,
    read_bytes,
)

MAIN, AUTOGRAD = 1, 2
SEQUENCE, FORWARD = "Sequence number", "Fwd thread id"


def layers(*events: Event) -> dict[str, str | None]:
    """Return the layer of each kernel by the kernel's name."""
    trace = read_bytes(as_document(list(events)), layers=True)
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


def node(
    name: str, ts: float, dur: float, external_id: int, number: int, **more: int
) -> Event:
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
        op(
            "aten::mm",
            ts + 10,
            20,
            external_id,
            tid=tid,
            **{SEQUENCE: number, FORWARD: 0},
        ),
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


GRAD = [*backward(2000, 10, 5), *runs("grad", 2012, 1, 10, tid=AUTOGRAD)]
UP = [*forward("up", 1000, 1, 5), *runs("in", 1012, 1, 1)]


def test_sites_say_call_node_and_which_made_which() -> None:
    """Of two layers with a linear around the product, and recordings that use a number again."""
    events: list[Event] = []
    for at, number in ((1000, 5), (1100, 6), (5000, 5)):
        ids = at + 1, at + 2, at + 3
        outer = op("aten::linear", at + 1, 60, ids[0], **{SEQUENCE: number, FORWARD: 0})
        inner = op("aten::mm", at + 5, 40, ids[1], **{SEQUENCE: number, FORWARD: 0})
        events += [outer, inner, op("aten::copy_", at + 10, 5, ids[2])]
        events += [*runs("k", at + 12, at, ids[2]), *runs("k", at + 30, at + 1, ids[1])]
        events += backward(at + 2000, at + 4, number)
        events += runs("k", at + 2012, at + 2, at + 4, tid=AUTOGRAD)
    events += [op("aten::add", 9000, 9, 9), *runs("k", 9001, 9000, 9)]
    trace = read_bytes(as_document(events))
    found = [trace.sites[site] for site in trace.kernels.site]
    nodes = [site.node for site in found[2:9:3]]
    assert len({*nodes, -1}) == 4
    calls = 0, 6, 12  # the rows of the linears
    assert found == [
        *(site for call, node in zip(calls, nodes, strict=True)
          for site in (Site(call, node, -1), Site(call, node, -1), Site(-1, -1, node))),
        Site(-1, -1, -1),
    ]  # fmt: skip


SAME = {SEQUENCE: 5, FORWARD: 0}  # what `forward("up", …)` carries


@pytest.mark.parametrize(
    ("events", "found"),
    [
        pytest.param([*UP, op("aten::mm", 1050, 20, 2), *runs("out", 1052, 2, 2)],
            {"in": "up", "out": None}, id="around"),
        pytest.param([annotation("fp8verify:lora", 990, 200), *forward("lora.base", 1000, 1, 5),
             *runs("base", 1012, 1, 1), op("aten::mm", 1100, 20, 2), *runs("adapter", 1102, 2, 2)],
            {"base": "lora.base", "adapter": "lora"}, id="the innermost"),
        pytest.param([op("CheckpointFunction", 990, 200, 9), annotation("fp8verify:up", 1000, 40),
             *runs("triton", 1010, 1, 9), *runs("other", 1060, 2, 9)],
            {"triton": "up", "other": None}, id="a launch without an operator of its own"),
        pytest.param([*forward("up", 1000, 1, 5), annotation("fp8verify:down", 1100, 40),
             *runs("in", 1110, 1, 1)], {"in": "up"}, id="a launch outside of the operator"),
        pytest.param([op("fp8verify:up", 1000, 40, 1), *runs("in", 1010, 1, 1)],
            {"in": None}, id="an operator called like a layer"),
        pytest.param([*forward("up", 1000, 1, 5), *forward("down", 1100, 2, 6), *GRAD,
             *backward(2100, 20, 6), *runs("down grad", 2112, 2, 20, tid=AUTOGRAD),
             *backward(2200, 30, 7), *runs("lost", 2212, 3, 30, tid=AUTOGRAD)],
            {"grad": "up", "down grad": "down", "lost": None}, id="the layer that made the node"),
        pytest.param([*forward("up", 1000, 1, 0), *backward(2000, 10, 0),
             *runs("grad", 2012, 1, 10, tid=AUTOGRAD), *forward("down", 1100, 2, -1),
             *backward(2100, 20, -1), *runs("lost", 2112, 2, 20, tid=AUTOGRAD)],
            {"grad": "up", "lost": None}, id="numbers from zero on"),
        pytest.param([op("aten::to", 980, 5, 3, **SAME), *forward("up", 1000, 1, 5), *GRAD],
            {"grad": "up"}, id="an operator before the layer that needs no node"),
        pytest.param([*forward("up", 1000, 1, 5), op("aten::mm", 1060, 5, 3, **SAME), *GRAD],
            {"grad": None}, id="an operator after the layer"),
        pytest.param([*forward("up", 1000, 1, 5), *forward("down", 1100, 2, 5), *GRAD],
            {"grad": None}, id="a number of two layers"),
        pytest.param([annotation("fp8verify:lora", 980, 100), op("aten::to", 985, 5, 3, **SAME),
             *forward("base", 1000, 1, 5), *GRAD],
            {"grad": "base"}, id="a number of a layer and of what encloses it"),
        pytest.param([*forward("up", 1000, 1, 5), *forward("down", 1000, 2, 5, tid=3), *GRAD],
            {"grad": None}, id="threads that cannot be told apart"),
        pytest.param([annotation("ProfilerStep#1", 900, 300),
             annotation("fp8verify:raised", 950, 5000), op("aten::mm", 960, 10, 9),
             *runs("other", 962, 2, 9), *UP],
            {"other": None, "in": "up"}, id="an annotation that was left open"),
        pytest.param([op("Optimizer.step#AdamW.step", 900, 60, 8),
             annotation("ProfilerStep#2", 950, 600), *UP],
            {"in": "up"}, id="a step that an optimizer's hook began"),
        pytest.param(  # a damaged trace may let nodes name what came after them
            [*forward("up", 3000, 1, 5), *GRAD], {"grad": None}, id="numbers that lead in circles",
        ),
    ],
)  # fmt: skip
def test_the_layer_of_a_kernel(
    events: list[Event], found: dict[str, str | None]
) -> None:
    assert layers(*events) == found


def recomputed() -> list[Event]:
    """Two layers, of which autograd's thread runs one forward again, under a number of `down`."""
    return [
        *forward("up", 1000, 1, 5), *forward("down", 1100, 2, 6),
        node("CheckpointFunctionBackward", 1990, 300, 40, 4),
        *forward("up", 2000, 3, 6, tid=AUTOGRAD), *runs("again", 2012, 1, 3, tid=AUTOGRAD),
    ]  # fmt: skip


def test_a_recomputed_forward_has_its_own_annotation() -> None:
    """Threads count their numbers independently: number 6 is of two layers, on two threads."""
    found = layers(
        *recomputed(),
        *backward(2400, 10, 6), *runs("down grad", 2412, 2, 10, tid=AUTOGRAD),
        *backward(2500, 20, 5), *runs("up grad", 2512, 3, 20, tid=AUTOGRAD),
    )  # fmt: skip
    assert found == {"again": "up", "down grad": "down", "up grad": "up"}


def test_a_graph_made_on_autograds_thread_is_looked_for_there() -> None:
    """Reentrant checkpointing: the nodes name autograd's thread as that of their forward pass."""
    more = [
        *forward("gate", 2050, 4, 7, tid=AUTOGRAD),
        *backward(2150, 60, 7, forward=2), *runs("gate grad", 2162, 4, 60, tid=AUTOGRAD),
    ]  # fmt: skip
    found = layers(
        *recomputed(), *more,
        *backward(2100, 50, 6, forward=2), *runs("up grad", 2112, 5, 50, tid=AUTOGRAD),
        *backward(2400, 10, 6), *runs("down grad", 2412, 2, 10, tid=AUTOGRAD),
        *backward(2500, 20, 5),
    )  # fmt: skip
    expected = {
        "again": "up",
        "gate grad": "gate",
        "up grad": "up",
        "down grad": "down",
    }
    assert found == expected


@pytest.mark.parametrize("number", ["-1", "99999999999999999999", '"x"', "null"])
def test_numbers_that_are_none_cost_at_most_their_event(number: str) -> None:
    data = as_document([*forward("up", 1000, 1, 4242), *runs("in", 1012, 1, 1)])
    trace = read_bytes(data.replace(b"4242", number.encode()), layers=True)
    assert len(trace.kernels) == 1
    assert trace.health.skipped_events <= 1
    assert list(trace.kernels.layer) == [0]


def test_layers_are_joined_only_where_that_is_asked_for() -> None:
    trace = read_bytes(
        as_document([*forward("up", 1000, 1, 5), *runs("in", 1012, 1, 1)])
    )
    assert len(trace.kernels) == 1
    assert not trace.kernels.layer
    assert not trace.layers

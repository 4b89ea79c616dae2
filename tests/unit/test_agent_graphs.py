"""Steps of trainings that replay CUDA graphs of their own; no GPU is needed to count them."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs torch, from the train extra")
from fp8verify.agent import hooks  # noqa: E402
from fp8verify.agent.clock import TAKEOVER_AFTER, Clock  # noqa: E402
from fp8verify.agent.graphs import CudaGraphs  # noqa: E402

pytestmark = pytest.mark.train


class Graph:
    """Stands in for a `torch.cuda.CUDAGraph`."""


class Adam:
    """Stands in for an optimizer."""


def test_a_graph_knows_the_optimizers_that_step_in_it() -> None:
    graphs, whole, forward = CudaGraphs(), Graph(), Graph()
    optimizer = Adam()
    graphs.begins(whole)
    graphs.holds(optimizer)
    graphs.ends(whole)
    graphs.begins(forward)
    graphs.ends(forward)

    assert graphs.is_replayed(whole) == {id(optimizer): "Adam"}
    assert graphs.is_replayed(forward) == {}
    assert graphs.replays == 2


def test_a_capture_that_failed_leaves_nothing_to_the_next_graph() -> None:
    graphs, graph = CudaGraphs(), Graph()
    graphs.begins(Graph())
    graphs.holds(Adam())
    graphs.begins(graph)  # the first one raised
    graphs.ends(graph)

    assert graphs.is_replayed(graph) == {}


def step(clock: Clock) -> bool:
    clock.enter(hooks._work())
    return clock.leave(1, "Adam", hooks._work())


def test_an_update_after_a_replay_is_a_new_step() -> None:
    """The graph has the forward and backward pass; the optimizer steps outside."""
    clock = Clock(hooks._work())
    torch.ones(1, requires_grad=True).sum().backward()
    assert step(clock)
    assert not step(clock)  # a sub-group of the same step

    for _ in range(3):
        hooks.graphs.is_replayed(Graph())
        assert step(clock)

    assert clock.steps == 4


def test_a_step_that_was_captured_is_over() -> None:
    clock = Clock()
    clock.enter(0)
    clock.is_captured()
    clock.enter(0)
    assert clock.leave(1, "Adam", 0)


def test_a_graph_of_another_optimizer_is_counted_once_the_leader_rests() -> None:
    clock = Clock()
    clock.enter(0)
    assert clock.leave(1, "SGD", 0)  # of a model that only warmed up

    counted = [clock.replayed({2: "Adam"}, 0) for _ in range(TAKEOVER_AFTER + 1)]

    assert counted == [False] * (TAKEOVER_AFTER - 1) + [True, True]
    assert clock.leader == "Adam"

"""What measuring a step asks of the GPU: kernels, full reads of tensors, elements at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, from the train extra")
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fp8verify.agent.numerics.casts import (
    BLOCK_ROW,
    DELAYED,
    E4M3,
    E5M2,
    ROWWISE,
    TENSORWISE,
    Cast,
    absolute_maxima,
)
from fp8verify.agent.numerics.measurements import MOST_AT_ONCE, MOST_WAITING, Measurements
from fp8verify.agent.numerics.sampling import MOST_ELEMENTS, Sampler, plan_of, weights_of

pytestmark = pytest.mark.train
TOKENS, DIM, FFN, BLOCKS = 8192, 2048, 8192, 4
MOST_BYTES = 256 << 20
_VIEWS = {
    "view", "_unsafe_view", "select", "slice", "unsqueeze", "expand", "detach", "alias", "squeeze",
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Counts the operators that start a kernel, and those that read or make a whole tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.reads: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in _VIEWS:
            self.kernels += 1
            if max(_sizes((args, kwargs)), default=0) > MOST_AT_ONCE:
                self.reads[name] += 1
            self.largest = max(self.largest, *_sizes(out))
        return out


def _sizes(tree: Any) -> Iterator[int]:
    return (leaf.numel() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def layers() -> list[list[tuple[int, int]]]:
    """Return shapes of input, weight and gradient of a Llama's layers, all of millions."""
    made = []
    for _ in range(BLOCKS):
        made += [[(TOKENS, DIM), (2 * TOKENS, DIM), (TOKENS, DIM)]] * 4
        made += [[(TOKENS, DIM), (FFN, DIM), (TOKENS, FFN)]] * 2
        made.append([(TOKENS, FFN), (DIM, FFN), (TOKENS, DIM)])
    return made


@pytest.mark.parametrize("how", [TENSORWISE, ROWWISE, BLOCK_ROW, DELAYED])
def test_a_tensor_is_read_once_and_takes_few_kernels(how: str) -> None:
    scale = torch.ones((), device="meta") if how == DELAYED else None
    forward, backward = (Cast(kind, how, scale=scale) for kind in (E4M3, E5M2))
    measured, watch = Measurements(), Watch()
    tensors = [
        (f"{place}", name, torch.empty(shape, dtype=torch.bfloat16, device="meta"), cast)
        for place, shapes in enumerate(layers())
        for name, shape, cast in zip("xwg", shapes, (forward, forward, backward), strict=True)
    ]
    with watch:
        for layer, name, x, cast in tensors:
            measured.add(layer, name, x, cast)
        for waiting in measured._waiting.values():
            waiting.finish()

    reads = {"linalg_vector_norm": len(tensors), "index_select": len(tensors)}
    assert watch.reads == reads  # the largest rows and the spread ones are copied together
    assert watch.kernels <= 20 * len(tensors)
    assert watch.largest <= MOST_AT_ONCE


def test_what_lives_at_once_is_below_256_mb() -> None:
    # The samples, in float32 their values, scaled ones, clamped or lost ones; FP8 and a mask. Their
    # squares in float64 are taken before there are scaled ones.
    at_once = MOST_AT_ONCE * (2 + 3 * 4 + 1 + 1)
    assert MOST_WAITING + at_once + (64 << 20) <= MOST_BYTES


def take(x: Any, height: int = 1) -> tuple[Any, Any]:
    maxima = absolute_maxima(x).flatten()
    return Sampler().take(x, plan_of(x.shape, height), maxima)


@pytest.mark.parametrize("height", [1, 128])
@pytest.mark.parametrize("shape", [(100_096, 64), (8192, 8192), (8, 48, 4096), (128, 131_072)])
def test_rows_are_taken_from_all_of_a_tensor_once_each(shape: tuple[int, ...], height: int) -> None:
    number = torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1)).expand(shape).float()

    rows, _ = take(number, height)

    assert len(rows) % height == 0
    assert rows.numel() <= max(MOST_ELEMENTS, 6 * 128 * shape[-1], MOST_AT_ONCE)
    spread = rows[: plan_of(shape, height).spread * height]
    if len(shape) == 2:
        assert len(set(spread[:, 0].tolist())) == len(spread)
    assert spread[:, 0].min() < 0.3 * shape[0] + 128
    assert spread[:, 0].max() >= 0.7 * shape[0] - 128


def test_rows_are_not_always_those_of_one_place_in_a_sequence() -> None:
    places = torch.arange(2048.0).repeat(2048).view(-1, 1).expand(-1, 1024)
    taken = take(places)[0][:, 0]
    assert len(set(taken.tolist())) > 0.8 * len(taken)


def test_rows_of_a_tensor_that_cannot_be_viewed_are_the_same() -> None:
    x = torch.randn(64, 40, 1024).transpose(0, 1)  # rows are not neighbours
    rows, _ = take(x)
    assert len(rows) < 64 * 40
    assert torch.equal(rows, take(x.contiguous())[0])


@pytest.mark.parametrize("height", [1, 128])
def test_the_weights_of_a_sample_add_up_to_the_whole_tensor(height: int) -> None:
    rows = torch.randn(20 * height * 100, 256)
    plan = plan_of(rows.shape, height)
    _, top = take(rows, height)
    assert plan.top
    spread = Sampler().spread(rows.device, plan)
    weights = weights_of(plan, spread, top.unsqueeze(0), rows[:1])
    assert float(weights.each.sum()) == pytest.approx(plan.units)
    both = set(spread.tolist()) & set(top.tolist())
    assert int((weights.each == 0).sum()) == len(both)
    largest = absolute_maxima(rows).view(-1, height).amax(1).argsort(descending=True)
    assert set(top.tolist()) == set(largest[: plan.top].tolist())

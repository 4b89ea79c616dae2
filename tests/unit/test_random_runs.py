"""Small runs of many kinds, put together at random: what is said of each adds up."""

from __future__ import annotations

import random
from itertools import count

import pytest

from fp8verify.terms import Verdict
from tests.hand_built import BF16, BF16_KERNEL, CLAIM, TraceBuilder, module

SIZES = ((64, 16), (16, 64), (32, 32), (96, 32), (16, 32))
DUMP = "  fp8 ............................................. hybrid\n"
MUON, ADAM = ("Optimizer.step#Muon.step",), ("Optimizer.step#AdamW.step",)
AGAIN = ("aten::linear", "CheckpointFunctionBackward")
# What some of the runs do, and how many of them.
KINDS = {
    "marked": 0.8, "numbered": 0.6, "named": 0.2, "attends": 0.3, "recomputes": 0.2, "muon": 0.2,
    "delays": 0.2, "of embeddings": 0.5,
}  # fmt: skip
STATES = ("fp8", "fp8", "fp8", "high_precision", "fp8_module_off", "unknown")
Layers = list[tuple[int, int, bool]]


def product(
    build: TraceBuilder, *dims: tuple[int, ...], parents: tuple[str, ...] = ()
) -> None:
    build.launch(
        BF16_KERNEL, "aten::bmm", types=(BF16, BF16), dims=dims, parents=parents
    )


def forward(
    build: TraceBuilder, m: int, layers: Layers, numbers: list[int], kind: set[str]
) -> None:
    """Run the layers, and perhaps attention behind them."""
    for place, (n, k, fp8) in enumerate(layers):
        number = numbers[place] if kind & {"numbered", "named"} else None
        layer = f"up.{place}" if "named" in kind else None
        build.gemm("fprop", m, n, k, fp8=fp8, sequence=number, layer=layer)
    if "attends" in kind:
        product(build, (4, m, 8), (4, 8, m))
        build.launch("softmax_warp_forward", "aten::_softmax")
        product(build, (4, m, m), (4, m, 8))


def backward(
    build: TraceBuilder, m: int, layers: Layers, numbers: list[int], kind: set[str],
    rng: random.Random,
) -> None:  # fmt: skip
    """Run the gradients of the layers, some of which fall back to BF16."""
    for place, (n, k, fp8) in reversed([*enumerate(layers)]):
        number = numbers[place] if kind & {"numbered", "named"} else None
        where = {"sequence": number, "us": rng.choice((5.0, 10.0, 10.0, 40.0))}
        if "recomputes" in kind:
            build.gemm("fprop", m, n, k, fp8=fp8, backward=True, parents=AGAIN)
        if place or "of embeddings" in kind:
            build.gemm("dgrad", m, n, k, fp8=fp8 and rng.random() < 0.9, **where)
        outside = (
            {"parents": (), "backward": False, "sequence": None}
            if "delays" in kind
            else {}
        )
        build.gemm("wgrad", m, n, k, fp8=fp8 and rng.random() < 0.9, **where | outside)


@pytest.mark.parametrize("seed", range(80))
def test_what_is_said_of_a_run_adds_up(seed: int, build: TraceBuilder) -> None:
    rng, numbers = random.Random(seed), count(1)
    layers = [
        (*size, rng.random() < 0.75) for size in rng.sample(SIZES, rng.randint(1, 4))
    ]
    kind = {name for name, chance in KINDS.items() if rng.random() < chance}
    m, batches = rng.choice((16, 32, 64)), rng.choice((1, 1, 2))
    for step in range(rng.choice((1, 2, 3))):
        if "marked" in kind:
            build.step(5 + step)
        for _ in range(batches):
            own = [next(numbers) for _ in layers]
            forward(build, m, layers, own, kind)
            backward(build, m, layers, own, kind, rng)
        if "muon" in kind:
            product(build, (32, 16), (16, 32), parents=MUON)
        build.launch("multi_tensor_apply_kernel", "aten::_foreach_add_", parents=ADAM)
    hidden = rng.choice(("Input Dims", "Input type", "Sequence number", "", "", ""))
    for event in build.events if hidden else ():
        event["args"].pop(hidden, None)
    for event in rng.sample(build.events, rng.choice((0, 0, 3))):
        event["name"] = rng.choice(("acme_kernel_v3", "acme_kernel_v4", BF16_KERNEL))
    modules = [
        module(f"up.{n}", *size, rng.choice(STATES))
        for n, (*size, _) in enumerate(layers)
    ]
    log = rng.choice(("", "", CLAIM, DUMP))
    if rng.random() < 0.5:
        report = build.capture(*modules, log=log)
    else:
        report = build.report(log=log)
    (rank,) = report.ranks
    assert sum(rank.gpu_time_us.values()) == pytest.approx(
        sum(event["dur"] for event in build.events if event["cat"] == "kernel")
    )
    if report.verdict is Verdict.ACTIVE:
        assert report.gemm.kernels["fp8"] > 0

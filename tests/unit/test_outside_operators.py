"""GEMMs outside of operators and nodes: delayed gradients, replayed graphs, or a rollout."""

from __future__ import annotations

import pytest

from fp8verify.terms import Verdict
from tests.hand_built import BF16, BF16_KERNEL, FP8_KERNEL, TraceBuilder, codes

WGRAD = BF16_KERNEL.replace("TNT", "NTT")
HOOK = ("Optimizer.step#AdamW.step",)


def trained(
    build: TraceBuilder, *, fp8: bool = True, wgrad: bool = True, numbered: bool = True
) -> None:
    legs = ("dgrad", "wgrad") if wgrad else ("dgrad",)
    layers = range(4) if numbered else [None] * 4
    for number in layers:
        build.gemm("fprop", 512, 256, 1024, fp8=fp8, sequence=number)
    for number in reversed(layers):
        for leg in legs:
            build.gemm(leg, 512, 256, 1024, fp8=fp8, sequence=number)


def replay(build: TraceBuilder, kernel: str, count: int) -> None:
    """Add kernels that one call launched."""
    for _ in range(count):
        build.launch(kernel, None)
    alike = build.events[-1]["args"]["correlation"]
    for event in build.events:
        if event["cat"] == "kernel" and event["name"] == kernel:
            event["args"]["correlation"] = alike


@pytest.mark.parametrize(  # tokens of each, where four layers have 512
    ("tokens", "numbered"),
    [
        (None, True),
        *((n, numbered) for n in (512, 256, 480, 2048) for numbered in (True, False)),
    ],
)
def test_products_that_the_nodes_lack_are_their_gradients(
    build: TraceBuilder, tokens: int | None, numbered: bool
) -> None:
    trained(build, wgrad=False, numbered=numbered)
    dims = ((256, tokens or 0), (tokens or 0, 1024))
    shape = {"types": (BF16, BF16), "dims": dims, "parents": HOOK if numbered else ()}
    for _ in range(4 * 512 // (tokens or 512)):
        build.launch(WGRAD, "aten::mm" if tokens else None, **(shape if tokens else {}))  # type: ignore[arg-type]
    report = build.report()
    assert report.verdict is Verdict.PARTIAL
    # Of eight launches that no node tells apart, those of four layers lack for certain.
    certain = (
        "4 wgrad GEMMs" if (tokens, numbered) == (256, False) else "every wgrad GEMM"
    )
    assert f"{certain} ran in BF16" in report.reason


def test_a_replayed_graph_in_high_precision_may_be_of_the_training(
    build: TraceBuilder,
) -> None:
    trained(build)
    replay(build, BF16_KERNEL, 2)
    report = build.report()
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason.startswith("GEMMs in BF16 ran outside any operator")


@pytest.mark.parametrize("fp8", [True, False])
def test_launches_of_their_own_beside_whole_nodes_only_run_forward(
    build: TraceBuilder, fp8: bool
) -> None:
    trained(build, fp8=fp8)
    kernel = BF16_KERNEL if fp8 else FP8_KERNEL
    report = build.launch(kernel, None).launch(kernel, None).report()
    assert report.verdict is (Verdict.ACTIVE if fp8 else Verdict.INACTIVE)
    assert ("fp8-forward-only" in codes(report)) is not fp8

"""Attention in replays of graphs, whose kernels have no operator of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify.analysis.gemms import classify_kernels
from fp8verify.analysis.placing import place
from fp8verify.terms import Leg
from tests.hand_built import BF16_KERNEL, FP8_KERNEL, TraceBuilder

SOFTMAX = "softmax_warp_forward"
GRADIENT = "triton_red_fused__softmax_backward_data_view_24"
ROUTER = [SOFTMAX, "gatherTopK", "radixSortKVInPlace", "index_kernel"]
LOSS = "triton_per_fused__log_softmax_nll_loss_forward_27"


@pytest.mark.parametrize(
    ("kernels", "attention"),
    [([FP8_KERNEL, BF16_KERNEL, SOFTMAX, BF16_KERNEL, FP8_KERNEL], [1, 2]),
     ([BF16_KERNEL, BF16_KERNEL, SOFTMAX, "copy_kernel", BF16_KERNEL, FP8_KERNEL], [1, 2]),
     ([BF16_KERNEL] * 2 + [GRADIENT] + [BF16_KERNEL] * 2 + [FP8_KERNEL], [0, 1, 2, 3]),
     # A compiler moved two of the gradients away: all four products of the class are attention's.
     ([BF16_KERNEL, GRADIENT, BF16_KERNEL, FP8_KERNEL, BF16_KERNEL, FP8_KERNEL, BF16_KERNEL],
      [0, 1, 3, 5]),
     ([BF16_KERNEL, *ROUTER, BF16_KERNEL, FP8_KERNEL], []),
     ([BF16_KERNEL, LOSS, BF16_KERNEL, FP8_KERNEL], []),
     ([FP8_KERNEL, SOFTMAX, FP8_KERNEL], [])],
)  # fmt: skip
def test_products_around_a_softmax_are_attention(
    kernels: list[str], attention: list[int], tmp_path: Path
) -> None:
    builder = TraceBuilder(tmp_path)
    for name in kernels:
        builder.launch(name, None)
    trace = builder.read()
    placed = place(trace, classify_kernels(trace))
    found = [n for n, one in enumerate(placed) if one.leg is Leg.ATTENTION]
    assert found == attention

"""Kernels that may be GEMMs, by what their function took and how long they ran."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hand_built import (
    BF16,
    FP8_GRADIENT_KERNEL,
    FP8_KERNEL,
    FP32,
    TraceBuilder,
    found,
)

X, WEIGHT, EXPERTS = (2048, 1024), (4096, 1024), (8, 4096, 1024)
TWO = (BF16, BF16)


def gemms(build: TraceBuilder) -> dict[str, int]:
    """Return the launches by precision beside the three FP8 GEMMs of a layer, and doubts."""
    report = build.linear(2048, 1024, 1024, fp8=True).report()
    counted = {name: count for name, count in report.gemm.kernels.items() if count}
    unknown = found(report, "opaque-kernels")
    del counted["fp8"]
    return {**counted, "unknown": len(unknown)} if unknown else counted


@pytest.mark.parametrize(
    ("kernel", "op", "types", "dims", "us", "seen"),
    [
        (
            "fused_swiglu_norm_fwd_kernel",
            "acme::swiglu_mlp",
            TWO,
            (X, WEIGHT),
            60,
            "bf16",
        ),
        ("moe_permute_kernel", "acme::moe_fc1", TWO, (X, EXPERTS), 200, "bf16"),
        (
            "fused_swiglu_fp8_fwd_kernel",
            "acme::swiglu_mlp",
            TWO,
            (X, WEIGHT),
            60,
            "unknown",
        ),
        ("fc1_swiglu_quant_kernel", "acme::quant", TWO, (X, WEIGHT), 60, "unknown"),
        ("norm_cast_kernel", "_LayerNormLinear", TWO, (X, WEIGHT), 60, "unknown"),
        # At the speed of the memory; a rotation's table; a gate and what it gates; a list of ids.
        ("fused_swiglu_norm_fwd_kernel", "acme::swiglu_mlp", TWO, (X, WEIGHT), 8, None),
        ("rope_kernel", "acme::rope", TWO, ((4, 512, 8, 128), (512, 128)), 60, None),
        ("swiglu_kernel", "acme::swiglu", TWO, ((2048, 4096), (2048, 4096)), 20, None),
        ("gather_rows", "acme::rows", (BF16, "long int"), (WEIGHT, X), 60, None),
        ("scan", "rwkv7::wkv7_forward", (BF16,) * 3, ((8, 128, 8, 128),) * 3, 60, None),
        ("fc1_swiglu_quant_kernel", "acme::quant", TWO, (X, WEIGHT), 12, None),
        # Proved to be something else.
        ("cast_dual_kernel", "torchao::triton_fp8_scales_dual", TWO, (X, X), 60, None),
        (
            "void at::native::elementwise_kernel<4>(int)",
            "acme::mlp",
            TWO,
            (X, WEIGHT),
            60,
            None,
        ),
        ("fused_swiglu_norm_fwd_kernel", "aten::mul", TWO, (X, WEIGHT), 60, None),
    ],
)
def test_a_fused_kernel_is_known_by_inputs_and_time(
    build: TraceBuilder, kernel: str, op: str, types: tuple[str, ...], dims: Any, us: float,
    seen: str | None,
) -> None:  # fmt: skip
    build.launch(kernel, op, types=types, dims=dims, us=us)
    assert gemms(build) == ({seen: 1} if seen else {})


def test_the_backward_node_is_that_of_its_function(build: TraceBuilder) -> None:
    build.launch("swiglu_fwd", "acme::swiglu_mlp", types=TWO, dims=(X, WEIGHT), us=60)
    node = {"types": (BF16,), "dims": (X,), "backward": True}
    build.launch("swiglu_bwd", "SwigluMlpBackward", us=90, **node)
    build.launch("other_bwd", "OtherMlpBackward", us=90, **node)
    assert gemms(build) == {"bf16": 2}


def test_a_node_that_lacks_a_gradient_hides_it(build: TraceBuilder) -> None:
    parents = ("OwnLinearBackward",)
    inside = {"types": (BF16, FP32), "parents": parents, "backward": True}
    build.launch("k", "aten::mm", dims=((2048, 1024), (1024, 4096)), us=30, **inside)
    build.launch(
        "own_dw", "OwnLinearBackward", types=(BF16,), dims=(X,), us=40, backward=True
    )
    assert gemms(build)["unknown"] == 1


@pytest.mark.parametrize(
    ("kernel", "op", "us", "seen"),
    [
        ("_rmsnorm_qkv_fwd_kernel", "FusedRMSNormQKV", 60, {"unknown": 1}),
        ("_rmsnorm_qkv_fwd_kernel", "FusedRMSNormQKV", 5, {}),
        ("swiglu_cast_kernel", "acme::quant", 60, {"unknown": 1}),
        ("cast_transpose_optimized_kernel(int)", "_LinearBackward", 60, {}),
        ("swiglu_cast_kernel", "triton_poi_fused_silu_0", 60, {}),
    ],
)
def test_without_shapes_what_is_as_long_as_the_median_gemm_may_be_one(
    kernel: str, op: str, us: float, seen: dict[str, int], build: TraceBuilder
) -> None:
    build.launch(kernel, op, us=us)
    assert gemms(build) == seen


@pytest.mark.parametrize("known", [True, False])
def test_an_unknown_kernel_in_the_node_of_a_layer_may_be_its_gradient(
    known: bool, build: TraceBuilder
) -> None:
    for number, (n, k) in enumerate(((1024, 1024), (4096, 1024), (1024, 4096))):
        build.launch(
            FP8_KERNEL,
            "_Linear",
            types=TWO,
            dims=((n, k), (2048, k)),
            us=50,
            sequence=number,
        )
        for leg in range(2):
            is_own = leg and n == 4096 and not known
            build.launch(
                "acme_v3" if is_own else FP8_GRADIENT_KERNEL, "_LinearBackward", types=(BF16,),
                dims=((2048, n),), us=60, backward=True, sequence=number,
            )  # fmt: skip
    report = build.report()
    assert report.verdict == ("ACTIVE" if known else "INCONCLUSIVE"), report.reason

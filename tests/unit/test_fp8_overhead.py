"""The overhead of FP8: which kernels it counts, as what, and in which pass."""

from __future__ import annotations

from typing import Any

import pytest

from fp8verify.analysis.kinds import GemmShape
from fp8verify.analysis.rates import rates_of
from tests.hand_built import BF16, E5M2, FP8, FP32, TraceBuilder, present

COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)"
CAST = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}> >(int)"
)
REDUCE = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16> >(int)"
)
FORWARD, BACKWARD = (
    "matmul_with_hp_or_float8_args",
    "matmul_with_hp_or_float8_argsBackward",
)
INSIDE = ("_ToFloat8ConstrFunc", FORWARD)
AMAX = "triton_red_fused_abs_max_view_4"
FUSED_CAST, FUSED_DIV = (
    "triton_poi_fused__scaled_mm__to_copy_div_3",
    "triton_poi_fused_div_mul_2",
)


def overhead(build: TraceBuilder) -> Any:
    return build.report().ranks[0].tax


@pytest.mark.parametrize(
    ("kernel", "op", "types", "parents", "purpose"),
    [
        (COPY, "aten::copy_", (FP32, BF16), INSIDE, "cast"),
        (COPY, "aten::mul", (FP32, FP32), INSIDE, "cast"),
        (CAST, "aten::copy_", (FP8, FP32), INSIDE, "cast"),
        (REDUCE, "aten::max", (BF16,), (FORWARD,), "amax"),
        (
            COPY,
            "aten::copy_",
            (BF16, BF16),
            ("aten::contiguous", "aten::max", FORWARD),
            "amax",
        ),
        (COPY, "aten::copy_", ("double", BF16), ("aten::to", FORWARD), "scale"),
        (COPY, "aten::reciprocal", (FP32,), ("aten::mm", FORWARD), "scale"),
        (
            COPY,
            "aten::copy_",
            (FP8, FP8),
            ("aten::contiguous", "aten::mm", FORWARD),
            "transpose",
        ),
        (COPY, "aten::abs", (FP32, FP32), ("FSDP::all_gather (layers.0)",), "amax"),
        (COPY, "aten::copy_", (FP8, FP8), (), "transpose"),
        (FUSED_DIV, FUSED_DIV, (BF16, FP32, FP8), (), "cast"),  # by recorded types
        (FUSED_CAST, FUSED_CAST, (), (), "cast"),  # by the operators fused
    ],
)
def test_each_step_of_a_cast_is_told(
    build: TraceBuilder, kernel: str, op: str, types: tuple[str, ...],
    parents: tuple[str, ...], purpose: str,
) -> None:  # fmt: skip
    build.linear(64, 32, 16, fp8=True)
    build.launch(
        kernel, op, types=types, dims=((64, 16),) * len(types), parents=parents, us=5
    )
    found = overhead(build)
    assert [(row.purpose, row.op, row.fused, row.time_us) for row in found.rows] == [
        (purpose, op, kernel == op, 5.0)
    ]
    assert found.unfused_us == (0.0 if kernel == op else 5.0)


def test_fused_casts_are_told_apart_from_eager_ones(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=True).launch(AMAX, AMAX, us=3)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=7)
    found = overhead(build)
    assert (found.time_us, found.unfused_us) == (10.0, 7.0)
    assert {(row.purpose, row.fused) for row in found.rows} == {
        ("amax", True),
        ("cast", False),
    }


@pytest.mark.parametrize(
    ("parents", "backward", "leg"),
    [
        (INSIDE, False, "fprop"),
        (("_ToFloat8ConstrFunc", BACKWARD), True, "backward"),
        ((*INSIDE, BACKWARD), True, "recompute"),
    ],
)
def test_the_pass_is_that_of_the_operator(
    build: TraceBuilder, parents: tuple[str, ...], backward: bool, leg: str
) -> None:
    build.linear(64, 32, 16, fp8=True)
    build.launch(
        CAST, "aten::copy_", types=(E5M2, FP32), parents=parents, backward=backward
    )
    assert [row.leg for row in overhead(build).rows] == [leg]


def test_what_bf16_needs_as_well_is_no_overhead(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=True)
    build.launch(COPY, "aten::add", types=(BF16, BF16), us=5)
    # autograd adds gradients in the engine's frame around the node, not in the node
    engine = f"autograd::engine::evaluate_function: {BACKWARD}"
    build.launch(COPY, "aten::add", types=(BF16, BF16), parents=(engine,), us=5)
    build.launch(
        CAST,
        "aten::copy_",
        types=(FP8, FP32),
        parents=("Optimizer.step#AdamWFp8.step",),
    )
    assert overhead(build) is None


def test_a_bf16_run_has_no_overhead(build: TraceBuilder) -> None:
    assert overhead(build.linear(64, 32, 16, fp8=False).launch(AMAX, AMAX)) is None


def test_the_overhead_is_compared_with_what_fp8_can_save(build: TraceBuilder) -> None:
    build.linear(2048, 2048, 1024, fp8=True)  # 30 µs of GEMMs
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=15)
    found = overhead(build)
    table = present(rates_of("NVIDIA H200"))
    sizes = [(2048, 2048, 1024), (2048, 1024, 2048), (2048, 1024, 2048)]
    in_bf16 = [present(table.time_ns(GemmShape(1, *size))) / 1000 for size in sizes]
    saved = sum(in_bf16) - 30
    assert found.saved_at_most_us == pytest.approx(saved, abs=0.1)
    assert found.share_of_saving == pytest.approx(15 / saved, rel=1e-4)
    assert found.share_of_gpu_time == pytest.approx(15 / 45)


def test_a_step_that_begins_inside_the_optimizer_is_still_the_models(
    build: TraceBuilder,
) -> None:
    """A profiler stepped by an optimizer's hook makes the optimizer enclose the next forward."""
    around = ("CompiledFunction", "Torch-Compiled Region", "Optimizer.step#AdamW.step")
    build.linear(64, 32, 16, fp8=True).launch(AMAX, AMAX, parents=around, us=3)
    assert overhead(build).time_us == 3.0


def test_what_sets_up_a_gemm_is_no_cast(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=True)
    types, dims = (FP8, FP8), ((64, 16), (16, 32))
    build.launch("setup_kernel", "aten::_scaled_grouped_mm", types=types, dims=dims)
    assert overhead(build) is None


def test_gpu_time_counts_what_the_overhead_counts(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=True).launch(AMAX, us=3)
    build.launch(COPY, "aten::copy_", types=(FP32, BF16), parents=INSIDE, us=7)
    build.launch(COPY, "aten::copy_", types=(FP8, FP8), dims=((4, 4),) * 2, us=2)
    build.launch(
        CAST,
        "aten::copy_",
        types=(FP8, FP32),
        parents=("Optimizer.step#AdamWFp8.step",),
    )
    rank = build.report().ranks[0]
    spent = rank.gpu_time_us["quantize"] + rank.gpu_time_us["transpose"]
    assert spent == present(rank.tax).time_us == 12
    assert rank.gpu_time_us["transpose"] == 2

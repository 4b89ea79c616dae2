"""The rules of the verdict, each on the smallest trace that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fp8verify import inspect
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    CLAIM,
    FP8,
    FP8_KERNEL,
    FP32,
    LEGS,
    TraceBuilder,
    codes,
    found,
)

CAST = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}> >(int)"
)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", "INACTIVE"),
        (CLAIM, "CONTRADICTED"),
        (
            "Failed to swap to Float8Linear because SM90 or later is not available\n",
            "INACTIVE",
        ),
    ],
)
def test_no_fp8_is_held_against_the_log(
    build: TraceBuilder, log: str, expected: str
) -> None:
    report = build.linear(64, 32, 16, fp8=False).report(log=log)
    assert (report.verdict, report.exit_code) == (expected, 1)
    assert ("(line 1)" in report.reason) == bool(log)
    assert ("claimed-not-active" in codes(report)) == (expected == "CONTRADICTED")


@pytest.mark.parametrize(
    ("recipe", "expected", "severity"),
    [("ROWWISE", "PARTIAL", "warning"), ("ROWWISE_WITH_GW_HP", "ACTIVE", "info")],
)
def test_a_leg_in_high_precision_counts_unless_the_recipe_says_so(
    build: TraceBuilder, recipe: str, expected: str, severity: str
) -> None:
    for leg in LEGS:
        build.gemm(leg, 64, 32, 16, fp8=leg != "wgrad", us=20 if leg == "wgrad" else 50)
    report = build.report(log=CLAIM.replace("TENSORWISE", recipe))
    (leg,) = found(report, "leg-not-fp8")
    assert (report.verdict, leg.severity) == (expected, severity)
    assert "wgrad" in leg.message


def test_no_gpu_kernel_is_inconclusive(build: TraceBuilder) -> None:
    build.launch(FP8_KERNEL)
    build.events = [event for event in build.events if event["cat"] != "kernel"]
    report = build.report(log=CLAIM)
    assert (report.verdict, report.exit_code) == ("INCONCLUSIVE", 3)
    assert report.reason == "no GPU kernels in the trace"
    assert "no-gpu-kernels" in codes(report)


@pytest.mark.parametrize(
    ("fp8", "steps", "expected"),
    [(False, 3, "INCONCLUSIVE"), (True, 3, "ACTIVE"), (True, 2, "INCONCLUSIVE"),
     (True, 0, "INCONCLUSIVE")],
)  # fmt: skip
def test_only_steps_before_the_damage_are_judged(
    tmp_path: Path, steps: int, expected: str, *, fp8: bool
) -> None:
    """The last step of a file that ends early may lack kernels, and one of two is too few."""
    build = TraceBuilder()
    for number in range(max(1, steps)):
        (build.step(number) if steps else build).linear(64, 32, 16, fp8=fp8)
    whole = build.write(tmp_path / "trace.json")
    text = whole.read_text()
    whole.write_text(text[: text.index("Record Window End")])
    report = inspect(whole)
    if expected == "ACTIVE":
        assert "in 2 of 3 steps (the trace is damaged)" in report.reason
    assert report.verdict == expected
    assert report.ranks[0].health.truncated
    assert "damaged-trace" in codes(report)


def test_unknown_gemms_that_could_be_fp8_are_inconclusive(build: TraceBuilder) -> None:
    build.launch(BF16_KERNEL, types=(BF16, BF16), us=50)
    build.launch("triton_tem_fused_mm_3", None, us=50)
    report = build.report()
    assert report.verdict == "INCONCLUSIVE"
    assert report.gemm.unknown_share_of_time == 0.5
    assert report.reason.startswith(
        "50.0% of GEMM time is in kernels of unknown precision"
    )
    assert "unknown-gemm" in codes(report)


@pytest.mark.parametrize(("us", "expected"), [(10, "ACTIVE"), (80, "INCONCLUSIVE")])
def test_unknown_gemms_beside_fp8_count_both_ways(
    build: TraceBuilder, us: int, expected: str
) -> None:
    build.launch("triton_tem_fused_mm_3", "acme::mm", us=us / 2)
    build.linear(64, 32, 16, fp8=True)  # 30 µs
    build.launch("triton_tem_fused_mm_3", "acme::mm", us=us / 2, backward=True)
    report = build.report()
    assert report.verdict == expected
    share = f"kernels of unknown precision took {us / (30 + us):.0%} of it"
    assert (share in report.reason) == (expected == "INCONCLUSIVE")


def test_ranks_that_were_not_recorded_are_said(tmp_path: Path) -> None:
    TraceBuilder(rank=0, world=64).linear(64, 32, 16, fp8=True).write(
        tmp_path / "rank0.json"
    )
    report = inspect(tmp_path)
    assert report.verdict == "ACTIVE"
    assert "1 of 64 ranks profiled" in [finding.message for finding in report.findings]


def test_a_gemm_beyond_the_bf16_peak_is_proof(build: TraceBuilder) -> None:
    size = 2048
    flops = 2 * size**3
    us = flops / 1500e12 * 1e6
    build.launch(
        FP8_KERNEL,
        "aten::_scaled_mm",
        types=(FP8, FP8),
        dims=((size, size), (size, size)),
        us=us,
    )
    report = build.report()
    (proof,) = found(report, "faster-than-bf16")
    assert "up to 1500" in proof.message
    row = report.ranks[0].kernels[0]
    assert row.tflops == pytest.approx(1500, abs=0.5)
    assert row.percent_of_peak == pytest.approx(75.8, abs=0.1)


@pytest.mark.parametrize(
    "launches",
    [
        [("aten::_scaled_grouped_mm", "_grouped_fp8_persistent_gemm_kernel", 1500)],
        [
            ("aten::_scaled_mm", FP8_KERNEL, 1500),
            ("aten::_scaled_mm", FP8_KERNEL, 4500),
        ],
    ],
    ids=["an upper bound", "one beyond every format"],
)
def test_flops_that_are_not_certain_prove_nothing(
    build: TraceBuilder, launches: list[tuple[str, str, int]]
) -> None:
    size = 2048
    for op, kernel, tflops in launches:
        us = 2 * size**3 / tflops / 1e6
        shapes = ((size, size), (size, size))
        build.launch(kernel, op, types=(FP8, FP8), dims=shapes, us=us, backward=True)
    assert "faster-than-bf16" not in codes(build.report())


def test_a_recipe_other_than_the_claimed_one_is_said(build: TraceBuilder) -> None:
    dims = ((64, 16), (16, 32), (64, 1), (1, 32))
    build.launch(
        FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8, FP32, FP32), dims=dims
    )
    report = build.report(log=CLAIM)
    assert report.recipe.time_us == {"rowwise": 10.0}
    assert "recipe-mismatch" in codes(report)


def test_gpu_time_adds_up(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=True).launch(
        CAST, "aten::copy_", types=(FP8, BF16), us=3
    )
    build.launch("some_kernel_nobody_knows", None, us=4)
    report = build.report()
    assert sum(report.gpu_time_us.values()) == pytest.approx(37.0)
    assert report.gpu_time_us["gemm"] == 30.0


def test_unknown_gemms_cannot_be_fp8_where_the_gpu_has_no_fp8(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path, gpu="NVIDIA A100-SXM4-80GB", capability=(8, 0))
    build.launch(BF16_KERNEL, types=(BF16, BF16)).launch("triton_tem_fused_mm_3", None)
    assert build.report().verdict == "INACTIVE"


ADAM = "Optimizer.step#AdamWFp8.step"
MUON = "Optimizer.step#Muon.step"
FMHA = (
    "fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausalP32VarSeqQ128Kv128StaticContext"
)
CODEC = (
    "void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::_float_to_hfp8_gpu("
    "at::Tensor const&, long, long, double)::{lambda(float)#1}, at::detail::Array<char*, 2> >"
)
CACHE = "_C_cache_ops::reshape_and_cache"
TOKENS = ((64, 16), (64, 16))
# FP8 that no GEMM of a layer multiplies: each launch with its operator, types, shapes and parents.
OTHER_FP8: dict[str, list[tuple[str, str | None, dict[str, Any]]]] = {
    "an FP8 optimizer": [(CAST, "aten::copy_", {"types": (FP8, FP32), "parents": (ADAM,)})],
    "an optimizer's products": [
        (FP8_KERNEL, "aten::_scaled_mm", {"types": (FP8, FP8), "parents": (MUON,), "us": 90})],
    "FP8 attention": [(CAST, "aten::copy_", {"types": (FP8, BF16)}), (FMHA, None, {})],
    "FP8 attention of an operator": [
        (CAST, "aten::copy_", {"types": (FP8, BF16), "dims": TOKENS}),
        ("flash_fwd_kernel_fp8", "flash_attn::fwd", {"us": 30})],
    "codecs of collectives": [(CODEC, "fbgemm::FloatToHFP8Quantized", {})],
    "a cache": [("reshape_and_cache", CACHE, {"types": (BF16, FP8)})],
    "a cache with shapes": [("reshape_and_cache", "cache::write", {
        "types": (BF16, FP8), "dims": ((64, 4, 4), (99, 16, 4, 4))})],
    "tokens of an all-to-all": [("dequantize_tokens", "moe::after_all_to_all", {
        "types": (FP8, BF16), "dims": TOKENS})],
}  # fmt: skip


@pytest.mark.parametrize("launches", OTHER_FP8.values(), ids=OTHER_FP8)
def test_fp8_elsewhere_is_neither_fp8_training_nor_emulation(
    build: TraceBuilder, launches: list[tuple[str, str | None, dict[str, Any]]]
) -> None:
    for _ in range(4):
        for kernel, op, launch in launches:
            build.launch(kernel, op, **launch)
        build.linear(64, 32, 16, fp8=False)
    report = build.report()
    assert report.verdict == "INACTIVE"
    assert "emulated" not in codes(report)


def test_kernels_without_a_gemm_are_inconclusive(build: TraceBuilder) -> None:
    build.launch("triton_poi_fused_add_0", "triton_poi_fused_add_0")
    assert build.report().verdict == "INCONCLUSIVE"

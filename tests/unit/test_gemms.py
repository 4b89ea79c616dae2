"""From kernels to GEMM rows: what is counted as GEMM time, and as what."""

from __future__ import annotations

from collections import Counter

import pytest

from fp8verify.analysis.gather import gather
from fp8verify.analysis.gemms import gemm_totals
from tests.hand_built import BF16, BF16_KERNEL, FP8, FP8_KERNEL, TraceBuilder

SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, "
    "false, false>(cublasLt::cublasSplitKParams<float>)"
)


def test_a_split_k_reduction_counts_as_the_gemm_before_it(build: TraceBuilder) -> None:
    # A replayed graph records no types: the reduction's own says only what it writes.
    build.launch(BF16_KERNEL, "CompiledFunction").launch(
        SPLIT_K, "CompiledFunction", us=2
    )
    build.launch(FP8_KERNEL, "CompiledFunction").launch(
        SPLIT_K, "CompiledFunction", us=3
    )
    rows = gather(build.read()).gemms
    time_ns = Counter[str]()
    for row in rows:
        time_ns[row.precision.value] += row.amount
    assert time_ns == {"bf16": 12_000, "fp8": 13_000}
    totals = gemm_totals(rows)
    assert (totals.kernels["bf16"], totals.kernels["fp8"]) == (1, 1)
    assert (totals.time_us["bf16"], totals.time_us["fp8"]) == (12, 13)


def test_the_flops_of_a_split_k_gemm_are_counted_once(build: TraceBuilder) -> None:
    dims = ((64, 16), (16, 32))
    build.launch(BF16_KERNEL, types=(BF16, BF16), dims=dims)
    build.launch(SPLIT_K, types=(BF16, BF16), dims=dims)
    rows = gather(build.read()).gemms
    assert sum(row.flops or 0 for row in rows) == 2 * 64 * 16 * 32


def test_casts_and_set_up_kernels_under_a_gemm_operator_are_no_gemms(
    build: TraceBuilder,
) -> None:
    build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8))
    set_up = (
        "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>(int)"
    )
    build.launch(set_up, "aten::_grouped_mm", types=(BF16, BF16))
    build.launch(
        "triton_poi_fused__scaled_mm__to_copy_clamp_reciprocal_7", "aten::_scaled_mm"
    )
    found = gather(build.read())
    assert [row.kind.name for row in found.gemms] == [FP8_KERNEL]
    assert sum(total.kernels for total in found.others) == 2


def test_each_step_keeps_its_own_rows(build: TraceBuilder) -> None:
    build.step(1).launch(BF16_KERNEL).step(2).launch(BF16_KERNEL).launch(BF16_KERNEL)
    rows = gather(build.read()).gemms
    assert sorted((row.step, row.calls) for row in rows) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(("us", "known"), [(1, True), (2, False)])
def test_flops_are_quoted_if_a_thousandth_of_gemm_time_has_no_shapes(
    build: TraceBuilder, us: float, *, known: bool
) -> None:
    build.linear(64, 32, 16, fp8=True, us=333).launch(FP8_KERNEL, us=us)
    share = build.report().gemm.fp8_share_of_flops
    assert share == (1.0 if known else None)

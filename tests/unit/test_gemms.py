"""From kernels to GEMM rows: what is counted as GEMM time, and as what."""

from __future__ import annotations

from pathlib import Path

from fp8verify.analysis.gather import TraceEvidence, gather
from fp8verify.terms import Precision
from fp8verify.trace import read_trace
from tests.hand_built import BF16, BF16_KERNEL, FP8, FP8_KERNEL, TraceBuilder

SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, "
    "false, false>(cublasLt::cublasSplitKParams<float>)"
)


def surveyed(build: TraceBuilder, folder: Path) -> TraceEvidence:
    return gather(read_trace(build.write(folder / "trace.json")))


def test_a_split_k_reduction_counts_as_the_gemm_before_it(
    build: TraceBuilder, tmp_path: Path
) -> None:
    # A replayed graph records no types: the reduction's own says only what it writes.
    build.launch(BF16_KERNEL, "CompiledFunction").launch(SPLIT_K, "CompiledFunction", us=2)
    build.launch(FP8_KERNEL, "CompiledFunction").launch(SPLIT_K, "CompiledFunction", us=3)
    rows = surveyed(build, tmp_path).gemms
    time_ns = {
        precision: sum(row.time_ns for row in rows if row.precision is precision)
        for precision in Precision
    }
    assert {p.value: ns for p, ns in time_ns.items() if ns} == {"bf16": 12_000, "fp8": 13_000}


def test_the_flops_of_a_split_k_gemm_are_counted_once(build: TraceBuilder, tmp_path: Path) -> None:
    dims = ((64, 16), (16, 32))
    build.launch(BF16_KERNEL, types=(BF16, BF16), dims=dims)
    build.launch(SPLIT_K, types=(BF16, BF16), dims=dims)
    rows = surveyed(build, tmp_path).gemms
    assert sum(row.flops or 0 for row in rows) == 2 * 64 * 16 * 32


def test_casts_and_set_up_kernels_under_a_gemm_operator_are_no_gemms(
    build: TraceBuilder, tmp_path: Path
) -> None:
    build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8))
    build.launch(
        "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>(int)",
        "aten::_grouped_mm",
        types=(BF16, BF16),
    )
    build.launch("triton_poi_fused__scaled_mm__to_copy_clamp_reciprocal_7", "aten::_scaled_mm")
    found = surveyed(build, tmp_path)
    assert [row.kind.name for row in found.gemms] == [FP8_KERNEL]
    assert sum(total.calls for total in found.others) == 2


def test_each_step_keeps_its_own_rows(build: TraceBuilder, tmp_path: Path) -> None:
    build.step(1).launch(BF16_KERNEL).step(2).launch(BF16_KERNEL).launch(BF16_KERNEL)
    rows = surveyed(build, tmp_path).gemms
    assert sorted((row.step, row.calls) for row in rows) == [(0, 1), (1, 2)]

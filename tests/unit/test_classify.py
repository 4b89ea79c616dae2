# ruff: noqa: E501  (a row a case)
"""Name and operator together: who decides, who is silent, and what they disagree about."""

from __future__ import annotations

import pytest

from fp8verify.kernels import Classification, classify, decode
from fp8verify.terms import OpContext, Precision, Scaling

BF16, HALF, FLOAT, CHAR = "c10::BFloat16", "c10::Half", "float", "signed char"
E4M3, E5M2, E8M0 = "c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e8m0fnu"
SCALED = "aten::_scaled_mm", (E4M3, E4M3)
NVJET_FP8 = "nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_TNT"
NVJET_BF16 = "nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT"
NVJET_MXFP8 = "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT"
TEMPLATE = "triton_tem_fused_mm_10"
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>(P)"
TF32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>(P)"
SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_fp8_e4m3, float, __half, true>(P)"
)
XMMA_SPLIT_K = "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64_execute_split_k_kernel"


def _classify(name: str, op: str | None = None, *types: str) -> Classification:
    return classify(decode(name), OpContext(name=op, types=types) if op else None)


@pytest.mark.parametrize(
    ("name", "op", "types", "said"),
    [
        # The name alone; name and operator that agree.
        (NVJET_FP8, None, (), "gemm fp8 by name"),
        (NVJET_BF16, "aten::mm", (BF16, BF16), "gemm bf16 by name+op"),
        (NVJET_MXFP8, "aten::_scaled_mm", (E4M3, E4M3), "gemm mxfp8 by name+op"),
        (SIMT, "aten::mm", (FLOAT, FLOAT), "gemm fp32 by name+op"),
        (TF32, "aten::mm", (FLOAT, FLOAT), "gemm tf32 by name+op"),
        # An operator that is no GEMM never contradicts a name.
        *((NVJET_FP8, op, (BF16, BF16), "gemm fp8 by name")
          for op in ("_Linear", "_LinearBackward", "_LayerNormMLP", "CompiledFunction", "MyFunction")),
        # A GEMM under an operator that multiplies nothing is of no certain precision.
        *((name, op, (BF16,), "gemm unknown by name, disputed")
          for op in ("aten::copy_", "aten::_foreach_add_", "triton_poi_fused__to_copy_3", "mylib::cast_to_fp8")
          for name in ("fp8_gemm", NVJET_FP8)),
        # One that may cast and multiply leaves the name alone.
        *(("fp8_gemm_rowwise", op, (BF16,), "gemm fp8 by name")
          for op in ("mylib::quantize_and_matmul", "mylib::fp8_linear", "mylib::run")),
        # A hand-written name does not overrule an operator of two formats.
        ("_blockwise_fp8_gemm_kernel", "aten::mm", (BF16, E4M3), "gemm unknown by name"),
        ("_fp8_gemm_kernel", "aten::_scaled_mm", (E4M3, E4M3), "gemm fp8 by op"),
        # Of two high classes the name is believed; a high and a low class decide nothing.
        (NVJET_BF16, "aten::mm", (FLOAT, FLOAT), "gemm bf16 by name, disputed"),
        (NVJET_BF16, "aten::_scaled_mm", (E4M3, E4M3), "gemm unknown by name, disputed"),
        # The operator decides where the name cannot.
        (TEMPLATE, "aten::mm", (BF16, BF16), "gemm bf16 by op"),
        (TEMPLATE, TEMPLATE, (HALF, HALF), "gemm fp16 by op"),
        ("triton_tem_fused__scaled_mm_0", "triton_tem_fused__scaled_mm_0", (E4M3, E5M2), "gemm fp8 by op"),
        ("fused_moe_kernel", "aten::_scaled_grouped_mm", (E4M3, E4M3), "grouped_gemm fp8 by op"),
        ("void cutlass::device_kernel<...", "aten::_grouped_mm", (BF16, BF16), "grouped_gemm bf16 by op"),
        ("_gemm_a8w8_kernel_GROUP_K_128", "aten::_int_mm", (CHAR, CHAR), "gemm int8 by op"),
        ("_gemm_a8w8_kernel_GROUP_K_128", "aten::_scaled_mm", (E4M3, E4M3), "gemm fp8 by op"),
        ("Cijk_SS_PostGSU16_VW4", "aten::addmm", (BF16, BF16, BF16), "gemm bf16 by op"),
        ("no_name_at_all", "aten::baddbmm", (FLOAT, HALF, HALF), "gemm fp16 by op"),
        ("fused_moe_kernel", "fbgemm::f8f8bf16_rowwise_grouped", (), "grouped_gemm fp8 by op"),
        *((TEMPLATE, "aten::mm", types, "gemm unknown by name")
          for types in ((E4M3, BF16), (), (FLOAT, FLOAT))),
        # A split-K reduction is GEMM time of its operator's precision.
        (SPLIT_K, "aten::mm", (BF16, BF16), "gemm bf16 by op, split K"),
        (SPLIT_K, None, (), "gemm unknown by name, split K"),
        (XMMA_SPLIT_K, None, (), "gemm fp8 by name, split K"),
        # Helpers under a GEMM operator are no GEMMs.
        ("void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>(P)", *SCALED, "other unknown by name"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(P)", *SCALED, "elementwise fp32 by name"),
        ("triton_poi_fused__scaled_mm__to_copy_clamp_clone_mul_reciprocal_t_view_11", *SCALED, "cast_quantize unknown by name"),
        ("void per_token_quant_fp8_kernel<__half, __nv_fp8_e4m3, 8, 16>(P)", *SCALED, "cast_quantize fp8 by name"),
        ("Memset (Device)", *SCALED, "memory unknown by name"),
        # Unknown kernels; products inside convolution and attention are no GEMM time.
        ("no_name_at_all", "my::op", (E4M3, E4M3), "other unknown by none"),
        ("ampere_sgemm_128x64_nn", "aten::cudnn_convolution", (FLOAT, FLOAT), "conv fp32 by name"),
        ("ampere_sgemm_128x64_nn", "aten::convolution_backward", (FLOAT, FLOAT), "conv fp32 by name"),
        ("ampere_sgemm_128x64_nn", "aten::_flash_attention_forward", (FLOAT, FLOAT), "attention fp32 by name"),
        ("ampere_sgemm_128x64_nn", "aten::_scaled_dot_product_cudnn_attention", (FLOAT, FLOAT), "attention fp32 by name"),
    ],
)  # fmt: skip
def test_name_and_operator_together_say(
    name: str, op: str | None, types: tuple[str, ...], said: str
) -> None:
    found = _classify(name, op, *types)
    notes = ", disputed" * bool(found.conflict) + ", split K" * found.split_k
    assert f"{found.role.value} {found.precision.value} by {found.source}{notes}" == said


def test_a_dispute_shows_both_statements() -> None:
    found = _classify(NVJET_BF16, "aten::_scaled_mm", E4M3, E4M3)
    assert "tst" in (found.conflict or "")
    assert "aten::_scaled_mm says fp8" in (found.conflict or "")
    assert "multiplies nothing" in (_classify(NVJET_FP8, "aten::copy_", BF16).conflict or "")


@pytest.mark.parametrize(
    ("scale", "shape", "scaling", "precision"),
    [
        (FLOAT, (), Scaling.TENSORWISE, Precision.FP8),
        (FLOAT, (1, 1), Scaling.TENSORWISE, Precision.FP8),
        (FLOAT, (64, 1), Scaling.ROWWISE, Precision.FP8),
        (FLOAT, (64, 2), Scaling.BLOCKWISE, Precision.FP8),
        (E8M0, (512,), Scaling.MXFP8, Precision.MXFP8),
    ],
)
def test_the_scale_of_scaled_mm_says_the_scaling(
    scale: str, shape: tuple[int, ...], scaling: Scaling, precision: Precision
) -> None:
    dims = ((64, 256), (256, 32), shape, shape)
    op = OpContext(name="aten::_scaled_mm", types=(E4M3, E4M3, scale, scale), dims=dims)
    found = classify(decode("triton_tem_fused__scaled_mm_0"), op)
    assert (found.scaling, found.precision) == (scaling, precision)

# ruff: noqa: E501  (a row a case)
"""Name and operator together: who decides, who is silent, and what they disagree about."""

from __future__ import annotations

import pytest

from fp8verify.kernels import Classification, classify, decode
from fp8verify.report.model import OpContext, Precision, Role, Scaling

BF16, HALF, FLOAT = "c10::BFloat16", "c10::Half", "float"
E4M3, E5M2, E8M0 = "c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e8m0fnu"
SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_fp8_e4m3, float, __half, true>(P)"
)


def _classify(name: str, op: str | None = None, *types: str) -> Classification:
    return classify(decode(name), OpContext(name=op, types=types) if op else None)


def test_the_name_decides_alone_where_no_operator_is_recorded() -> None:
    found = _classify("nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_TNT")
    assert (found.role, found.precision, found.source) == (Role.GEMM, Precision.FP8, "name")


def test_name_and_operator_that_agree_are_both_named() -> None:
    found = _classify("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT", "aten::mm", BF16, BF16)
    assert (found.precision, found.source, found.conflict) == (Precision.BF16, "name+op", None)


@pytest.mark.parametrize(
    "op", ["_Linear", "_LinearBackward", "_LayerNormMLP", "CompiledFunction", "MyFunction"]
)
def test_an_operator_that_is_no_gemm_never_contradicts_a_name(op: str) -> None:
    found = _classify("nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_TNT", op, BF16, BF16)
    assert (found.precision, found.source, found.conflict) == (Precision.FP8, "name", None)


@pytest.mark.parametrize(
    "op",
    ["aten::copy_", "aten::_foreach_add_", "triton_poi_fused__to_copy_3", "mylib::cast_to_fp8"],
)
@pytest.mark.parametrize("name", ["fp8_gemm", "nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_TNT"])
def test_a_gemm_under_an_operator_that_multiplies_nothing_is_of_no_certain_precision(
    name: str, op: str
) -> None:
    found = _classify(name, op, BF16)
    assert (found.role, found.precision) == (Role.GEMM, Precision.UNKNOWN)
    assert "multiplies nothing" in (found.conflict or "")


@pytest.mark.parametrize("op", ["mylib::quantize_and_matmul", "mylib::fp8_linear", "mylib::run"])
def test_an_operator_that_may_cast_and_multiply_leaves_the_name_alone(op: str) -> None:
    assert _classify("fp8_gemm_rowwise", op, BF16).precision is Precision.FP8


def test_a_hand_written_name_does_not_overrule_an_operator_of_two_formats() -> None:
    found = _classify("_blockwise_fp8_gemm_kernel", "aten::mm", BF16, E4M3)
    assert (found.role, found.precision) == (Role.GEMM, Precision.UNKNOWN)
    assert _classify("nvjet_sm90_qqtst_128x64_64x8_1x2_h_bz_TNT", "aten::mm", BF16, E4M3).precision
    assert _classify("_fp8_gemm_kernel", "aten::_scaled_mm", E4M3, E4M3).precision is Precision.FP8


def test_of_two_high_classes_the_name_is_believed() -> None:
    found = _classify("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT", "aten::mm", "float", "float")
    assert found.precision is Precision.BF16
    assert found.conflict is not None


def test_name_and_operator_of_a_high_and_a_low_class_decide_nothing_and_are_both_shown() -> None:
    found = _classify("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT", "aten::_scaled_mm", E4M3, E4M3)
    assert (found.precision, found.source) == (Precision.UNKNOWN, "name")
    assert found.conflict is not None
    assert "tst" in found.conflict
    assert "aten::_scaled_mm says fp8" in found.conflict


@pytest.mark.parametrize(
    ("name", "op", "types", "role", "precision"),
    [
        ("triton_tem_fused_mm_10", "aten::mm", (BF16, BF16), "gemm", "bf16"),
        ("triton_tem_fused_mm_10", "triton_tem_fused_mm_10", (HALF, HALF), "gemm", "fp16"),
        ("triton_tem_fused__scaled_mm_0", "triton_tem_fused__scaled_mm_0", (E4M3, E5M2), "gemm", "fp8"),
        ("fused_moe_kernel", "aten::_scaled_grouped_mm", (E4M3, E4M3), "grouped_gemm", "fp8"),
        ("void cutlass::device_kernel<...", "aten::_grouped_mm", (BF16, BF16), "grouped_gemm", "bf16"),
        ("_gemm_a8w8_kernel_GROUP_K_128", "aten::_int_mm", ("signed char", "signed char"), "gemm", "int8"),
        ("_gemm_a8w8_kernel_GROUP_K_128", "aten::_scaled_mm", (E4M3, E4M3), "gemm", "fp8"),
        ("Cijk_SS_PostGSU16_VW4", "aten::addmm", (BF16, BF16, BF16), "gemm", "bf16"),
        ("no_name_at_all", "aten::baddbmm", (FLOAT, HALF, HALF), "gemm", "fp16"),
        ("fused_moe_kernel", "fbgemm::f8f8bf16_rowwise_grouped", (), "grouped_gemm", "fp8"),
        ("triton_tem_fused_mm_10", "aten::mm", (E4M3, BF16), "gemm", "unknown"),
        ("triton_tem_fused_mm_10", "aten::mm", (), "gemm", "unknown"),
        ("triton_tem_fused_mm_10", "aten::mm", (FLOAT, FLOAT), "gemm", "unknown"),
    ],
)  # fmt: skip
def test_the_operator_decides_where_the_name_cannot(
    name: str, op: str, types: tuple[str, ...], role: str, precision: str
) -> None:
    found = _classify(name, op, *types)
    assert (found.role.value, found.precision.value) == (role, precision)
    assert found.conflict is None
    if precision != "unknown":
        assert found.source == "op"


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>(P)",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>(P)",
    ],
)
def test_fp32_inputs_allow_fp32_and_tf32(name: str) -> None:
    found = _classify(name, "aten::mm", FLOAT, FLOAT)
    assert found.precision in (Precision.FP32, Precision.TF32)
    assert (found.source, found.conflict) == ("name+op", None)


def test_a_split_k_reduction_is_gemm_time_of_its_operators_precision() -> None:
    found = _classify(SPLIT_K, "aten::mm", BF16, BF16)
    assert (found.role, found.precision, found.source) == (Role.GEMM, Precision.BF16, "op")


def test_a_split_k_reduction_without_operator_is_gemm_time_of_unknown_precision() -> None:
    found = _classify(SPLIT_K)
    assert (found.role, found.precision) == (Role.GEMM, Precision.UNKNOWN)


@pytest.mark.parametrize(
    "name",
    [
        "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>(P)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(P)",
        "triton_poi_fused__scaled_mm__to_copy_clamp_clone_mul_reciprocal_t_view_11",
        "void per_token_quant_fp8_kernel<__half, __nv_fp8_e4m3, 8, 16>(P)",
        "Memset (Device)",
    ],
)
def test_helpers_under_a_gemm_operator_are_no_gemms(name: str) -> None:
    found = _classify(name, "aten::_scaled_mm", E4M3, E4M3)
    assert not found.role.is_gemm
    assert found.source == "name"


def test_an_unknown_kernel_of_an_unknown_operator_stays_unknown() -> None:
    found = _classify("no_name_at_all", "my::op", E4M3, E4M3)
    assert (found.role, found.precision, found.source) == (Role.OTHER, Precision.UNKNOWN, "none")


@pytest.mark.parametrize(
    ("op", "role"),
    [
        ("aten::cudnn_convolution", Role.CONV),
        ("aten::convolution_backward", Role.CONV),
        ("aten::_flash_attention_forward", Role.ATTENTION),
        ("aten::_scaled_dot_product_cudnn_attention", Role.ATTENTION),
    ],
)
def test_products_inside_convolution_and_attention_are_not_gemm_time(op: str, role: Role) -> None:
    found = _classify("ampere_sgemm_128x64_nn", op, FLOAT, FLOAT)
    assert (found.role, found.precision) == (role, Precision.FP32)


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
    op = OpContext(
        name="aten::_scaled_mm",
        types=(E4M3, E4M3, scale, scale),
        dims=((64, 256), (256, 32), shape, shape),
    )
    found = classify(decode("triton_tem_fused__scaled_mm_0"), op)
    assert (found.scaling, found.precision) == (scaling, precision)


def test_mxfp8_in_the_name_agrees_with_fp8_inputs() -> None:
    name = "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT"
    found = _classify(name, "aten::_scaled_mm", E4M3, E4M3)
    assert (found.precision, found.conflict) == (Precision.MXFP8, None)


def test_a_split_k_kernel_of_xmma_has_its_types_and_no_operations_of_its_own() -> None:
    name = "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64_execute_split_k_kernel"
    found = classify(decode(name), None)
    assert (found.role, found.precision, found.split_k) == (Role.GEMM, Precision.FP8, True)

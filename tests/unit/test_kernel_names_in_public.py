# ruff: noqa: E501  (a kernel's name does not fold)
"""Kernel names of public sources, labelled by what the source computes before they were decoded.

Found in the sources and traces of DeepGEMM, FlashInfer, Transformer Engine, Primus-Turbo, torchao,
aiter, hpc-ops, Liger, hipBLASLt, SGLang and of smaller projects; the names of some helpers around
products are variations of such. Several labels are right where a name leaves the type open: what
may be weights alone, or an imitation, must never be told as FP8.
"""

from __future__ import annotations

import pytest

from fp8verify.kernels import decode

# name | role | precision of GEMMs; alternatives with commas
NAMES = """
void fp8_gemm_nt_kernel<true>(__nv_fp8_e4m3 const*, float const*, __nv_fp8_e4m3 const*, float const*, __nv_bfloat16*, long, long, long) | gemm | fp8,unknown
void fp8_gemm_kernel<32>(__nv_fp8_e4m3 const*, __nv_fp8_e4m3 const*, __half*, int, int, int) | gemm | fp8,unknown
fp8_gemm_kernel(float const*, float const*, float const*, float const*, float*, int, int, int) | gemm | unknown,fp32
fp8_gemm_kernel(float const*, float const*, float*, float, float, float, int, int, int) | gemm | unknown,fp32
void fp8_gemm_kernel<16, 16, 16>(__half const*, __half const*, float*, int, int, int) | gemm | unknown,fp16
fp8_gemm_f32(unsigned char const*, unsigned char const*, float*, int, int, int, int) | gemm | fp8,unknown
void gemm_fp8_blockwise_kernel<__nv_bfloat16>(__nv_fp8_e4m3 const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, int, int, int, int, int, int, int) | gemm | unknown
gemm_fp8(float*, unsigned char const*, unsigned char const*, int, int, int) | gemm | fp8,unknown
gemm_fp8_kernel(float const*, __nv_fp8_e4m3 const*, float*, int, int, int) | gemm | unknown
gemm_fp8_tc_kernel(unsigned char const*, unsigned char const*, __nv_bfloat16 const*, unsigned char const*, unsigned char const*, float*, int, int, int) | gemm | unknown
gemm_fp8_kernel(unsigned char const*, float const*, unsigned char const*, unsigned char const*, float const*, float*, int, int, int) | gemm | fp8,unknown
gemm_fp8_fused_fp16(unsigned char const*, unsigned char const*, float*, int, int, int) | gemm | unknown
void fp8_bf16_gemm_kernel_tmpl<64>(__nv_bfloat16 const*, unsigned char const*, __nv_bfloat16*, __nv_bfloat16 const*, int, int, int) | gemm | unknown
void fp8_gemv_batch_kernel<PerTensor>(unsigned char const*, __nv_bfloat16 const*, float*, int, int, int) | gemm | unknown
fp8_gemv_groupwise_bf16_kernel(__nv_bfloat16*, __nv_fp8_e4m3 const*, __nv_bfloat16 const*, float const*, int, int) | gemm | unknown
fp8_gemv_kernel | gemm | unknown
fp8_e4m3_to_bf16(unsigned char const*, __nv_bfloat16*, float const*, int) | cast_quantize,other,elementwise | fp8,unknown
fp8_mma_kernel(float*) | gemm,other | fp8,unknown
fp8_byte_pack_kernel(__nv_bfloat16 const*, unsigned char*, int) | cast_quantize,other | fp8,unknown
fp8_dequant_blocks_kernel(unsigned char const*, float*, int) | cast_quantize | fp8,unknown
fp8_wo_a_group_major_quant_ue8m0_kernel | cast_quantize | fp8,mxfp8,unknown
fp8_mm_kernel(__hip_fp8_e4m3_fnuz const*, __hip_fp8_e4m3_fnuz const*, float const*, float const*, __hip_bfloat16*) | gemm | fp8,unknown
fp8_gemm1_swiglu_kernel(__nv_fp8_e4m3 const*, float const*, __nv_fp8_e4m3 const*, float const*, float*) | gemm,grouped_gemm | fp8,unknown
fp8_gemm_blockwise_quant_A_1x128__B_128x128__output_fp32(__nv_fp8_e4m3 const*, float const*, __nv_fp8_e4m3 const*, float const*, float*, int, int, int) | gemm | fp8,unknown
_w8a8_triton_block_scaled_mm | gemm | unknown,fp8
_w8a8_block_int8_matmul | gemm | int8
w8a8_matmul_kernel(signed char const*, signed char const*, int*, int, int, int, float, float, float) | gemm | int8,unknown
w8a8_matmul_kernel(float const*, int, float const*, int, float*, int, int, int, int, float, float) | gemm | unknown,fp32
void w8a8_wsas_gemv<4, 1, 128>(signed char*, signed char*, __half*, __half*, __half*, int, int) | gemm | unknown,int8
w8a8_dequant_bias_gelu(int const*, float const*, float const*, float const*, float*, int) | cast_quantize,other,elementwise | unknown
w8a8_quant_rowwise_f16(__half const*, signed char*, float*, unsigned int) | cast_quantize | unknown,int8
w8a8_smooth_gemm_bf16_kernel(__nv_bfloat16*, signed char const*, signed char const*, float const*, float const*, int) | gemm | int8,unknown
W8A8O8GEMVKernel(signed char*, signed char const*, float const*, signed char const*, float const*, unsigned long, unsigned long) | gemm | int8,unknown
blockwise_mxfp8_gemm_kernel | gemm | mxfp8
naive_mxfp8_gemm_kernel(unsigned char const*, float const*, unsigned char const*, float const*, float*, int, int, int) | gemm | unknown
void blackwell_mxfp8_gemm_kernel<MXFP8>(void*, void const*, void const*, void const*, void const*) | gemm | mxfp8,unknown
_mxfp8_gemm_kernel | gemm | mxfp8
_grouped_mxfp8_gemm_kernel | grouped_gemm | mxfp8
mxfp8_scaled_mm_gfx950_bf16_bm128_bn128_bk128_s2_mw2_nw2 | gemm | mxfp8,unknown
fused_nvfp4_gemm_kernel | gemm | nvfp4,unknown
fused_nvfp4_res_gemm_kernel | gemm | nvfp4,unknown
void w4a8_nvfp4_gemm_kernel<4, 2, 4, 4, 3, 1, 0>(GemmParams) | gemm | unknown
nvfp4_gemm_kernel(unsigned char const*, unsigned char const*, unsigned char const*, unsigned char const*, __nv_bfloat16*, int, int, int, int, int, float) | gemm | nvfp4,unknown
_nvfp4_gemm_kernel | gemm | nvfp4
nvjet_sm103_tst_128x16_64x12_2x1_2cta_v_bz_TNT | gemm | bf16
nvjet_sm103_hsh_128x256_64x6_2x1_2cta_v_bz_NNT | gemm | fp16
nvjet_sm103_tst_128x24_64x11_4x1_v_bz_splitk_tnt | gemm | bf16,unknown
nvjet_sm120_qqtsq_mma_128x128x64_3_64x32x64_tmaAB_alignCD4_bz_TNNN | gemm | fp8
nvjet_sm120_hss_mma_128x176x64_2_32x88x64_tmaAB_alignCD4_bz_NNNN | gemm | fp16
nvjet_sm120_tst_mma_32x16x128_5_16x16x128_tmaAB_alignCD4_bz_splitK_TNNN | gemm | bf16
nvjet_sm120_qqhsh_mma_128x64x64 | gemm | fp8,unknown
nvjet_sm90_qqtst_128x160_128x5_2x1_v_bz_TNT | gemm | fp8
nvjet_sm90_qqtst_128x128_128x6_1x2_h_bz_ovscale_bias_TNT | gemm | fp8
nvjet_sm90_tst_256x160_64x4_1x2_h_bz_coopA_TNT | gemm | bf16
Cijk_Alik_Bljk_F8F8S_BH_UserArgs_MT256x256x256_MI16x16x1_SN_LDSB0_AFC0 | gemm | fp8
Cijk_Alik_Bljk_F8F8S_SR_BH_MT256x256x256 | gemm | fp8,unknown
Cijk_Alik_Bljk_F8SS_BH_MT128x128x128_MI16x16x1 | gemm | fp8
Cijk_Alik_Bljk_F8HS_BH_MT128x128x128_MI16x16x1 | gemm | fp8
Custom_Cijk_Alik_Bljk_F8B8BS_BH_Bias_SAB_SAV_UserArgs_shortname1 | gemm | fp8
Cijk_Ailk_Bjlk_BSS_BH_MT128x128x64 | gemm | bf16
Cijk_Ailk_Bjlk_HSS_BH_MT128x128x64 | gemm | fp16
Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN | gemm | fp32
Custom_Cijk_Alik_Bljk_BBS_BH_Bias_AS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_K1_MIWT4_16_WSGRB2_DTVA | gemm | bf16
Cijk_Alik_Bljk_F8BS_MT128x128x128_MI16x16x1_SN_TEST | gemm | fp8
Cijk_Alik_Bljk_F8BS_exact.kd | gemm | fp8
_grouped_fp8_persistent_gemm_kernel | grouped_gemm | fp8,unknown
_grouped_variable_k_gemm_kernel | grouped_gemm | unknown
kernel_cutlass_kernel___main__PersistentDenseGemmKernel_object_at__TiledMMA_ThrLayoutVMNK11110000_PermutationMNK____MMAAtom_ThrID10_ShapeMNK1281288_TVLayoutA112881281128_TVLayoutB11288128_0 | gemm,other | unknown,tf32
kernel_cutlass_kernel___main__RMSNormKernel_object_at__tensorptrbf16gmemalign16o409640961_tensorptrbf16_gmem_align16_o_40961_0 | reduction,other | unknown
kernel_cutlass__convert_kernel_tensorptrf16gmemalign16o125611101000256_tensorptrf32gmemalign16o12561110000i64div2561 | cast_quantize,other | unknown
kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__ | reduction,elementwise,other | unknown
kernel_cutlass_elementwise_add_kernel_tensorptrf32gmemo16128i641i64div16128 | elementwise | unknown
bmm_E4m3_E4m3E4m3_Fp32_BtokBfloat16_t128x32x256u2_s5_et128x32_m128x32x32_c1x1x1_rM_TN_transOut_schedS_biasM_dsFp8 | gemm,grouped_gemm | fp8
bmm_Bfloat16_E4m3E4m3_Fp32_t128x8x256_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_TN_transOut_noShflA_dsFp8_schedP2x2x1x3_sm100f | gemm,grouped_gemm | fp8
bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128_s6_et64x8_m64x8x16_sm100f | gemm,grouped_gemm | bf16
bmm_Bfloat16_MxE2m1E4m3_Fp32_t128x8x256_s6_sm100f | gemm,grouped_gemm | unknown
bmm_E2m1_E2m1E2m1_Fp32_bA16_bB16_bC16_t128x8x512_s3_sm100f | gemm,grouped_gemm | nvfp4,fp4,mxfp4,unknown
sparse_attn_fwd_kernel | attention | unknown
sglang::fused_a_gemm_kernel | gemm | unknown
void sglang::fused_a_gemm_kernel<1, 2112, 7168, 16>(__nv_bfloat16*, __nv_bfloat16 const*, __nv_bfloat16 const*) | gemm | bf16
TgvGemmCuteExtKernel | gemm,other | unknown
tiny_n_gemm_kernel | gemm | unknown
void tinygemm_kernel<16, 8>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, int, int, int) | gemm | unknown,bf16
kernel_tinygemm2_sm100_stage4_pdl | gemm,other | unknown
void FP8PrefillWithKVCacheKernel<Mainloop>(P) | attention | unknown,fp8
attention_tiled_streaming_kernel | attention | unknown
dequant_q8_0_kernel | cast_quantize | unknown
gemv_dp4a_gate_up_kernel | gemm | unknown,int8
_attn_fwd_sparse | attention | unknown
per_token_group_quant_8bit_kernel | cast_quantize | unknown,fp8
fast_hadamard_transform_kernel | cast_quantize,other,elementwise | unknown
group_quantize_mxfp8 | cast_quantize | mxfp8,unknown
quantize_mxfp8_kernel_cast_only | cast_quantize | mxfp8
router_gemm_kernel_bf16_output | gemm | unknown
group_gemm_fp8_scatter_kernel | grouped_gemm,gemm | fp8,unknown
blockwise_gather_kernel | other,elementwise,communication | unknown
void group_gemm_pertensor_fp8_kernel<Cfg>(P) | grouped_gemm | fp8,unknown
void moe_w4a8_gemm_kernel<cutlass::float_e4m3_t>(P) | gemm,grouped_gemm | unknown
a8w4_moe_gemm_kernel | grouped_gemm | unknown
w8a16_fp8_gemm_kernel | gemm | unknown
fp8_weight_only_gemm_kernel | gemm | unknown
weight_only_fp8_matmul | gemm | unknown
dequant_fp8_gemm | gemm | unknown
fp8_dequant_matmul_kernel | gemm | unknown
matmul_dequant_fp8_weight | gemm | unknown
gemm_with_fp8_weights | gemm | unknown
bf16_x_fp8_gemm_kernel | gemm | unknown
gemm_bf16_fp8_kernel | gemm | unknown
mixed_fp8_bf16_matmul | gemm | unknown
fp8_kv_gemm_kernel | gemm,other,attention | unknown
linear_fp8_weight_bf16_act | gemm | unknown
marlin_fp8_gemm | gemm | unknown
gemm_a16w8_kernel | gemm | unknown
_gemm_afp4wfp4_kernel | gemm | mxfp4
gemm_fp8_out_bf16_in_kernel | gemm | unknown
bf16_gemm_fp8_out_kernel | gemm | bf16,unknown
bf16_matmul_quant_fp8_epilogue | gemm | unknown,bf16
bf16_gemm_with_fp8_quantize | gemm | unknown,bf16
int8_gemm_fp8_scale_kernel | gemm | int8,unknown
fp32_gemm_fp8_sim | gemm | unknown,fp32
fp8_simulated_gemm | gemm | unknown
fp8_gemm_fallback_bf16 | gemm | unknown
fp8_gemm_test_kernel | gemm | unknown,fp8
gemm_fp8_stats_kernel | gemm,other,reduction | unknown,fp8
fp8_gemm_scale_kernel | gemm,other,cast_quantize | unknown,fp8
fp8_gemm_workspace_init | other | unknown
fp8_gemm_amax_reduce_kernel | reduction,amax_reduce,other | unknown,fp8
zero_fp8_grouped_gemm_output | other,elementwise,grouped_gemm | unknown
copy_fp8_gemm_inputs | other,elementwise,memory,cast_quantize | unknown,fp8
fp8_gemm_inputs_transpose | transpose,other | unknown,fp8
fp8_matmul_backward_scale_grad | gemm,other,reduction | unknown,fp8
fp8_linear_dbias_reduce | reduction,other | unknown
bias_grad_fp8_linear | elementwise,reduction,other,gemm | unknown
fp8_linear_input_cast | cast_quantize | fp8,unknown
fp8_linear_cast_weight_kernel | cast_quantize | fp8,unknown
pad_fp8_gemm_a | other,elementwise | unknown,fp8
fp8_gemm_epilogue_kernel | gemm,other,elementwise | unknown
check_fp8_gemm_overflow | other,gemm | unknown
validate_fp8_matmul | gemm,other | unknown
grouped_gemm_variable_k_postprocess | other,elementwise | unknown
fp8_moe_permute_kernel | elementwise,other | unknown,fp8
fp8_moe_gating_topk | other,reduction | unknown
cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn_align8 | gemm | bf16
sm80_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize64x64x64_stage4_execute_kernel__5x_cublas | gemm | int8
sm89_xmma_gemm_e4m3e4m3_e4m3f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x32_execute_kernel__5x_cublas | gemm | fp8
sm90_xmma_gemm_e4m3f32_e4m3f32_f32_tn_n_tilesize64x128x128_warpgroupsize1x1x1_bias_bf16_execute_segment_k_off_kernel__5x_cublas | gemm | fp8
sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize96x128x32_stage4_warpsize2x2x1_tensor16x8x16_execute_kernel_trt | gemm | bf16
sm100_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128 | gemm | fp8
sm80_xmma_fprop_implicit_gemm_e4m3e4m3_e4m3f32_f32_nhwckrsc_nhwc_tilesize128x128x64 | conv | fp8,unknown
gemm_fusion_dot_3 | gemm,other | unknown
void ck_tile::kentry<256, 2, ck_tile::QuantGemmKernel<ck_tile::GemmTile1DPartitioner<>, ck_tile::ABQuantGemmPipelineAgBgCrCompV3<ck_tile::GemmABQuantPipelineProblem<ck_tile::fp8_t, float, ck_tile::fp8_t, float, float>>>>(P) | gemm | fp8,unknown
void ck_tile::kentry<1, ck_tile::GemmKernel<ck_tile::GemmSpatiallyLocalTilePartitioner<>, ck_tile::GemmPipelineAgBgCrCompV3<ck_tile::UniversalGemmPipelineProblem<ck_tile::bfloat16_t, ck_tile::bfloat16_t, float>>>>(P) | gemm | bf16,unknown
void ck::kernel_gemm_xdlops_v2r3<ck::GridwiseGemm_k0mk1_k0nk1_mn_xdlops_v2r3<256, signed char, int, signed char>>(P) | gemm | int8,unknown
MIOpenConvUni | conv,other | unknown
igemm_fwd_gtcx35_nhwc_bf16_bx0_ex1_bt256x128x32_wt32x32x8_ws1x1_wr2x2 | conv | bf16
void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>>, cute::tuple<cute::C<128>>, 128, cutlass::float_e4m3_t, float, cutlass::arch::Sm90>>>(P) | attention | fp8,unknown
void flashinfer::gemm::CutlassGemmGroupwiseScaledSM120<cutlass::float_e4m3_t>(P) | gemm | fp8,unknown
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm120TmaWarpSpecializedBlockwiseScaling<2, 2, cute::tuple<cute::C<1>>, cutlass::gemm::KernelTmaWarpSpecializedBlockwiseCooperativeSm120<2>>, cute::tuple<cute::C<128>>, cutlass::float_e4m3_t, cute::tuple<cute::tuple<long>>, cutlass::float_e4m3_t, cute::tuple<cute::tuple<long>>>>>(P) | gemm | fp8
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm100TmaUmmaWarpSpecialized<4, 2, 2>, cute::tuple<cute::C<128>>, cutlass::bfloat16_t, cute::tuple<long>, cutlass::bfloat16_t, cute::tuple<long>>, cutlass::epilogue::collective::CollectiveEpilogue<cutlass::float_e4m3_t>>>(P) | gemm | bf16
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4>, cute::tuple<cute::C<128>>, cutlass::half_t, cute::tuple<long>, cutlass::half_t, cute::tuple<long>>, cutlass::epilogue::collective::CollectiveEpilogue<cutlass::float_e4m3_t>>>(P) | gemm | fp16
void cutlass::Kernel<cutlass_tensorop_e4m3_s16832gemm_e4m3_128x64_64x3_tn_align16>(P) | gemm | fp8
void cublasLt::splitKreduce_kernel<32, 16, int, __nv_fp8_e4m3, __nv_fp8_e4m3, float>(int) | reduction,gemm | unknown,fp8
gemm_kernel(kittens::gl<kittens::fp8e4m3>, kittens::gl<kittens::fp8e4m3>) | gemm | fp8,unknown
matmul_fp8_kernel_kernel | gemm | fp8,unknown
tilelang_fp8_gemm_2xAcc_kernel | gemm | fp8,unknown
_moe_bwd_down_proj_kernel | grouped_gemm | unknown
_moe_bwd_dW2_kernel | grouped_gemm | unknown
_moe_bwd_dX_expanded_kernel | grouped_gemm | unknown
turbo_gemm_mxfp8_256x256x128_16x16x128_4wave_kernel | gemm | mxfp8
_grouped_blockwise_fp8_variable_k_gemm_kernel | grouped_gemm | fp8
compute_grouped_gemm_fp8_variable_k_args | other | unknown
cooperative_1x128_by_128x128_fp8_gemm_kernel | gemm | fp8
a_fused_m_grouped_bf16_gemm_contiguous_tl_impl | grouped_gemm | bf16
fp8_gemm_kernel_sm90_push_fc1_fused | gemm | fp8,unknown
combine_publish_fp8_grouped_kernel | other | unknown
group_gemm_blockwise_fp8_kernel | grouped_gemm | fp8,unknown
_gemm_a16wfp4_preshuffle_kernel | gemm | unknown
_gemm_afp8wfp8_preshuffle_kernel | gemm | mxfp8
_batched_gemm_bf16_kernel | gemm | bf16
NVFP4QuantizeAppendPagedKVCacheKernel | cast_quantize | unknown,nvfp4
_fp8_legacy_to_mxfp8_kernel | cast_quantize | mxfp8
reduce_fp8_in_bf16_out_cuda | reduction | unknown
gemm_bf16xfp32_kernel | gemm | unknown
"""


@pytest.mark.parametrize(
    ("name", "roles", "precisions"),
    [[part.strip() for part in row.rsplit("|", 2)] for row in NAMES.splitlines() if row],
)
def test_a_name_is_told_as_its_source_computes(name: str, roles: str, precisions: str) -> None:
    found = decode(name)
    assert found.role.value in roles.split(",")
    if found.role.is_gemm:
        assert found.precision.value in precisions.split(",")

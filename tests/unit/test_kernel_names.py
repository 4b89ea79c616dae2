# ruff: noqa: E501  (a kernel's name does not fold)
"""Each library's grammar on real names: role, precision class, operand and output types."""

from __future__ import annotations

import pytest

from fp8verify.kernels import decode
from fp8verify.kernels.symbol import Symbol
from fp8verify.report.model import Precision, Role, Scaling

# name | role | precision | A | B | out; "-" where the name does not say
NVJET = """
nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_TNT|gemm|fp8|e4m3|e4m3|bf16
nvjet_qqtst_112x128_128x7_2x1_v_bz_coopA_algo2_TNN|gemm|fp8|e4m3|e4m3|bf16
nvjet_sm90_qrsss_64x8_128x16_1x2_h_bz_TNT|gemm|fp8|e4m3|e5m2|fp32
nvjet_sm90_rqhsh_24x64_128x16_4x2_h_bz_algo2_TNN|gemm|fp8|e5m2|e4m3|fp16
nvjet_sm100_qrtst_128x256_128x6_2x1_2cta_v_bz_NNT|gemm|fp8|e4m3|e5m2|bf16
nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT|gemm|bf16|bf16|bf16|bf16
nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN|gemm|bf16|bf16|bf16|bf16
nvjet_hss_64x8_64x16_1x1_v_bz_splitK_NNT|gemm|fp16|fp16|fp16|fp32
nvjet_sss_tf32_128x256_TNT|gemm|tf32|tf32|tf32|fp32
nvjet_sm120_tst_mma_64x32x64_8_16x32x64_tmaAB_alignCD4_bz_TNNN|gemm|bf16|bf16|bf16|bf16
nvjet_sm120_qqtst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN|gemm|fp8|e4m3|e4m3|bf16
nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT|gemm|mxfp8|e4m3|e4m3|bf16
nvjet_sm100_oohsh_128x256_256x5_2x2_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT|gemm|nvfp4|e2m1|e2m1|fp16
nvjet_sm90_tst_128x64_64x8_1x2_h_bz_auxq_TNT|gemm|bf16|bf16|bf16|bf16
nvjet_sm90_qqtst_128x160_128x5|gemm|fp8|e4m3|e4m3|bf16
nvjet_sm90_qqtst|gemm|unknown|-|-|-
nvjet_sm90_zzz_128x64_64x8_1x2_h_bz_TNT|gemm|unknown|-|-|-
"""

XMMA = """
sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage4_algo2_execute_kernel__5x_cublas|gemm|fp8|e4m3|e4m3|bf16
sm89_xmma_gemm_e4m3e5m2f16_e4m3e5m2f32_f32_tn_n_tilesize128x128x64_bias_f16|gemm|fp8|e4m3|e5m2|fp16
sm89_xmma_gemm_e5m2e4m3e5m2_e5m2e4m3f32_f32_tn_n_tilesize128x128x64|gemm|fp8|e5m2|e4m3|e5m2
sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_execute_kernel__5x_cublas|gemm|bf16|bf16|bf16|bf16
sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32|gemm|tf32|tf32|tf32|fp32
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x128x8_stage3_ffma_aligna4|gemm|fp32|fp32|fp32|fp32
sm80_xmma_gemm_f16f16_f32f32_f32_nn_n_tilesize128x128x8_stage3_ffma_aligna2|gemm|fp32|fp32|fp32|fp16
sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize64x64x64|gemm|bf16|bf16|bf16|fp32
sm90_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize128x128x128|gemm|int8|int8|int8|int8
sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize32x32x16_stage5|gemm|fp64|fp64|fp64|fp64
sm80_xmma_gemm_cc_tilesize64x64x8_stage1_ffma_cp32|gemm|fp32|-|-|-
sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_cudnn_train|conv|tf32|tf32|tf32|fp32
"""

CUBLAS = """
ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn|gemm|bf16|bf16|bf16|bf16
turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn|gemm|fp16|fp16|fp16|fp16
ampere_h16816gemm_128x128_ldg8_relu_stages_32x5_nn|gemm|fp16|fp16|fp16|-
ampere_int32_i16832gemm_int8_128x256_ldg16_stages_64x3_nt|gemm|int8|int8|int8|int32
volta_sgemm_128x64_tn|gemm|fp32|fp32|fp32|-
ampere_fp16_sgemm_fp16_128x128_lower_tn|gemm|fp32|fp32|fp32|fp16
volta_dgemm_128x64_lower_tn|gemm|fp64|fp64|fp64|-
maxwell_gcgemm_int8_32x32_cc|gemm|fp32|-|-|-
volta_scudnn_128x64_relu_small_nn_v1|conv|fp32|fp32|fp32|-
cudnn_infer_volta_scudnn_128x64_relu_xregs_large_nn_v1|conv|fp32|fp32|fp32|-
void sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 34>(float*, float const*)|gemm|fp32|fp32|fp32|-
void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const> >(int)|gemm|fp32|fp32|fp32|-
void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<__nv_bfloat16 const>, cublasGemvTensorStridedBatched<float> > >(int)|gemm|bf16|bf16|bf16|-
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParams<cublasGemvTensorStridedBatched<float const> > >(int)|gemm|fp32|fp32|fp32|-
std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false>(int)|gemm|bf16|bf16|bf16|-
void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(int)|reduction|unknown|-|-|-
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_fp8_e4m3, float, __half, true>(int)|reduction|unknown|-|-|-
"""

CUTLASS_PROCEDURAL = """
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(P)|gemm|bf16|bf16|bf16|bf16
void cutlass::Kernel2<cutlass_75_tensorop_s1688gemm_planar_complex_f16_128x64_nn_align2>(P)|gemm|fp16|fp16|fp16|-
void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align1>(P)|gemm|tf32|tf32|tf32|-
void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_forwardCompat_128x128_16x5_nn_align4>(P)|gemm|tf32|tf32|tf32|-
cutlass_80_tensorop_s1688bf16gemm_128x128_16x4_nn_align4|gemm|bf16|bf16|bf16|-
cutlass_80_tensorop_i16832gemm_s8_128x256_128x3_tn_align16|gemm|int8|int8|int8|-
void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>(P)|gemm|fp32|fp32|fp32|-
void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_128x128_16x3_nn_align1>(P)|gemm|fp64|fp64|fp64|-
void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_s8_128x128_32x4_tn_align8>(P)|gemm|unknown|fp16|int8|-
void cutlass::Kernel2<cutlass_80_tensorop_z884herk_64x64_16x3_ln_align1>(P)|other|unknown|-|-|-
void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3_nhwc_align4>(P)|conv|tf32|tf32|tf32|-
void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm|gemm|unknown|-|-|-
cutlass3x_sm100_tensorop_s128x128x32gemm_e4m3_e5m2_f32_bf16_e4m3_128x128x128_0_nnn_align16|gemm|fp8|e4m3|e5m2|e4m3
cutlass3x_sm100_tensorop_s128x128x32gemm_f8_f8_f32_f16_f16_128x128x128_0_nnn_align16|gemm|fp8|fp8|fp8|fp16
cutlass3x_sm120_bstensorop_s16832gemm_block_scaled_ue8m0xe4m3_ue8m0xe5m2_f32_bf16_bf16_128x128x128|gemm|mxfp8|e4m3|e5m2|bf16
cutlass3x_sm100_bstensorop_s128x128x64gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32_bf16_bf16_128x128x256|gemm|nvfp4|e2m1|e2m1|bf16
cutlass3x_sm103_bstensorop_s128x128x96gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_ue4m3xe2m1_128x128x768|gemm|nvfp4|fp4|fp4|e2m1
cutlass3x_sm100_tensorop_s128x128x8tf32gemm_f32_f32_f32_f32_f32_128x128x32_0_nnn_align4|gemm|tf32|tf32|tf32|fp32
cutlass3x_sm100_tensorop_s128x128x16_9xbf16gemm_f32_f32_f32_f32_f32_128x128x32_0_nnn|gemm|fp32|fp32|fp32|fp32
cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x128x16_1x1x1_3_nnn_align1|gemm|fp32|fp32|fp32|fp32
cutlass3x_sm100_bstensorop_s128x128x32gemm_block_scaled_ue8m0xe4m3|gemm|unknown|-|-|-
"""

AMD = """
Cijk_Ailk_Bjlk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x64x32_MI32x32x1_SN|gemm|bf16|bf16|bf16|bf16
Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_MI16x16x1|gemm|bf16|bf16|bf16|bf16
Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN|gemm|fp32|fp32|fp32|fp32
Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1|gemm|fp32|fp32|fp32|fp32
Cijk_Alik_Bljk_HHS_BH_MT64x64x64_M500j5HD|gemm|fp16|fp16|fp16|fp16
Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT160x192x128_Test0|gemm|fp8|e4m3|e4m3|bf16
Custom_Cijk_Alik_Bljk_F8BS_BH_SAB_NTD_UserArgs_shortname1_gfx950|gemm|fp8|e4m3|e4m3|bf16
Cijk_Ailk_Bjlk_F8B8BS_BH_Bias_UserArgs_MT256x256x128|gemm|fp8|e4m3|e5m2|bf16
Cijk_Alik_Bljk_F8BS_BH_MXAE8B32_MXBE8B32_UserArgs_MT16x16x128|gemm|mxfp8|e4m3|e4m3|bf16
Cijk_Alik_Bljk_S_SX_B_Bias_MT16x16x16|gemm|tf32|tf32|tf32|fp32
_ZN5aiter43fp8gemm_bf16_blockscale_BpreShuffle_128x128E|gemm|fp8|fp8|fp8|bf16
_ZN5aiter43fp8gemm_bf16_blockscale_BpreShuffle_128x128E.kd|gemm|fp8|fp8|fp8|bf16
_ZN5aiter50fmoe_bf16_blockscaleFp8_g1u1_vs_silutg_psx256E|grouped_gemm|fp8|fp8|fp8|bf16
hgemm_bf16_32x64x128x5_SPK8_W2x2x1_BLDS1_TN_AS1_0|gemm|bf16|bf16|bf16|-
aiter::fmha_fwd_hd128_bf16_causal|attention|bf16|bf16|bf16|-
void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemmMultiD_ABScale_xdl_cshuffle_v3<ck::tensor_layout::gemm::RowMajor, ck::Tuple<>, ck::f8_fnuz_t, ck::f8_fnuz_t, float, float, ck::Tuple<>, unsigned short, ck::tensor_operation::element_wise::PassThrough, 256> >(P)|gemm|fp8|e4m3|e4m3|bf16
void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<ck::tensor_layout::gemm::RowMajor, unsigned short, unsigned short, float, float, ck::Tuple<float>, unsigned short, PassThrough> >(P)|grouped_gemm|bf16|bf16|bf16|bf16
void ck::kernel_gemm_xdl_cshuffle_v3_multi_d|gemm|unknown|-|-|-
igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8|conv|bf16|bf16|bf16|-
void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0, 1>(P)|attention|unknown|-|-|-
"""

LIBRARIES = """
void deep_gemm::fp8_gemm_kernel_swapAB<34816u, 5120u, 128u, 16u>|gemm|fp8|e4m3|e4m3|-
void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 8192u, 1u, 256...|gemm|fp8|e4m3|e4m3|-
sm100_fp8_gemm_1d1d_impl<cute::UMMA::Major::K, 0, GemmType::Normal, false, cutlass::bfloat16_t, EpilogueIdentity>|gemm|fp8|e4m3|e4m3|bf16
void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, (deep_gemm::GemmType)1, cutlass::bfloat16_t>(P)|grouped_gemm|fp8|e4m3|e4m3|bf16
void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<0u, cutlass::float_e4m3_t, cutlass::float_e4m3_t, cutlass::bfloat16_t>(P)|gemm|fp8|e4m3|e4m3|bf16
void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<0u, cutlass::float_e4m3_t, cutlass::float_e2m1_t, cutlass::bfloat16_t>(P)|gemm|unknown|e4m3|e2m1|bf16
void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<0u, 1u...|gemm|unknown|-|-|-
void deep_gemm::sm90_bf16_gemm_impl<(cute::UMMA::Major)0, 0u, 4096u>(P)|gemm|bf16|bf16|bf16|-
_gluon_deepgemm_fp8_paged_mqa_logits|attention|unknown|-|-|-
void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel::Params)|grouped_gemm|fp8|fp8|fp8|-
void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_dptp128c_acc::GemmKernel>(P)|gemm|fp8|fp8|fp8|-
void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*)|transpose|unknown|-|-|-
bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s5_et128x8_m128x8x16|grouped_gemm|bf16|bf16|bf16|bf16
bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3|grouped_gemm|mxfp4|e2m1|e4m3|bf16
bmm_MxE4m3_MxE4m3MxE4m3_Fp32_t128x16x256u2_s3|grouped_gemm|mxfp8|e4m3|e4m3|e4m3
bmm_E2m1_E2m1E2m1_Fp32_t128x16x256u2_s3|grouped_gemm|nvfp4|e2m1|e2m1|e2m1
fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext|attention|fp8|e4m3|e4m3|bf16
void marlin::Marlin<1125899906909960l, 2814749767172868l, 1125899906909960l, 1125899906909960l, 128>(P)|gemm|unknown|bf16|e4m3|bf16
void marlin_moe_wna16::Marlin<1125899906910725l, 1125899907892224l, 1125899906910725l, 1l>(P)|grouped_gemm|unknown|fp16|int4|fp16
gemv_quantized_bf16_fp8|gemm|unknown|bf16|fp8|-
void gemv_quantized_fp8_fp8<1ul, 2ul, 128ul>(cutlass::float_e4m3_t*, cutlass::float_e4m3_t*)|gemm|fp8|fp8|fp8|-
fbgemm_gpu::bf16fp8bf16_fast_gemv(at::Tensor, at::Tensor, at::Tensor)|gemm|unknown|bf16|fp8|bf16
gemv_bf16(__nv_bfloat16*, __nv_bfloat16*)|gemm|bf16|bf16|bf16|-
cudaCoreGemm<half>|gemm|fp16|fp16|fp16|-
"""

TRITON = """
triton_tem_fused_mm_10|gemm|unknown|-|-|-
triton_tem_fused__scaled_mm_3|gemm|unknown|-|-|-
triton_tem_fused__grouped_mm_2|grouped_gemm|unknown|-|-|-
triton_tem_fused_flex_attention_1|attention|unknown|-|-|-
triton_tem_fused_convolution_4|conv|unknown|-|-|-
triton_poi_fused_add_addmm_silu_3|elementwise|unknown|-|-|-
triton_poi_fused__fused_rms_norm__scaled_mm__to_copy_clamp_mul_reciprocal_t_view_4|cast_quantize|unknown|-|-|-
triton_red_fused__to_copy_abs_amax_clamp_clamp_min_div_round_1|cast_quantize|unknown|-|-|-
triton_per_fused__fused_rms_norm_abs_max_view_4|amax_reduce|unknown|-|-|-
triton_red_fused_add_mean_mul_pow_rsqrt_0|reduction|unknown|-|-|-
_w8a8_block_fp8_matmul_splitk|gemm|fp8|fp8|fp8|-
_w8a8_block_int8_matmul|gemm|int8|int8|int8|-
_kernel_matmul_fp8_row_no_fast_acc|gemm|fp8|fp8|fp8|-
_batched_gemm_a8w8_a_per_token_group_prequant_kernel_HAS_BIAS_0|gemm|unknown|-|-|-
_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu|grouped_gemm|unknown|bf16|fp4|bf16
fused_moe_kernel|grouped_gemm|unknown|-|-|-
scaled_mm_kernel|gemm|unknown|-|-|-
"""

WORDS = """
_fp8_persistent_gemm_kernel|gemm|unknown|-|-|-
_grouped_bf16_persistent_gemm_kernel_ws|grouped_gemm|bf16|bf16|bf16|-
_grouped_mxfp8_variable_k_gemm_kernel|grouped_gemm|mxfp8|fp8|fp8|-
_f8f8bf16_groupwise_grouped_kernel|grouped_gemm|fp8|fp8|fp8|bf16
_mx8mx8bf16_grouped_2d3d_kernel|grouped_gemm|mxfp8|fp8|fp8|bf16
_mx8mx4bf16_kernel|gemm|mxfp4|fp8|fp4|bf16
_mxfp4_gemm_kernel|gemm|mxfp4|fp4|fp4|-
some_nvfp4_mm_kernel|gemm|nvfp4|fp4|fp4|-
_kernel_int8_gemm|gemm|int8|int8|int8|-
blockwise_fp8_gemm_kernel|gemm|fp8|fp8|fp8|-
w8a8_block_fp8_matmul_kernel|gemm|fp8|fp8|fp8|-
w8a8_int8_matmul|gemm|int8|int8|int8|-
w8a16_fp8_gemm_kernel|gemm|unknown|-|-|-
fp8_gemm_quantize_input|gemm|unknown|-|-|-
fp8_matmul_amax_kernel|gemm|unknown|-|-|-
simulated_fp8_gemm_kernel|gemm|unknown|-|-|-
fp8_gemm_ref|gemm|unknown|-|-|-
fp8_gemm_swizzle_kernel|gemm|unknown|-|-|-
_gemm_afp8wfp8_preshuffle_kernel|gemm|mxfp8|fp8|fp8|-
_batched_gemm_afp4_wfp4_kernel|gemm|mxfp4|fp4|fp4|-
_gemm_a8w8_blockscale_kernel_GROUP_K_128_GROUP_N_128|gemm|unknown|-|-|-
_gemm_a16_w16_kernel|gemm|unknown|-|-|-
_gemm_a16wfp4_kernel|gemm|unknown|-|-|-
_moe_gemm_a4w4_prefill|grouped_gemm|mxfp4|fp4|fp4|-
_moe_gemm_int8_smoothquant|grouped_gemm|int8|int8|int8|-
_fused_moe_kernel_mxfp4_silu|grouped_gemm|unknown|-|-|-
_fused_moe_persistent_kernel|grouped_gemm|unknown|-|-|-
_ff_a16w16_fused_gated|gemm|unknown|-|-|-
_fused_gemm_a8w8_blockscale_a16w16_kernel|gemm|unknown|-|-|-
gemm_e4m3_e5m2_kernel|gemm|fp8|e4m3|e5m2|-
gemm_bf16_fp8_kernel|gemm|unknown|-|-|-
bf16_gemm_fp8_out_kernel|gemm|bf16|bf16|bf16|-
gemm_silu_fp8_quant_kernel|gemm|unknown|-|-|-
gemm_fp8_weight_only_kernel|gemm|unknown|-|-|-
fp8_dequant_gemm_kernel|gemm|unknown|-|-|-
tgmm_persistent_kernel|grouped_gemm|unknown|-|-|-
XXT_kernel|gemm|unknown|-|-|-
ba_plus_cAA_kernel|gemm|unknown|-|-|-
linear_relu_square_kernel|gemm|unknown|-|-|-
_blockwise_fp8_unified_kernel|gemm|fp8|fp8|fp8|-
void fp8fp8FastGemvKernel<1, 8>(cutlass::float_e4m3_t*, cutlass::float_e4m3_t*, __nv_bfloat16*)|gemm|fp8|fp8|fp8|-
void flashinfer::router_gemm_kernel<__nv_bfloat16, float, 128>(float*, __nv_bfloat16 const*, __nv_bfloat16 const*)|gemm|bf16|bf16|bf16|-
void mixed_gemm_kernel<half>(half*, half const*, unsigned int const*)|gemm|unknown|-|-|-
matmul_k(float*, float*, float*, int, int, int)|gemm|fp32|fp32|fp32|-
void magma_sgemmEx_kernel<float, __nv_bfloat16, float, true, false, 6, 4, 6, 3, 4>(int)|gemm|fp32|fp32|fp32|-
volta_s884gemm_128x128_ldg8_f2f_nn|gemm|fp16|fp16|fp16|-
void deep_gemm::sm100_bf16_mega_moe_impl<1u>(void*)|grouped_gemm|bf16|bf16|bf16|-
void deep_gemm::sm100_fp8_fp4_mega_moe_impl<1u>(void*)|grouped_gemm|unknown|-|-|-
void deep_gemm::sm90_bmn_bnk_mn_gemm_impl<1u>(P)|gemm|unknown|-|-|-
_ZN5aiter47f8gemm_bf16_mxfp8fp8_ABpreShuffle_64x512_4x1_psE|gemm|mxfp8|fp8|fp8|-
_ZN5aiter48f8gemm_bf16_mxfp8fp4_ABpreShuffle_256x256_4x4_psE|gemm|mxfp4|fp8|fp4|-
_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_64x256E|gemm|mxfp4|fp4|fp4|-
_ZN5aiter42I8gemm_bf16_perTokenI8_BpreShuffle_112x256E|gemm|int8|int8|int8|bf16
_ZN5aiter47fmoe_fp16_pertokenMXfp4_g1u1_vs_gelu_2tg_32x256E|grouped_gemm|unknown|-|-|-
nvjet_sm90_qrtst_…|gemm|fp8|e4m3|e5m2|bf16
kernel_cutlass__scaled_gemm_mxfp8_kernel_tensorptrf8E4M3FNgmemalign16o153615361_tensorptrf8E4M3FNgmemalign16o512_0|gemm|mxfp8|fp8|fp8|-
kernel_cutlass_my_gemm_kernel_tensorptrf4E2M1FNgmemalign16o1_tensorptrf4E2M1FNgmemalign16o1_tensorptrf8E4M3FNgmemo4_0|gemm|nvfp4|e2m1|e2m1|-
kernel_cutlass_kernel___main__HopperWgmmaGemmKernel_object_at__CopyAtom_ThrID10_Valuetypef16_tensor000o1_CopyAtom_ThrID10_Valuetypef16_tensor000_0|gemm|fp16|fp16|fp16|-
kernel_cutlass_kernel___main__GroupedGemmKernel_object_at__TiledMMA_ThrLayoutVMNK11110000_0|grouped_gemm|unknown|-|-|-
"""

NO_GEMMS = """
void compute_sm90_group_gemm_args|other|unknown|-|-|-
interleave_fp4_fp8_weights_for_sm90_mixed_gemm_kernel|other|unknown|-|-|-
void cublasLt::epilogue::impl::globalKernel<8, 32, float, __half>(int)|other|unknown|-|-|-
void scal_kernel<float, float, 1, true>(cublasTransposeParams<float>, float const*)|other|unknown|-|-|-
_grouped_gemm_output_tail_kernel|elementwise|unknown|-|-|-
_gemm_afp4wfp4_reduce_kernel|reduction|unknown|-|-|-
_batched_gemm_splitk_reduce_kernel|reduction|unknown|-|-|-
void transformer_engine::(anonymous namespace)::row_col_rht_gemm_device<128, __nv_bfloat16>(P)|cast_quantize|unknown|-|-|-
group_row_col_rht_gemm_device_graph_safe|cast_quantize|unknown|-|-|-
to_mxfp8_dim1_kernel|cast_quantize|mxfp8|-|-|-
_to_fp8_col_major_t_and_non_t|cast_quantize|fp8|-|-|-
triton_mx_block_rearrange_2d_M_groups|cast_quantize|unknown|-|-|-
_triton_fp8_per_group_colwise_scales_dual_kernel|cast_quantize|fp8|-|-|-
_fused_dynamic_mxfp4_quant_moe_sort_kernel|cast_quantize|mxfp4|-|-|-
triton_fp8_blockwise_act_quant_k_grouped_deepgemm_kernel|cast_quantize|fp8|-|-|-
_moe_align_block_size_stage1_kernel|other|unknown|-|-|-
_w4a16_route_count_kernel|other|unknown|-|-|-
_mxfp8_all_to_all_v_kernel|communication|unknown|-|-|-
_fused_fp8_bmm_rope_cat_and_cache_mla_kernel|attention|unknown|-|-|-
_paged_attn_decode_v2_w_dot_kernel_per_token_quant|attention|unknown|-|-|-
_bwd_kernel_dq|attention|unknown|-|-|-
_fwd_grouped_kernel_stage1|attention|unknown|-|-|-
_ZN5aiter28fmha_fwd_hd128_i8fp8_gfx950E|attention|unknown|-|-|-
kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensorptrbf16gmem_0|attention|unknown|-|-|-
kernel_cutlass_kernel_quackrmsnormRMSNorm_object_at__tensorptrbf16gmemalign16o409640961_0|reduction|unknown|-|-|-
main_kernel|other|unknown|-|-|-
"""

HELPERS = """
void transformer_engine::dispatch::mxfp8::quantize_kernel::quantize_mxfp8_kernel<false, __nv_bfloat16, __nv_fp8_e5m2>(P)|cast_quantize|mxfp8|-|-|-
void transformer_engine::(anonymous namespace)::block_scaled_1d_cast_transpose_kernel<true, float, __nv_bfloat16, __nv_fp8_e4m3>(P)|cast_quantize|fp8|-|-|e4m3
void transformer_engine::quantize_transpose_nvfp4::(anonymous namespace)::block_scaled_1d_cast_transpose_kernel<false, float, unsigned char, __nv_fp8_e4m3>(P)|cast_quantize|nvfp4|-|-|-
cast_transpose_optimized_kernel(hip_bfloat16 const*, float const*, te_hip_fp8_e5m2*, te_hip_fp8_e5m2*)|cast_quantize|fp8|-|-|e5m2
void transformer_engine::transpose_dbias_kernel<8, 8, TDBiasParam<__nv_fp8_e4m3, float> >(P)|transpose|fp8|-|-|e4m3
void transformer_engine::fp8_block_scaling_recipe::fp8_block_scaling_compute_partial_amax_kernel<__nv_bfloat16>(P)|amax_reduce|fp8|-|-|-
void transformer_engine::unary_kernel<1, true, float, __half, __half>(P)|elementwise|unknown|-|-|-
void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<__nv_fp8_e4m3>(P)|reduction|unknown|-|-|-
void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn, false>(P)|cast_quantize|fp8|-|-|e4m3
void per_token_group_quant_8bit_kernel<MaskedLayoutScheduler, 128, 8, __half, signed char>(P)|cast_quantize|unknown|-|-|-
void vllm::dynamic_scaled_int8_quant_kernel<c10::BFloat16, float>(c10::BFloat16 const*, signed char*)|cast_quantize|unknown|-|-|-
void vllm::silu_mul_fp8_quant_deep_gemm_kernel<4224, c10::Float8_e4m3fn>(P)|cast_quantize|fp8|-|-|e4m3
void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(P)|cast_quantize|unknown|-|-|-
void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>(P)|other|unknown|-|-|-
void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)2, __nv_bfloat16, 32, true>(P)|cast_quantize|mxfp8|-|-|-
quantize_with_block_size<Type::0, __nv_bfloat16, 16>|cast_quantize|nvfp4|-|-|-
void cuda::per_channel_cast_and_transpose<256, 128, true>(void const*, float, __nv_fp8_interpretation_t)|cast_quantize|fp8|-|-|fp8
void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::_float_to_hfp8_gpu(at::Tensor const&, double)::{lambda(float)#1}, at::detail::Array<char*, 2> >(P)|cast_quantize|fp8|-|-|-
void at::native::vectorized_elementwise_kernel<4, at::native::float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(P)|cast_quantize|fp8|-|-|-
void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(P)|elementwise|bf16|-|-|bf16
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(P)|reduction|fp32|-|-|fp32
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(P)|elementwise|unknown|-|-|-
void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t, cutlass::bfloat16_t>(P)|other|unknown|-|-|-
_finalize_matmul_scatter_bf16|other|unknown|-|-|-
void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t> >(P)|attention|bf16|bf16|bf16|-
void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1> >, 128, cutlass::float_e4m3_t, float, cutlass::arch::Sm90> > > >(P)|attention|fp8|e4m3|e4m3|-
cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0|attention|unknown|-|-|-
void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(P)|reduction|unknown|-|-|-
void cudnn::winograd_nonfused::winogradForwardFilter4x4<float, float>(P)|conv|unknown|-|-|-
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)|communication|unknown|-|-|bf16
void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(P)|communication|unknown|-|-|-
void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(P)|communication|unknown|-|-|-
Memcpy DtoH (Device -> Pinned)|memory|unknown|-|-|-
Memset (Device)|memory|unknown|-|-|-
my_own_kernel|other|unknown|-|-|-
"""


def _rows(*tables: str) -> list[tuple[str, ...]]:
    lines = (line for table in tables for line in table.strip().splitlines())
    return [tuple(line.rsplit("|", 5)) for line in lines]


@pytest.mark.parametrize(
    ("name", "role", "precision", "a", "b", "out"),
    _rows(
        NVJET, XMMA, CUBLAS, CUTLASS_PROCEDURAL, AMD, LIBRARIES, TRITON, WORDS, NO_GEMMS, HELPERS
    ),
)
def test_names_say_role_precision_and_types(
    name: str, role: str, precision: str, a: str, b: str, out: str
) -> None:
    found = decode(name)
    types = (found.a or "-", found.b or "-", found.out or "-")
    if precision == "unknown" and (a, b, out) == ("-", "-", "-"):
        types = ("-", "-", "-")  # types need not be told where the precision is not
    assert (found.role.value, found.precision.value, *types) == (role, precision, a, b, out)
    assert found.name == name
    assert found.reason


def _template(
    policy: str, a: str, b: str, atom: str, problem: str = "cute::tuple<int, int>"
) -> str:
    mainloop = (
        f"cutlass::gemm::collective::CollectiveMma<cutlass::gemm::{policy}<4, cute::C<1> >, "
        f"cute::tuple<cute::C<128>, cute::C<128> >, {a}, cute::tuple<long, cute::C<1> >, {b}, "
        f"cute::tuple<long, cute::C<1> >, cute::TiledMMA<cute::MMA_Atom<{atom}> > >"
    )
    epilogue = (
        "cutlass::epilogue::collective::CollectiveEpilogue<Policy, cute::tuple<cute::C<64> >, "
        "void, long, cutlass::bfloat16_t, long, cute::Copy_Atom<X, cutlass::half_t> >"
    )
    kernel = f"cutlass::gemm::kernel::GemmUniversal<{problem}, {mainloop}, {epilogue}, void, void>"
    return f"void cutlass::device_kernel<{kernel} >({kernel}::Params)"


E4M3, E5M2, BF16 = "cutlass::float_e4m3_t", "cutlass::float_e5m2_t", "cutlass::bfloat16_t"
MX = "cute::tuple<cutlass::float_e4m3_t, cutlass::float_ue8m0_t>"
NVFP4 = "cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>"
INT4_BF16 = (
    "cute::tuple<cutlass::integer_subbyte<4, true>, cutlass::Array<cutlass::bfloat16_t, 1> >"
)
GMMA = "cute::SM90::GMMA::MMA_64x128x{}_SS<(cute::SM90::GMMA::ScaleIn)1>"
GROUP = "cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >"


@pytest.mark.parametrize(
    ("name", "role", "precision", "scaling", "fast"),
    [
        (
            _template("MainloopSm90TmaGmmaWarpSpecializedFP8", E4M3, E5M2,
                      GMMA.format("32_F32E4M3E5M2")), "gemm", "fp8", None, False,
        ),
        (
            _template("MainloopSm90TmaGmmaWarpSpecialized", E4M3, E4M3,
                      GMMA.format("32_F32E4M3E4M3")), "gemm", "fp8", None, True,
        ),
        (
            _template("MainloopSm90TmaGmmaWarpSpecialized", BF16, BF16,
                      GMMA.format("16_F32BF16BF16")), "gemm", "bf16", None, None,
        ),
        (
            _template("MainloopSm90ArrayTmaGmmaWarpSpecialized", BF16, BF16,
                      GMMA.format("16_F32BF16BF16"), GROUP), "grouped_gemm", "bf16", None, None,
        ),
        (
            _template("MainloopSm100TmaUmmaWarpSpecialized", E4M3, E4M3,
                      f"cute::SM100_MMA_F8F6F4_SS<{E4M3}, {E4M3}, float, 64>"),
            "gemm", "fp8", None, None,
        ),
        (
            _template("MainloopSm90TmaGmmaWarpSpecializedBlockwiseFP8", E4M3, E4M3,
                      GMMA.format("32_F32E4M3E4M3")), "gemm", "fp8", Scaling.BLOCKWISE, None,
        ),
        (
            _template("MainloopSm100TmaUmmaWarpSpecializedBlockScaled", MX, MX,
                      f"cute::SM100_MMA_MXF8F6F4_SS<{E4M3}, {E4M3}, float>"),
            "gemm", "mxfp8", Scaling.MXFP8, None,
        ),
        (
            _template("MainloopSm100TmaUmmaWarpSpecializedBlockScaled", NVFP4, NVFP4,
                      "cute::SM100_MMA_MXF4_SS<cutlass::float_e2m1_t, cutlass::float_e2m1_t, X>"),
            "gemm", "nvfp4", Scaling.NVFP4, None,
        ),
        (  # W4A8: the atom names the type that is multiplied
            _template("MainloopSm90TmaGmmaRmemAWarpSpecializedMixedInput", INT4_BF16, E4M3,
                      GMMA.format("32_F32E4M3E4M3")), "gemm", "fp8", None, True,
        ),
        (  # W4A16: the BF16 atom
            _template("MainloopSm90TmaGmmaRmemAWarpSpecializedMixedInput", INT4_BF16, BF16,
                      GMMA.format("16_F32BF16BF16")), "gemm", "bf16", None, None,
        ),
        (
            ("void cutlass::Kernel2<at::cuda::detail::enable_2x_kernel_for_sm89<cutlass::gemm::"
            "kernel::DefaultGemmWithVisitor<cutlass::float_e5m2_t, RowMajor, (cutlass::Complex"
            "Transform)0, 16, cutlass::float_e4m3_t, ColumnMajor, (cutlass::ComplexTransform)0, "
            "16, cutlass::bfloat16_t>::GemmKernel> >(P)"), "gemm", "fp8", None, None,
        ),
        (
            ("void cutlass::device_kernel<vllm::cutlass_3x_gemm_fp8_blockwise<cutlass::bfloat16_t, "
            "1, 128>::GemmKernel>(P)"), "gemm", "fp8", Scaling.BLOCKWISE, None,
        ),
        (
            ("void cutlass::device_kernel<vllm::cutlass_3x_gemm<signed char, cutlass::half_t, "
            "vllm::c3x::ScaledEpilogue> >(P)"), "gemm", "int8", None, None,
        ),
        (
            ("void cutlass::device_kernel<(anonymous namespace)::cutlass_3x_group_gemm<cutlass::"
            "float_e4m3_t, cutlass::bfloat16_t, cutlass::arch::Sm100> >(P)"),
            "grouped_gemm", "fp8", None, None,
        ),
        (
            ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>, "
            "machete::MacheteCollectiveMma<cute::tuple<unsigned char, cutlass::bfloat16_t> > > >"),
            "gemm", "unknown", None, None,
        ),
        ("void cutlass::device_kernel<...", "gemm", "unknown", None, None),
    ],
)  # fmt: skip
def test_cutlass_templates_are_read_at_the_places_of_their_operands(
    name: str, role: str, precision: str, scaling: Scaling | None, fast: bool | None
) -> None:
    found = decode(name)
    assert (found.role.value, found.precision.value) == (role, precision)
    assert found.scaling is scaling
    assert found.fast_accum is fast


# torch._scaled_grouped_mm on an H200, as Kineto left it: longer than the 1,024 characters that
# it demangles. The BF16 sibling differs in the element (also behind substitutions) and the atom.
MANGLED_FP8 = (
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalINS1_17GroupProblemShapeIN4cute5tupleI"
    "JiiiEEEEENS1_10collective13CollectiveMmaINS1_42MainloopSm90ArrayTmaGmmaWarpSpecializedFP8ILi8EN"
    "S6_IJNS5_1CILi2EEESD_NSC_ILi1EEEEEENS1_43KernelPtrArrayTmaWarpSpecializedCooperativeEEENS6_IJNS"
    "C_ILi128EEENSC_ILi256EEENSC_ILi64EEEEEENS_12float_e4m3_tEPNS6_IJlSE_NSC_ILi0EEEEEESM_SP_NS5_8Ti"
    "ledMMAINS5_8MMA_AtomIJNS5_4SM904GMMA31MMA_64x256x32_F32E4M3E4M3_SS_TNILNST_7ScaleInE1ELSV_1EEEE"
    "EENS5_6LayoutINS6_IJSD_SE_SE_EEENS6_IJSE_SN_SN_EEEEENS6_IJNS5_10UnderscoreES12_S12_EEEEENS5_23S"
    "M90_TMA_LOAD_MULTICASTENS5_14ComposedLayoutINS5_7SwizzleILi2ELi4ELi3EEENS5_18smem_ptr_flag_bits"
    "ILi8EEENSY_INS6_IJNSC_ILi8EEESK_EEENS6_IJSK_SE_EEEEEEEvNS5_8identityES15_S1F_vS1G_EENS_8epilogu"
    "e10collective18CollectiveEpilogueINS1I_30Sm90PtrArrayTmaWarpSpecializedILi4ELi2ELi16ELb1ELb0ELi"
    "2EEEJSL_NS6_IJSI_NSC_ILi32EEEEEENS_10bfloat16_tESP_S1P_SP_NS1I_6fusion15Sm90TreeVisitorINS1Q_11"
    "Sm90ComputeINS1I_6thread8IdentityES1P_fLNS_15FloatRoundStyleE2EvEEJNS1R_INS1S_INS_10multipliesE"
    "ffLS1V_2EvEEJNS1Q_16Sm90RowBroadcastILi0ESL_PffNS6_IJSN_SE_SN_EEELi4ELb1EEENS1R_IS1Y_JNS1Q_16Sm"
    "90ColBroadcastILi0ESL_S20_fS10_Li4ELb1EEENS1Q_12Sm90AccFetchEEEEEEEEEENS5_13SM90_TMA_LOADENS16_"
    "IS18_NS19_ILi16EEENSY_INS6_IJS1B_S1N_EEENS6_IJS1N_SE_EEEEEEENS5_17SM75_U32x4_LDSM_NENS5_14SM90_"
    "TMA_STOREES2E_NS5_17SM90_U32x4_STSM_NENS5_9Copy_AtomIJS2H_NS_6half_tEEEEvEEEvvEEEEvNT_6ParamsE"
)


def test_a_mangled_template_is_read_like_a_demangled_one() -> None:
    found = decode(MANGLED_FP8)
    assert (found.role, found.precision) == (Role.GROUPED_GEMM, Precision.FP8)
    assert (found.a, found.b, found.out) == ("e4m3", "e4m3", "bf16")
    assert found.scaling is Scaling.ROWWISE
    assert found.fast_accum is False


def test_a_mangled_bfloat16_operand_behind_a_substitution_is_found() -> None:
    bf16 = MANGLED_FP8.replace("12float_e4m3_t", "10bfloat16_t").replace(
        "31MMA_64x256x32_F32E4M3E4M3_SS_TN", "28MMA_64x256x16_F32BF16BF16_SS"
    )
    assert decode(bf16).precision is Precision.BF16


@pytest.mark.parametrize("length", [20, 60, 300, 700, 1300])
def test_a_mangled_name_that_was_cut_is_not_guessed(length: int) -> None:
    found = decode(MANGLED_FP8[:length])
    assert (found.role, found.precision) == (Role.OTHER, Precision.UNKNOWN)


@pytest.mark.parametrize(
    ("name", "scaling", "fast"),
    [
        ("nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_TNT", Scaling.TENSORWISE, True),
        ("nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_algo2_TNT", Scaling.TENSORWISE, False),
        ("nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_ovscale_TNT", Scaling.ROWWISE, True),
        (
            "nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_coopA_algo2_Ablk128_Bvec128_TNN",
            Scaling.BLOCKWISE,
            False,
        ),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", None, None),
        (
            "nvjet_sm100_qqsss_128x128_128x8_2x4_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT",
            Scaling.MXFP8,
            None,
        ),
        (
            "nvjet_sm100_ootst_128x128_256x7_4x1_2cta_v_bx_Avec16UE4M3_Bvec16UE4M3_TNT",
            Scaling.NVFP4,
            None,
        ),
        ("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT", None, None),
        ("_kernel_matmul_fp8_row_no_fast_acc", Scaling.ROWWISE, False),
        ("_w8a8_block_fp8_matmul", Scaling.BLOCKWISE, None),
        ("_kernel_matmul_fp8_block_slowacc", Scaling.BLOCKWISE, False),
        ("_kernel_matmul_fp8_row_imprecise_acc", Scaling.ROWWISE, True),
        ("triton_fp8_gemm_1x128_128x1_kernel", Scaling.BLOCKWISE, None),
        ("_grouped_mxfp4_persistent_gemm_kernel", Scaling.MXFP4, None),
        ("_bf16_persistent_gemm_kernel", None, None),
    ],
)
def test_names_say_the_scaling_and_the_accumulation(
    name: str, scaling: Scaling | None, fast: bool | None
) -> None:
    found = decode(name)
    assert found.scaling is scaling
    assert found.fast_accum is fast


def test_tokens_of_an_nvjet_name_are_explained_in_order() -> None:
    found = decode("nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT")
    letters = [token for token, _ in found.tokens]
    assert letters == [
        *("nvjet", "sm90", "q", "r", "t", "s", "t"),
        *("128x128", "128x6", "2x1", "v", "bz", "coopA", "algo2", "TNT"),
    ]
    meanings = dict(found.tokens[2:4])
    assert meanings == {"q": "operand A is FP8 E4M3", "r": "operand B is FP8 E5M2"}
    assert found.reason == "nvjet type code qrtst: A e4m3 × B e5m2 -> bf16"  # noqa: RUF001


@pytest.mark.parametrize(
    ("name", "role", "precision"),
    [
        ("_fp8_gemm_kernel", "gemm", "unknown"),
        ("_blockwise_fp8_gemm_kernel", "gemm", "fp8"),
        ("_a8w8_fp8_gemm_kernel", "gemm", "fp8"),
        ("void fp8fp8_gemm<8>(Params)", "gemm", "fp8"),
        ("nccl_ep_jit_ht_dispatch_kernel", "communication", "unknown"),
        ("_sdd_kernel", "grouped_gemm", "unknown"),
        ("_dsd_kernel_1", "grouped_gemm", "unknown"),
        ("groupXtY_kernel", "grouped_gemm", "unknown"),
        ("_bmm_chunk_bwd_kernel", "other", "unknown"),
        ("_chunk_scan_bwd_dz_kernel", "other", "unknown"),
    ],
)
def test_hand_written_names_say_no_more_than_is_certain(
    name: str, role: str, precision: str
) -> None:
    found = decode(name)
    assert (found.role.value, found.precision.value) == (role, precision)


@pytest.mark.parametrize(
    ("mangled", "demangled", "precision"),
    [
        (
            "_Z15fp8_gemm_kernelPKfS0_S0_S0_Pfiii",
            (
                "fp8_gemm_kernel(float const*, float const*, float const*, float const*, float*, int, "
                "int, int)"
            ),
            "fp32",
        ),
        (
            "_Z15fp8_gemm_kernelILi4096ELi4096EEvPK6__halfS2_Pfi",
            "void fp8_gemm_kernel<4096, 4096>(__half const*, __half const*, float*, int)",
            "fp16",
        ),
        (
            "_Z11gemm_kernelI13__nv_bfloat16EvPKT_S3_PS1_i",
            (
                "void gemm_kernel<__nv_bfloat16>(__nv_bfloat16 const*, __nv_bfloat16 const*, "
                "__nv_bfloat16*, int)"
            ),
            "bf16",
        ),
        (
            "_Z18blockwise_fp8_gemmPKfPK13__nv_fp8_e4m3Pf",
            "blockwise_fp8_gemm(float const*, __nv_fp8_e4m3 const*, float*)",
            "unknown",
        ),
    ],
)
def test_parameters_are_read_alike_in_both_spellings(
    mangled: str, demangled: str, precision: str
) -> None:
    assert Symbol(mangled).parameters == Symbol(demangled).parameters
    assert {decode(mangled).precision.value, decode(demangled).precision.value} == {precision}

"""Real names of kernels: role, precision class, types, scaling and accumulation."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fp8verify.kernels import decode
from fp8verify.kernels.symbol import Symbol
from fp8verify.terms import Precision, Role, Scaling


def labelled_names() -> list[dict[str, str]]:
    """Return the rows of kernel_names.csv, a name each.

    A cell may hold several right answers; "-" is what the name does not say, and an empty cell is
    not compared. Names of `public_sources` were labelled by what the source computes before they
    were decoded: what may be weights alone, or an imitation, must never be called FP8. They come
    from the sources and traces of DeepGEMM, FlashInfer, Transformer Engine, Primus-Turbo, torchao,
    aiter, hpc-ops, Liger, hipBLASLt, SGLang and of smaller projects; some names of helpers are
    variations of such.
    """
    with (Path(__file__).parent / "kernel_names.csv").open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


@pytest.mark.parametrize("row", labelled_names(), ids=lambda row: row["name"][:60])
def test_names_say_what_is_certain(row: dict[str, str]) -> None:
    found = decode(row["name"])
    said = {
        "a": found.a,
        "b": found.b,
        "out": found.out,
        "role": found.role.value,
        "precision": found.precision.value,
        "scaling": found.scaling and found.scaling.value,
        "fast_accum": {True: "yes", False: "no"}.get(found.fast_accum),
    }
    if row["source"] == "public_sources" and not found.role.is_gemm:
        del said["precision"]
    for column, value in said.items():
        assert not row[column] or (value or "-") in row[column].split(), column
    assert found.name == row["name"]
    assert found.reason


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
    ("mangled", "demangled", "precision"),
    [
        (
            "_Z15fp8_gemm_kernelPKfS0_S0_Pfiii",
            "fp8_gemm_kernel(float const*, float const*, float const*, float*, int, int, int)",
            "fp32",
        ),
        (
            "_Z15fp8_gemm_kernelILi4096ELi4096EEvPK6__halfS2_Pfi",
            "void fp8_gemm_kernel<4096, 4096>(__half const*, __half const*, float*, int)",
            "fp16",
        ),
        (
            "_Z11gemm_kernelI13__nv_bfloat16EvPKT_S3_Pf",
            "void gemm_kernel<__nv_bfloat16>(__nv_bfloat16 const*, __nv_bfloat16 const*, float*)",
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

"""Laws that hold for every name: no error, no FP8 out of nothing, grammars beyond the examples."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from fp8verify.kernels import classify, decode
from fp8verify.kernels.grammars.cublas import LETTERS
from fp8verify.terms import OpContext, Precision

FP8_TOKEN = re.compile(
    r"f[lp]?(?:oat)?8|mxf?8|e4m3|e5m2|nvjet|b8|i8|mx8", re.IGNORECASE
)
PIECES = st.sampled_from(
    ["void ", "cutlass::", "device_kernel", "<", ">", ",", "(", ")", "::", "nvjet_", "sm90_",
     "tst_", "128x64_", "TNT", "gemm", "_", "bf16", "float_e4m3_t", "cutlass_80_", "tensorop_",
     "s1688gemm", "Cijk_Alik_Bljk_", "BBS_", "F8BS_", "_ZN", "7cutlass", "I", "E", "S_", "S0_",
     "J", "L", "Li1E", "PK", "xmma_gemm_", "e4m3f32_", "triton_tem_fused_mm_0", "{lambda", "}",
     "at::native::", "transformer_engine::", "CollectiveMma", "flash::", "ck::", "aiter::",
     "marlin::Marlin<1125899906909960l", "...", ".kd", " ", "deep_gemm::", "sm90_fp8_gemm_impl"]
)  # fmt: skip
NAMES = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join))


@given(NAMES)
@example("")
@example("\x00\ud800")
@example("_Z")
@example("_ZN")
@example("_ZNSt")
@example("_ZN1aI")
def test_any_text_is_decoded(name: str) -> None:
    found = decode(name)
    assert found.name == name
    assert found.reason
    assert classify(found, OpContext(name="aten::mm", types=("", ""))).reason


@given(NAMES.filter(lambda name: not FP8_TOKEN.search(name)))
def test_nothing_without_an_fp8_token_is_called_fp8(name: str) -> None:
    assert not decode(name).precision.is_fp8


def test_hostile_names_end_soon() -> None:
    for name in ("_ZN" + "1a" * 50_000, "a<" * 50_000, "_Z" + "P" * 100_000, "<" * 100_000,
                 "_ZN1a" + "IJ" * 50_000, "void " * 20_000, "_all_reduce" * 9_000, "(" * 100_000,
                 "nvjet_" + "q" * 100_000, "bmm_E2m1_" + "E2m1_" * 20_000,
                 "fp8" * 20_000 + "x_gemm", "gemm(" + "a" * 60_000 + ")",
                 "kernel_cutlass_" + "tensorptrf16gmem_" * 4_000,
                 "_gemm" + "_a8" * 20_000, "_ZN5aiter9fmha" + "_bf16x" * 9_000,
                 "_Z1fI1aIiE" + "1bIS_S_E" * 99 + "S5_" * 18_000 + "Evv",
                 # In the spelling of NVIDIA's demangler.
                 "(int)" * 13_000 + "4", "x" + " " * 65_000, "const " * 11_000, "[lambda(" * 8_000,
                 " (instance 1" * 5_000, "a *" * 20_000, "<void " * 10_000,
                 "const " + "a" * 60_000, "<unnamed>" * 7_000):  # fmt: skip
        assert not decode(name).precision.is_fp8


NVJET = st.builds(
    "nvjet_{}{}{}{}_{}x{}_128x{}_2x1_h_bz_{}{}".format,
    st.sampled_from(["", "sm90_", "sm100_", "sm103_", "sm110_"]),
    st.sampled_from("qr"),
    st.sampled_from("qr"),
    st.sampled_from(["hsh", "tst", "sss", "tsq", "tsr", "hsq"]),
    st.integers(8, 512),
    st.integers(8, 512),
    st.integers(1, 16),
    st.sampled_from(
        ["", "2cta_", "coopA_", "coopB_algo2_", "splitK_bias_", "gelubias_auxt_"]
    ),
    st.sampled_from(["TNT", "TNN", "NNT", "NTT"]),
)


@given(NVJET)
def test_every_fp8_nvjet_is_fp8_whatever_its_tile_and_layout(name: str) -> None:
    found = decode(name)
    assert found.precision is Precision.FP8
    letters = next(word for word in name.split("_") if word[0] in "qr")
    assert (found.a, found.b, found.out) == tuple(
        LETTERS[letters[place]] for place in (0, 1, 4)
    )


WORDS = {"fp8": "fp8", "bf16": "bf16", "fp16": "fp16", "int8": "int8", "mxfp8": "mxfp8",
         "mxfp4": "mxfp4", "nvfp4": "nvfp4", "tf32": "tf32", "e4m3": "fp8"}  # fmt: skip
STRUCTURE = st.lists(
    st.sampled_from(
        ["persistent", "kernel", "tma", "ws", "splitk", "2d2d", "preshuffle", "fwd"]
    ),
    max_size=3,
    unique=True,
)
PRODUCT = st.sampled_from(["gemm", "matmul", "mm"])


@given(
    word=st.sampled_from(sorted(WORDS)),
    product=PRODUCT,
    before=STRUCTURE,
    after=STRUCTURE,
)
def test_the_one_type_in_the_words_of_a_gemm_is_its_class(
    word: str, product: str, before: list[str], after: list[str]
) -> None:
    found = decode("_" + "_".join([*before, word, product, *after]))
    assert found.role.is_gemm
    # FP8 and FP4 without a word on their scales may be the weights' alone.
    bare = word in ("fp8", "e4m3")
    assert found.precision.value == ("unknown" if bare else WORDS[word])
    scaled = decode("_" + "_".join([*before, "blockwise", word, product, *after]))
    assert scaled.precision.value == WORDS[word]


@given(
    types=st.permutations(sorted(WORDS)).map(lambda words: words[:2]),
    product=PRODUCT,
    between=STRUCTURE,
)
def test_two_types_in_the_words_of_a_gemm_are_not_guessed(
    types: list[str], product: str, between: list[str]
) -> None:
    found = decode("_".join(["", types[0], *between, product, types[1], "kernel"]))
    alike = {"fp8", "mxfp8", "e4m3"}
    if not set(types) <= alike:
        assert found.precision is Precision.UNKNOWN


@given(
    a=st.sampled_from(["8", "16", "4", "fp8", "fp4"]),
    w=st.sampled_from(["8", "16", "4", "fp8", "fp4"]),
    swapped=st.booleans(),
)
def test_activations_and_weights_of_two_formats_are_no_fp8_product(
    a: str, w: str, swapped: bool
) -> None:
    found = decode(f"_gemm_{f'w{w}a{a}' if swapped else f'a{a}w{w}'}_kernel")
    assert found.role.is_gemm
    if a != w or a in ("8", "16"):
        assert not found.precision.is_low


@given(
    helper=st.sampled_from(["args", "prepare", "scheduler", "metadata", "offsets"]),
    word=st.sampled_from(sorted(WORDS)),
    product=PRODUCT,
)
def test_what_sets_a_gemm_up_is_none(helper: str, word: str, product: str) -> None:
    for name in (
        f"compute_{word}_group_{product}_{helper}",
        f"{helper}_{word}_{product}_kernel",
    ):
        assert not decode(name).role.is_gemm

"""What `explain` says of the parts of a kernel's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.kernels.name_parts import parts_of
from tests.command_line import fp8verify
from tests.hand_built import FP8_GRADIENT_KERNEL, FP8_KERNEL


def test_each_part_of_an_nvjet_name_has_a_meaning() -> None:
    assert parts_of(FP8_GRADIENT_KERNEL) == [
        ("nvjet", "a GEMM that cuBLASLt generates at run time"),
        ("sm90", "for compute capability 9.0"),
        ("q", "operand A is FP8 E4M3"),
        ("r", "operand B is FP8 E5M2"),
        ("t", "operand C is BF16"),
        ("s", "computes in FP32"),
        ("t", "output D is BF16"),
        ("128x128", "a tile of 128 by 128 outputs"),
        ("128x6", "128 of K at a time, 6 stages in flight"),
        ("2x1", "clusters of 2 by 1 thread blocks"),
        ("v", "tiles run along columns"),
        ("bz", "C is not read (beta is zero)"),
        ("coopA", "two warp groups share A"),
        ("algo2", "fast accumulation is off"),
        ("TNT", "A is transposed, B is not transposed (column-major terms)"),
    ]


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("Avec32UE8M0", "operand A has one UE8M0 scale for each 32 elements"),
        ("Bblk128", "operand B has one FP32 scale for each 128x128 block"),
        ("ovscale", "one scale for each row of A and column of B"),
    ],
)
def test_scales_are_explained(word: str, meaning: str) -> None:
    name = f"nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_{word}_TNT"
    assert dict(parts_of(name))[word] == meaning


def test_of_other_names_the_types_are_told() -> None:
    assert parts_of("Cijk_Ailk_Bjlk_F8B8BS_BH_Bias_UserArgs_MT256x256x128") == [
        ("e4m3", "operand A is FP8 E4M3"),
        ("e5m2", "operand B is FP8 E5M2"),
        ("bf16", "the output is BF16"),
    ]
    assert parts_of("vectorized_elementwise_kernel") == []


def test_explain_shows_them() -> None:
    text = fp8verify("explain", FP8_KERNEL).stdout
    assert "    nvjet    a GEMM that cuBLASLt generates at run time\n" in text
    assert "    q        operand A is FP8 E4M3\n" in text


@given(st.text(max_size=80) | st.text("nvjet_sm90qrst128x6TNhbz", max_size=60))
def test_any_name_has_parts_or_none(name: str) -> None:
    assert all(part and meaning for part, meaning in parts_of(f"nvjet_{name}"))

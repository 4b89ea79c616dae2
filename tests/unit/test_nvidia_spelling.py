"""Names in the spelling of NVIDIA's demangler, which Nsight Systems and Nsight Compute show."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fp8verify.kernels import decode
from fp8verify.terms import KernelName, Precision
from tests.nvidia_spelling import as_nvidia
from tests.unit.test_kernel_names import labelled_names


def spelled_names() -> list[dict[str, str]]:
    """Names of kernels in wheels of vLLM 0.33, sgl-kernel 0.3.21, FBGEMM 1.9 and TE 2.20.

    `nvidia` is what the demangler of Nsight Systems 2024.2.3 says, `cxxfilt` what binutils 2.40
    says, empty where it gives up.
    """
    with (Path(__file__).parent / "nvidia_names.csv").open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


def said(found: KernelName) -> tuple[object, ...]:
    types = (found.a, found.b, found.out, found.scaling, found.fast_accum)
    return found.role, found.precision, *types


@pytest.mark.parametrize("row", spelled_names(), ids=lambda row: row["nvidia"][:60])
def test_three_spellings_of_a_kernel_say_the_same(row: dict[str, str]) -> None:
    found = decode(row["nvidia"])
    assert (found.role.value, found.precision.value) == (row["role"], row["precision"])
    mangled = decode(row["mangled"])
    assert (mangled.role, mangled.precision) == (found.role, found.precision)
    if row["cxxfilt"]:
        assert said(decode(row["cxxfilt"])) == said(found)


def test_a_numbered_parameter_is_the_template_argument_unless_a_pack_is_before_it() -> (
    None
):
    name = "void router_gemm_kernel<__nv_bfloat16, (int)8>(float *, const T1 *, const T1 *{})"
    assert decode(name.format("")).precision is Precision.BF16
    assert decode(name.format(", T2...")).precision is Precision.UNKNOWN
    assert decode(name.format("").replace("T1", "T7")).precision is Precision.UNKNOWN


def test_every_name_that_is_known_means_the_same_in_nvidias_spelling() -> None:
    names = [row["name"] for row in labelled_names()]
    assert sum(as_nvidia(name) != name for name in names) > 50
    for name in names:
        assert said(decode(as_nvidia(name))) == said(decode(name)), name

"""Real names of kernels: role, precision class, types, scaling and accumulation."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fp8verify.kernels import decode
from fp8verify.terms import Precision, Role


def labelled_names() -> list[dict[str, str]]:
    """Return the rows of kernel_names.csv, a name each.

    `source` is the family, or the list that the name is from. A cell may hold several right
    answers; "-" is what the name does not say, and an empty cell is not compared.

    Names of `public_sources` were labelled by what the source computes before they were decoded:
    what may be weights alone, or an imitation, must never be called FP8. They come from the sources
    and traces of DeepGEMM, FlashInfer, Transformer Engine, Primus-Turbo, torchao, aiter, hpc-ops,
    Liger, hipBLASLt, SGLang and of smaller projects; some names of helpers are variations of such.
    """
    with (Path(__file__).parent / "kernel_names.csv").open(
        encoding="utf-8", newline=""
    ) as table:
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


def test_a_mangled_name_that_was_cut_tells_what_is_whole_and_guesses_nothing() -> None:
    names = [row["name"] for row in labelled_names() if row["name"].startswith("_Z")]
    for name in names:
        whole = decode(name)
        for length in range(5, min(len(name), 400), 9):
            found = decode(f"{name[:length]}...")
            assert found.precision in (Precision.UNKNOWN, whole.precision)
            assert whole.role.is_gemm or not found.role.is_gemm
    cutlass = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupl..."
    assert (decode(cutlass).role, decode(cutlass).precision) == (
        Role.GEMM,
        Precision.UNKNOWN,
    )
    assert decode("_ZN7cutlass13device_ker...").role is Role.OTHER


def test_the_reason_says_what_decided() -> None:
    found = decode("nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT")
    assert found.reason == "nvjet type code qrtst: A e4m3 × B e5m2 -> bf16"  # noqa: RUF001

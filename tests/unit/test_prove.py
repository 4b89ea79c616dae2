from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.prove import judge, prove_launches
from fp8verify.prove.ncu import choose, read_launches
from tests.fake_ncu import BF16, FFMA, FP8, HMMA, METRICS, log_of

read = partial(read_launches, metrics=choose(METRICS))
FP8_NAME = "nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_TNT"


def test_launches_are_read_from_between_the_tools_own_lines() -> None:
    first, second = read(
        log_of((FP8_NAME, 1 << 34, 0, ""), ("k<1>", 0, 7, "")).splitlines()
    )
    assert first.kernel == FP8_NAME
    assert first.operations == {"fp8": 1 << 34, "bf16": 0, "fp32": 2048}
    assert (second.kernel, second.operations["bf16"]) == ("k<1>", 7)


def test_launches_of_two_processes_do_not_mix_and_equal_ones_are_one_row() -> None:
    log = log_of(*[(FP8_NAME, 10, 0, "")] * 3) + log_of((FP8_NAME, 20, 0, "")).replace(
        "77", "78"
    )
    launches = read(log.splitlines())
    assert [launch.operations["fp8"] for launch in launches] == [10, 10, 10, 20]
    proofs = prove_launches(launches)
    assert [(proof.launches, proof.operations["fp8"]) for proof in proofs] == [
        (3, 10),
        (1, 20),
    ]


@pytest.mark.parametrize(
    ("nvtx", "flops"),
    [
        ("aten::mm, op_id = 9, sizes = [[64, 32], [32, 16]]", 2 * 64 * 32 * 16),
        ("aten::linear, op_id = 4, sizes = [[2, 3]]", None),
        ("step 3", None),
        ("", None),
    ],
)
def test_the_size_of_a_product_comes_from_the_range_around_it(
    nvtx: str, flops: int | None
) -> None:
    (launch,) = read(log_of((FP8_NAME, 1, 0, nvtx)).splitlines())
    assert launch.flops == flops


@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_log_is_read(lines: list[str]) -> None:
    assert read(lines) == []
    assert len(read([*log_of((FP8_NAME, 1, 0, "")).splitlines(), *lines])) >= 1


def test_metrics_are_chosen_that_the_tool_knows_each_source_by_one_form() -> None:
    assert set(choose(METRICS)) == {FP8, BF16, HMMA, FFMA}
    known = [
        "sm__ops_path_tensor_op_utcqmma_src_fp8_dst_fp32",
        "sm__ops_path_tensor_op_utcqmma_src_fp8_dst_fp32_sparsity_off",
        "sm__ops_path_tensor_op_utcqmma_src_fp8_dst_fp32_sparsity_on",
    ]
    assert set(choose(known)) == set(known[1:])


@pytest.mark.parametrize(
    ("kernel", "operations", "flops", "agreement"),
    [
        (FP8_NAME, {"fp8": 100, "bf16": 0, "fp32": 8}, 100, "agrees"),
        (FP8_NAME, {"fp8": 128, "bf16": 0}, 100, "agrees"),
        (FP8_NAME, {"fp8": 128}, None, "agrees"),
        (FP8_NAME, {"fp4/fp6/fp8": 128}, None, "agrees"),
        (FP8_NAME, {"fp8": 99, "bf16": 0}, 100, "differs"),
        (FP8_NAME, {"fp8": 0, "bf16": 100}, 100, "differs"),
        (FP8_NAME, {"fp8": 50, "bf16": 50}, 100, "differs"),
        (FP8_NAME, {"fp8": 0, "fp32": 100}, 100, "differs"),
        (FP8_NAME, {"fp8": 0}, 100, "not counted"),
        ("volta_sgemm_128x64_tn", {"fp8": 0, "fp32": 104}, 100, "agrees"),
        ("triton_tem_fused_mm_0", {"bf16": 100}, 100, "unclaimed"),
        ("main_kernel", {"fp8": 100}, None, "missed"),
        # What is no GEMM is not judged.
        (
            "void at::native::reduce_kernel<512, 1>(P)",
            {"fp8": 0, "fp32": 9},
            None,
            None,
        ),
        ("flash_fwd_kernel", {"bf16": 100}, None, None),
    ],
)
def test_a_class_agrees_where_all_operations_are_of_its_type(
    kernel: str, operations: dict[str, int], flops: int | None, agreement: str | None
) -> None:
    proof = judge(kernel, operations, flops)
    assert (proof and proof.agreement) == agreement

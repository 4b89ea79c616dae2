"""The table of operators, and what follows from the types that an operator recorded."""

from __future__ import annotations

from math import prod

import pytest

from fp8verify.analysis.kinds import gemm_shape
from fp8verify.kernels.operators import (
    OPERATORS,
    UNKNOWN,
    Counts,
    find,
    function_of,
    multiplies_fp8,
)
from fp8verify.terms import OpContext, Precision, Role
from tests.hand_built import BF16, E5M2, FP32, present
from tests.hand_built import FP8 as E4M3

Dims = tuple[tuple[int, ...], ...]


def test_only_patterns_have_products_without_flops() -> None:
    without = set()
    for name, row in OPERATORS.items():
        if row.product is not None and row.product.counts is Counts.NEVER:
            without.add(name)
    assert without == set(), (
        "if no recorded shape gives the FLOPs of an operator, expect it here"
    )
    assert present(find("fbgemm::bf16bf16bf16_grouped").product).counts is Counts.NEVER


@pytest.mark.parametrize(
    ("name", "role", "precision"),
    [
        ("fbgemm::f8f8bf16_rowwise", Role.GEMM, Precision.FP8),
        ("mslk::f4f4bf16_grouped_stacked", Role.GROUPED_GEMM, Precision.FP4),
        ("triton_tem_fused__scaled_mm_t_3", Role.GEMM, None),
        ("triton_tem_fused__scaled_grouped_mm_1", Role.GROUPED_GEMM, None),
    ],
)
def test_names_that_follow_a_pattern_have_a_row(
    name: str, role: Role, precision: Precision | None
) -> None:
    product = present(find(name).product)
    assert (product.role, product.named) == (role, precision)


def test_an_unknown_operator_has_the_empty_row() -> None:
    assert find("my::operator") is UNKNOWN


def test_a_node_belongs_to_its_function() -> None:
    assert (
        function_of("autograd::engine::evaluate_function: _LinearBackward") == "_Linear"
    )
    assert function_of("MmBackward0") == "Mm"
    assert function_of("aten::mm") is None


@pytest.mark.parametrize(
    ("name", "types", "dims"),
    [
        ("aten::_scaled_mm", (E4M3, E4M3, FP32, FP32), ((8, 16), (16, 8), (), ())),
        ("fbgemm::f8f8bf16", (), ()),
        ("_C::cutlass_scaled_mm", (BF16, E4M3, E4M3), ((8, 4), (8, 16), (16, 4))),
        # Operators that no table has: the second is a weight gradient, the third has B as (n, k).
        ("my::kernel", (E4M3, E4M3, FP32, FP32), ((8, 16), (16, 4), (), ())),
        ("primus_turbo::gemm_fp8_impl", (E5M2, E4M3), ((16, 8), (8, 16))),
        ("my::gemm", (E4M3, FP32, E4M3, FP32), ((8, 16), (), (4, 16), ())),
        ("my::kernel", (E4M3, E4M3, "int", BF16), ((8, 16), (5, 16, 4), (5,), (8, 4))),
        ("my::kernel", (BF16, E4M3, E4M3), ((8, 16), (8, 16), (16, 16))),
    ],
)
def test_an_operator_on_two_fp8_matrices_multiplies_them(
    name: str, types: tuple[str, ...], dims: Dims
) -> None:
    assert multiplies_fp8(OpContext(name=name, types=types, dims=dims))


@pytest.mark.parametrize(
    ("name", "types", "dims"),
    [
        ("aten::_scaled_mm", (BF16, E4M3), ((8, 16), (16, 4))),
        ("aten::copy_", (E4M3, E4M3, "Scalar"), ((8, 16), (8, 16), ())),
        ("aten::index_copy_", (E4M3, "", "long int", E4M3), ((8, 16), (), (4,), (4, 16))),
        # Copies: as large, turned, flattened, rows permuted or padded.
        ("my::kernel", (E4M3, E4M3), ((8, 16), (8, 16))),
        ("my::kernel", (E4M3, E4M3), ((8, 16), (16, 8))),
        ("my::kernel", (E4M3, E4M3), ((2, 4, 16), (8, 16))),
        ("my::kernel", (E4M3, E4M3, "int"), ((8, 16), (12, 16), (12,))),
        ("my::transpose_for_gemm", (E4M3, E4M3), ((8, 16), (16, 8))),
        # Casts of two matrices, and one cast in two layouts.
        ("my::kernel", (BF16, BF16, E4M3, E4M3), ((8, 16), (16, 4), (8, 16), (16, 4))),
        ("triton_poi_fused_x", (BF16, E5M2, E5M2), ((2, 4, 16), (8, 16), (16, 8))),
        # An operator that says so casts, though its outputs could be multiplied.
        ("my::quantize_pair", (E4M3, E4M3), ((8, 16), (16, 4))),
        # FP8 attention, a cache of keys and values, a product that gives FP8, one vector.
        ("flash_attn_3::fwd", (E4M3, E4M3, E4M3), ((2, 8, 4, 16),) * 3),
        ("cache::write", (BF16, BF16, E4M3, E4M3),
         ((8, 16), (8, 16), (9, 2, 4, 16), (9, 2, 4, 16))),
        ("my::gemm", (E4M3, E4M3, E4M3), ((8, 16), (16, 4), (8, 4))),
        ("my::gemm", (E4M3, E4M3), ((16,), (16, 4))),
        ("my::gemm", (E4M3, E4M3), ()),
        # Weights are turned into the activations' type first.
        ("_C::gptq_marlin_gemm", (E4M3, E4M3), ((8, 16), (16, 4))),
        ("my::gemm", (BF16, E4M3), ((8, 16), (16, 4))),
    ],
)  # fmt: skip
def test_other_operators_on_fp8_are_not_taken_for_products(
    name: str, types: tuple[str, ...], dims: Dims
) -> None:
    assert not multiplies_fp8(OpContext(name=name, types=types, dims=dims))


@pytest.mark.parametrize(
    ("name", "dims", "shape"),
    [
        ("aten::mm", ((8, 16), (16, 4)), (1, 8, 4, 16)),
        ("aten::mv", ((8, 16), (16,)), (1, 8, 1, 16)),
        ("aten::dot", ((16,), (16,)), (1, 1, 1, 16)),
        ("aten::bmm", ((3, 8, 16), (3, 16, 4)), (3, 8, 4, 16)),
        ("aten::addmm", ((4,), (8, 16), (16, 4)), (1, 8, 4, 16)),
        ("aten::addmv_", ((8,), (8, 16), (16,)), (1, 8, 1, 16)),
        ("aten::addmm_", ((8, 4), (8, 16), (16, 4)), (1, 8, 4, 16)),
        ("aten::addbmm", ((8, 4), (3, 8, 16), (3, 16, 4)), (3, 8, 4, 16)),
        ("aten::baddbmm_", ((3, 8, 4), (3, 8, 16), (3, 16, 4)), (3, 8, 4, 16)),
        ("aten::linear", ((2, 8, 16), (4, 16)), (1, 16, 4, 16)),
        ("aten::_scaled_mm", ((8, 16), (16, 4), (), ()), (1, 8, 4, 16)),
        # Grouped: the groups share the tokens (2-D by 3-D) or the contraction (2-D by 2-D).
        ("aten::_grouped_mm", ((8, 16), (5, 16, 4), (5,)), (1, 8, 4, 16)),
        ("aten::_scaled_grouped_mm", ((8, 16), (16, 4), (5,)), (1, 8, 4, 16)),
        ("aten::_grouped_mm", ((5, 8, 16), (5, 16, 4)), (5, 8, 4, 16)),
        # Transformer Engine records the weight (N, K) first, then the input (…, K).
        ("_Linear", ((4, 16), (2, 8, 16), ()), (1, 16, 4, 16)),
        (
            "triton_tem_fused__scaled_mm_0",
            ((8, 16), (16, 4), (), (), (8, 4)),
            (1, 8, 4, 16),
        ),
        (
            "torchao::blockwise_fp8_gemm",
            ((2, 4, 256), (), (128, 256), ()),
            (1, 8, 128, 256),
        ),
        ("vllm::cutlass_scaled_mm", ((8, 4), (8, 16), (16, 4)), (1, 8, 4, 16)),
        ("_C::cutlass_scaled_fp4_mm", ((8, 4), (8, 16), (4, 16)), (1, 8, 4, 32)),
        ("trtllm::cublas_scaled_mm", ((8, 16), (16, 4)), (1, 8, 4, 16)),
        ("sgl_kernel::fp8_scaled_mm", ((8, 16), (16, 4)), (1, 8, 4, 16)),
        ("mslk::f8f8bf16_groupwise", ((8, 16), (4, 16)), (1, 8, 4, 16)),
        # What the recorded shapes do not say.
        ("aten::mm", (), None),
        ("aten::mv", ((8, 16), (16, 4)), None),
        ("aten::mm", ((8, 16), (17, 4)), None),
        ("aten::mm", ((8,), (16, 4)), None),
        ("_LinearBackward", ((2, 8, 4), ()), None),
        ("CompiledFunction", ((8, 16), (16, 4)), None),
        ("aten::bmm", ((3, 8, 16), (0, 16, 4)), None),
    ],
)
def test_shapes_of_products_follow_from_the_operators_schemas(
    name: str, dims: Dims, shape: tuple[int, int, int, int] | None
) -> None:
    found = gemm_shape(OpContext(name=name, dims=dims))
    assert found == shape
    assert found is None or found.flops == 2 * prod(found)

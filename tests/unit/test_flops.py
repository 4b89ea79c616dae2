from __future__ import annotations

import pytest

from fp8verify.analysis.kinds import gemm_shape
from fp8verify.terms import OpContext


@pytest.mark.parametrize(
    ("op", "dims", "flops"),
    [
        ("aten::mm", ((8, 16), (16, 4)), 2 * 8 * 16 * 4),
        ("aten::addmm", ((4,), (8, 16), (16, 4)), 2 * 8 * 16 * 4),
        ("aten::mv", ((8, 16), (16,)), 2 * 8 * 16),
        ("aten::bmm", ((3, 8, 16), (3, 16, 4)), 3 * 2 * 8 * 16 * 4),
        ("aten::baddbmm", ((3, 8, 4), (3, 8, 16), (3, 16, 4)), 3 * 2 * 8 * 16 * 4),
        ("aten::linear", ((2, 8, 16), (4, 16)), 2 * 16 * 16 * 4),
        ("aten::_scaled_mm", ((8, 16), (16, 4), (), ()), 2 * 8 * 16 * 4),
        # Grouped: the groups share the tokens (2-D by 3-D) or the contraction (2-D by 2-D).
        ("aten::_grouped_mm", ((8, 16), (5, 16, 4), (5,)), 2 * 8 * 16 * 4),
        ("aten::_scaled_grouped_mm", ((8, 16), (16, 4), (5,)), 2 * 8 * 16 * 4),
        ("aten::_grouped_mm", ((5, 8, 16), (5, 16, 4)), 5 * 2 * 8 * 16 * 4),
        # Transformer Engine records the weight (N, K) first, then the input (…, K).
        ("_Linear", ((4, 16), (2, 8, 16), ()), 2 * 16 * 16 * 4),
        ("triton_tem_fused__scaled_mm_0", ((8, 16), (16, 4), (), (), (8, 4)), 2 * 8 * 16 * 4),
    ],
)
def test_flops_follow_from_the_recorded_shapes(
    op: str, dims: tuple[tuple[int, ...], ...], flops: int
) -> None:
    shape = gemm_shape(OpContext(name=op, dims=dims))
    assert shape is not None
    assert shape.flops == flops


@pytest.mark.parametrize(
    "op",
    [
        None,
        OpContext(name="aten::mm"),
        OpContext(name="aten::mv", dims=((8, 16), (16, 4))),
        OpContext(name="aten::mm", dims=((8, 16), (17, 4))),
        OpContext(name="aten::mm", dims=((8,), (16, 4))),
        OpContext(name="_LinearBackward", dims=((2, 8, 4), ())),
        OpContext(name="CompiledFunction", dims=((8, 16), (16, 4))),
        OpContext(name="aten::bmm", dims=((3, 8, 16), (0, 16, 4))),
    ],
)
def test_shapes_that_do_not_say_give_no_flops(op: OpContext | None) -> None:
    assert gemm_shape(op) is None

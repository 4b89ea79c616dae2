"""Which leg a GEMM is: each rule on a handful of launches."""

from __future__ import annotations

import pytest

from fp8verify.analysis.gemms import classify_kernels
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.placing import Placed, place
from fp8verify.analysis.purpose import multiplies_square
from fp8verify.kernels import classify, decode
from fp8verify.terms import NO_OP, OpContext, Role
from fp8verify.trace import Trace
from fp8verify.trace.tables import Kernels, Site
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    E5M2,
    FP8,
    FP8_GRADIENT_KERNEL,
    FP8_KERNEL,
)

Launches = tuple[Kind, int]  # a kind and how often it was launched
NODE = ("MmBackward0", "autograd::engine::evaluate_function: MmBackward0")
SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(int)"
)


def mm(
    m: int,
    k: int,
    n: int,
    *,
    backward: bool = False,
    kernel: str = FP8_KERNEL,
    parents: tuple[str, ...] = NODE,
    types: tuple[str, str] = (FP8, FP8),
    calls: int = 1,
) -> Launches:
    name = "aten::_scaled_mm" if types[0] != BF16 else "aten::mm"
    op = OpContext(
        name=name,
        types=types,
        dims=((m, k), (k, n)),
        parents=parents if backward else (),
        backward=backward,
    )
    return Kind(kernel, op, classify(decode(kernel), op)), calls


def trace_of(order: list[tuple[int, int]] | None, *sites: Launches) -> Trace:
    """Record launches: each a site, and the number of its node of autograd, -1 for none."""
    launches = order or [
        (i, -1) for i, (_, calls) in enumerate(sites) for _ in range(calls)
    ]
    kinds = [kind for kind, _ in sites]
    trace = Trace(
        source="by hand",
        names=[kind.name for kind in kinds],
        ops=[kind.op for kind in kinds],
    )
    for number, (site, node) in enumerate(launches):
        kernels = trace.kernels
        for column in Kernels.__struct_fields__:
            if column not in ("layer", "launch_ns", "thread", "config"):
                getattr(kernels, column).append(0)
        kernels.name[-1] = site
        kernels.op[-1] = site if kinds[site].op != NO_OP else -1
        kernels.start_ns[-1] = number
        kernels.site[-1] = number
        in_node = kinds[site].op.backward
        trace.sites.append(Site(-1, -1, node) if in_node else Site(node, node, -1))
    return trace


def placed(order: list[tuple[int, int]] | None, *sites: Launches) -> list[list[Placed]]:
    """Place launches, by their sites."""
    trace = trace_of(order, *sites)
    launches = place(trace, classify_kernels(trace))
    return [
        [one for one in launches if trace.kernels.name[one.gemm.index] == number]
        for number in range(len(sites))
    ]


def legs(*sites: Launches) -> list[list[str]]:
    return [[one.leg.value for one in found] for found in placed(None, *sites)]


def test_shapes_tell_dgrad_from_wgrad() -> None:
    # 64 tokens, 16 inputs, 32 outputs.
    assert legs(
        mm(64, 16, 32),
        mm(64, 32, 16, backward=True),
        mm(32, 64, 16, backward=True),
    ) == [["fprop"], ["dgrad"], ["wgrad"]]


def test_a_transposed_wgrad_is_one() -> None:
    assert legs(mm(64, 16, 32), mm(16, 64, 32, backward=True))[1] == ["wgrad"]


def test_shapes_that_fit_both_are_dealt_in_the_order_of_the_formulas() -> None:
    # As many tokens as outputs: dgrad (64, 64, 16) and wgrad (64, 64, 16) look alike.
    both = mm(
        64,
        64,
        16,
        backward=True,
        calls=4,
        types=(E5M2, FP8),
        kernel=FP8_GRADIENT_KERNEL,
    )
    assert legs(mm(64, 16, 64, calls=2), both)[1] == [
        "dgrad",
        "wgrad",
        "dgrad",
        "wgrad",
    ]


def test_a_leg_accounted_for_leaves_the_other() -> None:
    # wgrad ran in BF16, whose kernels show their layout (NT); what is left in FP8 is dgrad.
    wgrad = mm(
        64,
        64,
        16,
        backward=True,
        types=(BF16, BF16),
        kernel=BF16_KERNEL.replace("TNT", "NTT"),
    )
    dgrad = mm(64, 64, 16, backward=True)
    assert legs(mm(64, 16, 64), wgrad, dgrad) == [["fprop"], ["wgrad"], ["dgrad"]]


def test_the_layout_decides_where_shapes_do_not() -> None:
    high = {"types": (BF16, BF16), "backward": True}
    found = legs(
        mm(64, 64, 64, types=(BF16, BF16), kernel=BF16_KERNEL),
        mm(64, 64, 64, kernel=BF16_KERNEL.replace("TNT", "NNT"), **high),
        mm(64, 64, 64, kernel=BF16_KERNEL.replace("TNT", "NTN"), **high),
    )
    assert found == [["fprop"], ["dgrad"], ["wgrad"]]


def test_a_layout_is_not_believed_against_the_shapes() -> None:
    graph = (
        "CompiledFunctionBackward",
        "autograd::engine::evaluate_function: CompiledFunctionBackward",
    )
    found = legs(
        mm(128, 64, 64, types=(BF16, BF16), kernel=BF16_KERNEL),
        mm(
            128,
            64,
            64,
            types=(BF16, BF16),
            kernel=BF16_KERNEL.replace("TNT", "NTT"),
            backward=True,
            parents=graph,
        ),
    )
    assert found[1] != ["wgrad"]


def test_a_forward_function_inside_the_backward_pass_is_recomputation() -> None:
    function = "matmul_with_hp_or_float8_args"
    node = (
        f"{function}Backward",
        f"autograd::engine::evaluate_function: {function}Backward",
    )
    found = legs(
        mm(64, 16, 32),
        mm(64, 16, 32, backward=True, parents=("aten::mm", function, *node)),
        mm(64, 32, 16, backward=True, parents=("aten::mm", *node)),
    )
    assert found == [["fprop"], ["recompute"], ["dgrad"]]


def test_a_linear_inside_the_backward_pass_is_recomputation() -> None:
    parents = ("aten::matmul", "aten::linear", "MulBackward0")
    assert legs(mm(64, 16, 32, backward=True, parents=parents)) == [["recompute"]]


def test_a_split_k_reduction_has_the_leg_of_its_gemm() -> None:
    high = {"types": (BF16, BF16), "backward": True}
    product = mm(32, 64, 16, kernel=BF16_KERNEL.replace("TNT", "NTT"), **high)
    reduction = mm(32, 64, 16, kernel=SPLIT_K, **high)
    found = legs(
        mm(64, 16, 32, types=(BF16, BF16), kernel=BF16_KERNEL), product, reduction
    )
    assert found[1:] == [["wgrad"], ["wgrad"]]


def te(
    name: str, *dims: tuple[int, ...], calls: int, kernel: str = FP8_KERNEL
) -> Launches:
    """A function of Transformer Engine with the sizes that it records."""
    backward = name.endswith("Backward")
    parents = (f"autograd::engine::evaluate_function: {name}",) if backward else ()
    op = OpContext(
        name=name,
        types=(BF16,) * len(dims),
        dims=dims,
        parents=parents,
        backward=backward,
    )
    return Kind(kernel, op, classify(decode(kernel), op)), calls


def work(
    order: list[tuple[int, int]], *sites: Launches
) -> list[list[tuple[str, tuple[int, ...] | None]]]:
    """Return leg and (m, n, k) of each launch, by site."""
    return [
        [(placed.leg.value, placed.shape and placed.shape[1:]) for placed in found]
        for found in placed(order, *sites)
    ]


def test_transformer_engine_runs_dgrad_then_wgrad() -> None:
    forward = te("_Linear", (32, 16), (4, 64, 16), calls=2)
    backward = te("_LinearBackward", (4, 64, 32), calls=4)
    assert work(
        [(0, 0), (0, 1), (1, 1), (1, 1), (1, 0), (1, 0)], forward, backward
    ) == [
        [("fprop", (256, 32, 16))] * 2,
        [("dgrad", (256, 16, 32)), ("wgrad", (32, 16, 256))] * 2,
    ]


def test_the_four_gradients_of_an_mlp_come_from_its_end() -> None:
    inputs = ((64, 16), (16,), (16,), (48, 16), (), (), (16, 48))
    forward = te("_LayerNormMLP", *inputs, calls=2)
    backward = te("_LayerNormMLPBackward", (64, 16), calls=4)
    assert work([(0, 0)] * 2 + [(1, 0)] * 4, forward, backward) == [
        [("fprop", (64, 48, 16)), ("fprop", (64, 16, 48))],
        [
            ("dgrad", (64, 48, 16)),
            ("wgrad", (16, 48, 64)),
            ("dgrad", (64, 16, 48)),
            ("wgrad", (48, 16, 64)),
        ],
    ]


def test_a_gated_mlp_is_twice_as_wide_at_first() -> None:
    inputs = ((64, 16), (16,), (16,), (96, 16), (), (), (16, 48))
    (found,) = work([(0, 0)] * 2, te("_LayerNormMLP", *inputs, calls=2))
    assert found == [("fprop", (64, 96, 16)), ("fprop", (64, 16, 48))]


def test_gradients_have_the_sizes_of_the_call_that_made_their_node() -> None:
    # Both put out 32, and run in the order of a pipeline: only the numbers tell whose they are.
    narrow = te("_Linear", (32, 16), (64, 16), calls=1)
    wide = te("_Linear", (32, 128), (64, 128), calls=1)
    backward = te("_LinearBackward", (64, 32), calls=4)
    found = work(
        [(0, 0), (1, 1), (2, 0), (2, 0), (2, 1), (2, 1)], narrow, wide, backward
    )[2]
    assert found == [
        ("dgrad", (64, 16, 32)),
        ("wgrad", (32, 16, 64)),
        ("dgrad", (64, 128, 32)),
        ("wgrad", (32, 128, 64)),
    ]


def test_gradients_are_of_the_micro_batch_of_their_forward_product() -> None:
    # GPipe: all forward passes before all backward passes, first in, first out.
    forward = te("_Linear", (32, 16), (64, 16), calls=4)
    backward = te("_LinearBackward", (64, 32), calls=8)
    order = [(0, n) for n in range(4)] + [(1, n // 2) for n in range(8)]
    products, gradients = placed(order, forward, backward)
    assert [one.micro_batch for one in products] == [0, 1, 2, 3]
    assert [one.micro_batch for one in gradients] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [one.forward for one in gradients] == [
        one.gemm for one in products for _ in range(2)
    ]


def test_one_layer_whose_input_takes_no_gradient_has_no_dgrad() -> None:
    forward = te("_Linear", (32, 16), (64, 16), calls=3)
    backward = te("_LinearBackward", (64, 32), calls=5)
    order = [(0, n) for n in range(4)] + [(1, n) for n in (3, 3, 2, 2, 1, 1, 0)]
    found = [leg for leg, _ in work(order, forward, backward)[1]]
    assert found == ["dgrad", "wgrad"] * 3 + ["wgrad"]
    found = [leg for leg, _ in work([(0, 0), (1, 0)], forward, backward)[1]]
    assert found == ["backward"]  # nothing shows that others have two


def test_experts_of_a_grouped_linear_share_its_tokens() -> None:
    inputs = ((64, 16), (4,), *[(32, 16)] * 4)
    forward = te("_GroupedLinear", *inputs, calls=4)
    backward = te("_GroupedLinearBackward", (64, 32), calls=8)
    assert forward[0].classification.role is Role.GROUPED_GEMM
    assert work([(0, 0)] * 4 + [(1, 0)] * 8, forward, backward) == [
        [("fprop", (16, 32, 16))] * 4,
        [("dgrad", (16, 16, 32))] * 4 + [("wgrad", (32, 16, 16))] * 4,
    ]


def test_a_transposed_weight_makes_no_recomputation() -> None:
    # A square layer, eager: TN is the layout of a forward pass, and of this dgrad as well.
    high = {"types": (BF16, BF16), "kernel": BF16_KERNEL}
    found = legs(mm(64, 16, 16, **high), mm(64, 16, 16, backward=True, **high))
    assert found == [["fprop"], ["dgrad"]]


def test_a_gradient_without_context_is_of_the_backward_pass() -> None:
    gradient, forward = (
        (Kind(kernel, NO_OP, classify(decode(kernel), None)), 1)
        for kernel in (FP8_GRADIENT_KERNEL, FP8_KERNEL)
    )
    assert legs(gradient, forward) == [["backward"], ["unknown"]]


@pytest.mark.parametrize(
    ("dims", "square"),
    [
        (((8, 8),), True),
        (((8, 16), (16, 8)), True),
        (((4, 6), (8, 16), (16, 8)), True),  # added to another matrix
        (((2, 8, 16), (2, 16, 8)), True),
        (((8, 16), (16, 4)), False),
        (((8, 16), (8,)), False),
        ((), False),
    ],
)
def test_a_square_product_is_known_by_its_shapes(
    dims: tuple[tuple[int, ...], ...], square: bool
) -> None:
    assert multiplies_square(OpContext(name="aten::mm", dims=dims)) is square


def test_what_nothing_decides_stays_backward() -> None:
    replay = OpContext(
        name="CompiledFunctionBackward", types=("float",), dims=((),), backward=True
    )
    site = Kind(FP8_KERNEL, replay, classify(decode(FP8_KERNEL), replay)), 3
    assert legs(site) == [["backward"] * 3]
    # Three launches where dgrad and wgrad look alike cannot be dealt evenly.
    assert (
        legs(mm(64, 16, 64), mm(64, 64, 16, backward=True, calls=3))[1]
        == ["backward"] * 3
    )

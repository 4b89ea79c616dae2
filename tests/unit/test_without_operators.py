"""What kernel names alone decide, where a trace holds no operators."""

from __future__ import annotations

import pytest

from fp8verify import Policy
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.purpose import is_of_backward
from fp8verify.kernels import classify, decode
from fp8verify.terms import NO_OP
from fp8verify.verdict.judge import judge
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    FP8,
    FP8_GRADIENT_KERNEL,
    FP8_KERNEL,
    TraceBuilder,
    found,
    module,
)

ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListScalarListMetadata<float, 3>, at::native::(anonymous namespace)::"
    "PointwiseOpScalarListFunctor<c10::BFloat16, 3, 3, 0>, std::divides<float> >(…)"
)
GW_HP = (
    "Applied Float8 training: recipe=ROWWISE_WITH_GW_HP, fsdp_float8_all_gather=False\n"
)


def bare(
    build: TraceBuilder, *counts: tuple[str, int], us: float = 10.0
) -> TraceBuilder:
    """Launch kernels without operators, each so many times."""
    for kernel, count in counts:
        for _ in range(count):
            build.launch(kernel, None, us=us)
    return build


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        # Two with E5M2 gradients for each forward GEMM: the other may be of a micro-batch in BF16.
        ([(FP8_KERNEL, 3), (FP8_GRADIENT_KERNEL, 6), (BF16_KERNEL, 1)], "INCONCLUSIVE"),
        ([(FP8_KERNEL, 3), (FP8_GRADIENT_KERNEL, 6)], "ACTIVE"),
        # One leg of the backward pass may be among the others.
        ([(FP8_KERNEL, 3), (FP8_GRADIENT_KERNEL, 3), (BF16_KERNEL, 3)], "INCONCLUSIVE"),
        ([(FP8_KERNEL, 3), (FP8_GRADIENT_KERNEL, 5), (BF16_KERNEL, 1)], "INCONCLUSIVE"),
        # Nothing is in high precision, so no leg is.
        ([(FP8_KERNEL, 9), (ADAM, 1)], "ACTIVE"),
        ([(FP8_KERNEL, 9), (BF16_KERNEL, 1), (ADAM, 1)], "INCONCLUSIVE"),
        # Forward passes alone look the same.
        ([(FP8_KERNEL, 9)], "INCONCLUSIVE"),
        # The others may be Muon's, or attention's.
        (
            [(FP8_KERNEL, 3), (FP8_GRADIENT_KERNEL, 6), (BF16_KERNEL, 30)],
            "INCONCLUSIVE",
        ),
        # Without a GEMM in FP8, nothing is hidden.
        ([(BF16_KERNEL, 9)], "INACTIVE"),
    ],
)
def test_the_verdict_is_what_the_kernels_prove(
    build: TraceBuilder, kernels: list[tuple[str, int]], expected: str
) -> None:
    report = bare(build, *kernels).report()
    assert report.verdict == expected
    said = found(report, "no-operators")
    assert bool(said) == (expected == "INCONCLUSIVE")
    others = dict(kernels).get(BF16_KERNEL)
    assert others is None or all(
        f"the other {others} (BF16)" in one.message for one in said
    )


def test_a_leg_that_the_recipe_leaves_in_high_precision_is_no_riddle(
    build: TraceBuilder,
) -> None:
    bare(build, (FP8_KERNEL, 6), (BF16_KERNEL, 3), (ADAM, 1))
    assert build.report().verdict == "INCONCLUSIVE"
    assert build.report(log=GW_HP).verdict == "ACTIVE"
    bare(build, (BF16_KERNEL, 1))
    assert build.report(log=GW_HP).verdict == "INCONCLUSIVE"


def test_a_claim_is_not_contradicted_by_what_may_be_an_evaluation(
    build: TraceBuilder,
) -> None:
    bare(build, (BF16_KERNEL, 9))
    assert build.report(log=GW_HP).verdict == "INCONCLUSIVE"
    bare(build, (ADAM, 1))
    assert build.report(log=GW_HP).verdict == "CONTRADICTED"


def test_no_share_that_is_asked_for_settles_what_the_others_are(
    build: TraceBuilder,
) -> None:
    bare(build, (FP8_KERNEL, 3), (FP8_GRADIENT_KERNEL, 6), (BF16_KERNEL, 9))
    report = build.report()
    for share in (0.4, 0.6):
        assert build.report(min_share=share).verdict == "INCONCLUSIVE"
        assert judge(report, Policy(min_share=share)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(("us", "expected"), [(9, "ACTIVE"), (11, "INCONCLUSIVE")])
def test_no_leg_is_hidden_in_a_hundredth_of_the_time(
    build: TraceBuilder, us: float, expected: str
) -> None:
    bare(build, (FP8_KERNEL, 9), us=110).launch(BF16_KERNEL, None, us=us).launch(
        ADAM, None
    )
    assert build.report().verdict == expected


def test_with_operators_of_most_gemms_nothing_changes(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=True)
    build.launch(BF16_KERNEL, None, us=0.2)
    assert build.report().verdict == "ACTIVE"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (FP8_GRADIENT_KERNEL, True),
        ("triton_per_fused_native_layer_norm_backward_3", True),
        (
            "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<…>(Flash_bwd_params)",
            True,
        ),
        (
            "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float>(…)",
            True,
        ),
        ("void at::native::(anonymous namespace)::GradInputKernel<float>(…)", True),
        (
            "void at::native::(anonymous namespace)::cunn_SoftMaxBackwardSmem<8>(…)",
            True,
        ),
        (FP8_KERNEL, False),
        (
            "triton_red_fused__log_softmax__to_copy__unsafe_view_clone_nll_loss_forward_15",
            False,
        ),
        ("void upgraded_gradation_kernel()", False),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", False),
    ],
)
def test_kernels_of_backward_passes_are_known_by_name(
    name: str, expected: bool
) -> None:
    assert is_of_backward(Kind(name, NO_OP, classify(decode(name), None))) is expected


@pytest.mark.parametrize(
    ("states", "frozen", "expected"),
    [
        (["fp8", "high_precision"], False, "ACTIVE"),
        (["fp8", "high_precision", "unknown"], False, "INCONCLUSIVE"),
        (["fp8", "high_precision"], True, "INCONCLUSIVE"),
        (["fp8"], False, "INCONCLUSIVE"),
    ],
)
def test_layers_that_were_left_out_explain_as_many_gemms(
    build: TraceBuilder, states: list[str], frozen: bool, expected: str
) -> None:
    for _ in range(3):  # E4M3 alone, so that names do not tell the legs
        build.launch(FP8_KERNEL, None, types=(FP8, FP8), us=20)
        build.launch(BF16_KERNEL, None, types=(BF16, BF16))
    modules = [module(state, 32, 16, state, frozen=frozen) for state in states]
    assert bare(build, (ADAM, 1)).capture(*modules).verdict == expected

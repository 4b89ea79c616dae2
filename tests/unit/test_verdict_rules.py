"""The rules that keep the verdict from being fooled, each on variants that were made to fool it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8verify import inspect
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    CLAIM,
    E5M2,
    FP8,
    FP8_GRADIENT_KERNEL,
    FP8_KERNEL,
    FP32,
    FP32_KERNEL,
    LEGS,
    TraceBuilder,
    codes,
    found,
    module,
)

MUON = "Optimizer.step#Muon.step"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, false>(…)"
FUSED_ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<…>(…)"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::float8_copy_kernel_cuda(…)>(…)"
M, N, K = 64, 32, 16
BLAS = {"types": (BF16, BF16)}


# -- opaque kernels -------------------------------------------------------------------------------


def opaque_layer(
    build: TraceBuilder, op: str, kernel: str = "main_kernel"
) -> TraceBuilder:
    """A layer in kernels without a word, under an operator that takes FP8."""
    for a, b, gradient in (
        ((M, K), (K, N), False),
        ((M, N), (N, K), True),
        ((N, M), (M, K), True),
    ):
        types = (E5M2 if gradient else FP8, FP8, FP32)
        launch = {"types": types, "dims": (a, b, ()), "backward": gradient}
        build.launch("prologue", op, us=1, **launch)
        build.launch(kernel, op, us=20, **launch)
        build.launch(CAST, op, us=30, **launch)
    return build


@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        ("primus_turbo::gemm_fp8_impl", "main_kernel"),
        ("tilelang::linear_fp8", "main_kernel"),
        ("mylib::fp8_mm", "_kernel_0d1d2d"),
    ],
)
def test_an_operator_of_two_fp8_matrices_is_an_fp8_gemm_whatever_its_kernel_is_called(
    build: TraceBuilder, op: str, kernel: str
) -> None:
    report = opaque_layer(build, op, kernel).report()
    assert report.verdict == "ACTIVE"
    assert report.gemm.kernels["fp8"] == 3  # not its set-up, nor its casts
    assert report.gemm.time_us["fp8"] == 60
    assert {row.decided_by for row in report.ranks[0].kernels if row.role.is_gemm} == {
        "op"
    }


@pytest.mark.parametrize(
    ("us", "log", "expected"),
    [(90, "", "INCONCLUSIVE"), (90, CLAIM, "INCONCLUSIVE"), (2, CLAIM, "CONTRADICTED")],
)
def test_work_that_nobody_recognises_leaves_open_whether_fp8_ran(
    build: TraceBuilder, us: float, log: str, expected: str
) -> None:
    build.linear(M, N, K, fp8=False).launch("main_kernel", "mylib::forward", us=us)
    report = build.report(log=log)
    assert report.verdict == expected
    (finding,) = found(report, "opaque-kernels")
    assert finding.severity == ("warning" if us > 10 else "info")
    assert "main_kernel (mylib::forward)" in finding.message
    decided = {"claimed-not-active", "emulated"} & codes(report)
    assert decided == ({"claimed-not-active"} if expected == "CONTRADICTED" else set())


@pytest.mark.parametrize(
    ("us", "share", "expected"), [(25, 0.5, "ACTIVE"), (40, 0.5, "INCONCLUSIVE")]
)
def test_opaque_time_counts_against_the_share_that_decides(
    build: TraceBuilder, us: float, share: float, expected: str
) -> None:
    build.linear(M, N, K, fp8=True).launch("main_kernel", "mylib::forward", us=us)
    assert build.report(min_share=share).verdict == expected


@pytest.mark.parametrize(
    ("op", "weight", "us", "expected"),
    [
        ("Project", (2048, 2048), 54, "PARTIAL"),  # 636 TFLOP/s
        ("acme::project", (2048, 2048), 54, "PARTIAL"),
        ("v3_0", (2048, 2048), 48, "PARTIAL"),  # as compiled code calls it
        ("Project", (512, 2048), 12, "ACTIVE"),  # less than the FP8 GEMMs
        ("Project", (2048, 2048), 20, "ACTIVE"),  # faster than BF16 can be
        ("Project", (2048, 2048), 900, "ACTIVE"),  # slower than GEMMs are
        ("Project", (2048, 512), 54, "ACTIVE"),  # no product of these
    ],
)
def test_a_function_that_may_be_a_layer_in_bf16_counts_as_one(
    build: TraceBuilder, op: str, weight: tuple[int, int], us: float,
    expected: str,
) -> None:  # fmt: skip
    x = (4096, 1024 if weight == (2048, 512) else 2048)
    build.linear(M, N, K, fp8=True).launch(
        "v3", op, types=(BF16, BF16), dims=(x, weight), us=us
    )
    node, kernel = (
        ("ProjectBackward", "v3") if op == "v3_0" else (f"{op}Backward", "other")
    )
    build.launch(kernel, node, types=(BF16,), dims=(x,), us=us, backward=True)
    assert build.report().verdict == expected


@pytest.mark.parametrize(
    ("tokens", "inputs", "verdict", "said"),
    [
        (M, 8, "ACTIVE", "ran on 1 of 2 ranks"),
        (3 * M, 8, "PARTIAL", "ran on 1 of 2 ranks"),
        (
            M,
            K,
            "INCONCLUSIVE",
            "in BF16, and other ranks ran other layers",
        ),  # of one model
    ],
)
def test_ranks_that_train_other_layers_in_bf16_count_for_the_share(
    tokens: int, inputs: int, verdict: str, said: str, tmp_path: Path
) -> None:
    TraceBuilder(rank=0, world=2).linear(M, N, K, fp8=True).write(
        tmp_path / "rank0.json"
    )
    other = TraceBuilder(rank=1, world=2)
    for _ in range(tokens // M):
        other.linear(M, 8, inputs, fp8=False)
    other.write(tmp_path / "rank1.json")
    report = inspect(tmp_path)
    assert (report.verdict, "rank-without-fp8" in codes(report)) == (verdict, False)
    assert said in report.reason


@pytest.mark.parametrize("side", [10**400, 0, -8])
def test_sizes_that_no_tensor_has_are_no_product(
    build: TraceBuilder, side: int
) -> None:
    for dims in (((side, 64), (64, 64)), ((64, 64), (64,) * 500)):
        build.launch("v3", "Project", types=(BF16,) * 900, dims=dims * 450)
    assert build.linear(M, N, K, fp8=True).report().verdict == "ACTIVE"


@pytest.mark.parametrize("us", [30, 0.1])
@pytest.mark.parametrize("hidden", ["a step", "the forward pass"])
def test_work_that_lacks_gemms_may_be_in_unknown_kernels(
    build: TraceBuilder, hidden: str, us: float
) -> None:
    for step in range(1, 4):
        build.step(step)
        if hidden == "the forward pass":
            build.launch(
                FP8_GRADIENT_KERNEL,
                "aten::_scaled_mm",
                types=(E5M2, FP8),
                backward=True,
            )
        elif step != 2:
            build.linear(M, N, K, fp8=True)
        build.launch("v3", "mylib::forward", us=us)
    report = build.report()
    is_open = (
        hidden == "the forward pass" or us == 30
    )  # which is long enough to be the GEMMs
    assert (report.verdict == "INCONCLUSIVE") is is_open
    assert any("steps 2 lack GEMMs" in f.message for f in report.findings) is (
        hidden == "a step" and us == 30
    )


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("my_rotary_embedding_kernel", "mylib::rope"),
        ("anything", "aten::cumsum"),
        ("anything", "MulBackward0"),
        ("split_embedding_codegen_forward", "fbgemm::split_embedding_codegen_lookup"),
    ],
)
def test_kernels_that_a_name_or_an_operator_explains_are_not_opaque(
    build: TraceBuilder, kernel: str, op: str
) -> None:
    report = build.linear(M, N, K, fp8=False).launch(kernel, op, us=95).report()
    assert report.verdict == "INACTIVE"
    assert not found(report, "opaque-kernels")


def test_a_kernel_that_names_bf16_under_an_fp8_operator_is_no_fp8_gemm(
    build: TraceBuilder,
) -> None:
    report = opaque_layer(build, "mylib::fp8_mm", BF16_KERNEL).report()
    assert report.gemm.kernels["fp8"] == 0


# -- steps and legs by share ----------------------------------------------------------------------


@pytest.mark.parametrize(("low", "share"), [(1, "10.0%"), (6, None)])
def test_a_step_with_less_than_half_of_the_fp8_of_others_is_short(
    build: TraceBuilder, low: int, share: str | None
) -> None:
    for step in (1, 2, 3):
        build.step(step)
        for number in range(10):
            build.linear(M, N, K, fp8=step != 2 or number < low)
    report = build.report()
    said = [
        f"at most {share} of the GEMMs of step 2 ran in FP8; in the other steps 100.0% did"
    ]
    messages = [finding.message for finding in found(report, "step-without-fp8")]
    assert messages == (said if share else [])
    assert (report.verdict, report.exit_code) == ("PARTIAL", 1)
    assert bool(found(report, "pass-without-fp8")) is (share is None)


def test_a_step_without_fp8_is_short_however_many_steps_there_are(
    build: TraceBuilder,
) -> None:
    for step in range(1, 151):  # a step is less than a hundredth of all work
        build.step(step).linear(M, N, K, fp8=step != 70)
    report = build.report()
    assert report.verdict == "PARTIAL"
    assert "step 70" in found(report, "step-without-fp8")[0].message


def test_steps_without_gemms_are_said_and_are_not_every_step(
    build: TraceBuilder,
) -> None:
    build.step(1).linear(M, N, K, fp8=True)
    build.step(2).launch("triton_poi_fused_add_0", "triton_poi_fused_add_0")
    build.step(3).linear(M, N, K, fp8=True)
    report = build.report()
    assert report.verdict == "ACTIVE"
    assert "every step" not in report.reason
    assert "step 2;" in found(report, "step-without-gemms")[0].message


def leg(
    build: TraceBuilder, name: str, count: int, *, fp8: bool, us: float = 10
) -> None:
    for _ in range(count):
        build.gemm(name, M, N, K, fp8=fp8, us=us)


@pytest.mark.parametrize("name", LEGS)
@pytest.mark.parametrize("low", [0, 1, 4])
def test_a_leg_with_a_few_fp8_gemms_is_in_high_precision(
    build: TraceBuilder, name: str, low: int
) -> None:
    for other in LEGS:
        leg(build, other, low if other == name else 10, fp8=True)
        leg(build, other, 10 - low if other == name else 0, fp8=False)
    report = build.report()
    assert report.verdict == "PARTIAL"
    (finding,) = found(report, "leg-not-fp8")
    assert name in finding.message


def test_a_vague_gemm_hides_no_leg(build: TraceBuilder) -> None:
    leg(build, "fprop", 10, fp8=True)
    leg(build, "dgrad", 10, fp8=True)
    leg(build, "wgrad", 10, fp8=False)
    build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8), backward=True, us=1)
    assert found(build.report(), "leg-not-fp8")


def test_vague_gemms_that_may_be_the_leg_are_no_shortfall(build: TraceBuilder) -> None:
    leg(build, "fprop", 10, fp8=True)
    leg(build, "wgrad", 1, fp8=False)  # the head's
    for _ in range(20):
        build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8), backward=True)
    assert not found(build.report(), "leg-not-fp8")


# -- windows --------------------------------------------------------------------------------------


def forward_only(build: TraceBuilder, *, fp8: bool) -> TraceBuilder:
    for step in (1, 2):
        leg(build.step(step), "fprop", 3, fp8=fp8)
    return build


@pytest.mark.parametrize(
    ("fp8", "log", "expected"),
    [
        (True, "", "INCONCLUSIVE"),
        (False, CLAIM, "INCONCLUSIVE"),
        (False, "", "INACTIVE"),
    ],
)
def test_an_evaluation_window_decides_nothing_of_a_training_in_fp8(
    build: TraceBuilder, fp8: bool, log: str, expected: str
) -> None:
    report = forward_only(build, fp8=fp8).report(log=log)
    assert report.verdict == expected
    assert found(report, "no-backward")
    assert not {"claimed-not-active", "emulated"} & codes(report)


def test_a_graph_of_a_whole_step_may_hold_its_backward_pass(
    build: TraceBuilder,
) -> None:
    for step in (1, 2):
        for _ in range(3):
            build.step(step).launch(FP8_KERNEL, None)
    report = build.report()
    assert report.verdict == "INCONCLUSIVE"
    assert "no-backward" not in codes(report)
    build.launch(FP8_GRADIENT_KERNEL, None)
    assert build.report().verdict == "ACTIVE"


@pytest.mark.parametrize(
    ("kernel", "op", "parents", "seen"),
    [
        (FUSED_ADAM, "aten::_fused_adamw_", (), True),
        ("triton_for_fused_0", "triton_for_fused_0", (), True),
        ("any_kernel", "aten::mul_", ("Optimizer.step#SGD.step",), True),
        (FUSED_ADAM, "aten::_foreach_norm", ("clip_grad_norm_",), False),
        ("lambda_kernel", "aten::sum", (), False),
        ("fill", "aten::zero_", ("Optimizer.zero_grad#AdamW.zero_grad",), False),
    ],
)
def test_an_optimizer_step_is_known_by_its_range_or_its_loops(
    build: TraceBuilder, kernel: str, op: str, parents: tuple[str, ...], seen: bool
) -> None:
    build.linear(M, N, K, fp8=True).launch(kernel, op, parents=parents, us=1)
    report = build.report()
    assert bool(found(report, "no-optimizer-step")) != seen
    assert report.verdict == "ACTIVE"


def test_kernels_that_were_launched_before_the_window_do_not_count(
    build: TraceBuilder, tmp_path: Path
) -> None:
    leg(build, "fprop", 5, fp8=False, us=100)
    build.step(1).linear(M, N, K, fp8=True)
    document = build.document()
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event["ts"] > 1490 or event.get("cat") not in ("cuda_driver", "cpu_op")
    ]
    (tmp_path / "trace.json").write_text(json.dumps(document))
    report = inspect(tmp_path / "trace.json")
    assert (report.verdict, report.gemm.kernels["bf16"]) == ("ACTIVE", 0)
    assert report.ranks[0].health.kernels_before_window == 5


# -- whose GEMM -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "parents"),
    [
        ("aten::mm", (MUON,)),
        ("aten::addmm", ("aten::linalg_matmul", MUON)),
        (
            "aten::mm",
            ("## Call CompiledFxGraph f3 ##", "Torch-Compiled Region: 4/0", MUON),
        ),
        ("aten::bmm", ("aten::matmul", "Optimizer.step#DistributedShampoo.step")),
    ],
)
def test_the_optimizers_gemms_are_not_the_models(
    build: TraceBuilder, op: str, parents: tuple[str, ...]
) -> None:
    build.step(1).linear(M, N, K, fp8=True)
    for _ in range(10):
        build.launch(
            BF16_KERNEL, op, dims=((N, K), (K, N)), parents=parents, us=90, **BLAS
        )
    report = build.report()
    assert (report.verdict, report.gemm.fp8_share_of_time) == ("ACTIVE", 1.0)
    assert report.optimizer_gemm.time_us["bf16"] == 900
    assert report.optimizer_gemm.fp8_share_of_time == 0
    assert [row.time_us for row in report.legs if row.leg == "optimizer"] == [
        {"bf16": 900.0}
    ]


def test_a_compiled_optimizer_without_a_range_is_known_by_its_loops(
    build: TraceBuilder,
) -> None:
    graph = ("## Call CompiledFxGraph fab ##", "Torch-Compiled Region: 2/0")
    build.linear(M, N, K, fp8=True)
    build.launch("triton_for_fused_3", "triton_for_fused_3", parents=graph)
    build.launch(BF16_KERNEL, dims=((N, K), (K, N)), parents=graph, us=90, **BLAS)
    assert build.report().verdict == "ACTIVE"


@pytest.mark.parametrize("inner", ["aten::linear", "CompiledFunction", "_Linear"])
def test_a_closures_forward_pass_is_the_models_although_the_optimizer_runs_it(
    build: TraceBuilder, inner: str
) -> None:
    parents = (inner, "Optimizer.step#AdamW.step")
    build.launch(BF16_KERNEL, dims=((M, K), (K, K)), parents=parents, **BLAS)
    leg(build, "dgrad", 1, fp8=False)
    report = build.report()
    assert report.gemm.kernels["bf16"] == 2
    assert sum(report.optimizer_gemm.kernels.values()) == 0


def test_in_a_closure_a_square_fp8_product_is_the_models(build: TraceBuilder) -> None:
    inside = ("Optimizer.step#AdamW.step",)
    build.launch("embed", "aten::embedding", parents=inside)
    low = {"dims": ((M, K), (K, K)), "types": (FP8, FP8)}
    build.launch(FP8_KERNEL, "aten::_scaled_mm", parents=("OwnLinear", *inside), **low)
    leg(build, "dgrad", 1, fp8=True)
    assert sum(build.report().optimizer_gemm.kernels.values()) == 0


def test_in_a_closure_a_square_product_with_gradients_is_the_models(
    build: TraceBuilder,
) -> None:
    inside = ("Optimizer.step#AdamW.step",)
    build.launch("embed", "aten::embedding", parents=inside)
    square = {"dims": ((M, K), (K, K)), "parents": ("OwnLinear", *inside), **BLAS}
    build.launch(BF16_KERNEL, sequence=7, **square).gemm(
        "dgrad", M, K, K, fp8=False, sequence=7
    )
    assert (
        build.launch(BF16_KERNEL, **square).report().optimizer_gemm.kernels["bf16"] == 1
    )


def test_a_users_range_is_no_optimizer(build: TraceBuilder) -> None:
    parents = ("forward, backward, optimizer",)
    build.launch(BF16_KERNEL, dims=((M, K), (K, K)), parents=parents, **BLAS)
    leg(build, "dgrad", 1, fp8=False)
    assert sum(build.report().optimizer_gemm.kernels.values()) == 0


def attention(
    build: TraceBuilder, *parents: str, batch: int = 8, fp8_linear: bool = True
) -> None:
    """Scores, softmax and values of 8 heads of 32 tokens and 16 columns, and their gradients."""
    s, d = 32, 16
    high = {"types": (FP32, FP32), "us": 100.0, "parents": parents}
    build.launch(FP32_KERNEL, "aten::bmm", dims=((batch, s, d), (batch, d, s)), **high)
    build.launch(SOFTMAX, "aten::_softmax", types=(FP32,), dims=((batch, s, s),), us=1)
    build.launch(FP32_KERNEL, "aten::bmm", dims=((batch, s, s), (batch, s, d)), **high)
    high["parents"] = ("BmmBackward0",)
    for a, b in (
        ((s, d), (d, s)),
        ((s, s), (s, d)),
        ((d, s), (s, s)),
        ((s, s), (s, d)),
    ):
        dims = ((batch, *a), (batch, *b))
        build.launch(FP32_KERNEL, "aten::bmm", dims=dims, backward=True, **high)
    build.linear(M, N, K, fp8=fp8_linear)


@pytest.mark.parametrize(
    "parents", [(), ("aten::matmul", "aten::_scaled_dot_product_attention_math")]
)
def test_unfused_attention_is_told_apart_and_named(
    build: TraceBuilder, parents: tuple[str, ...]
) -> None:
    attention(build, *parents)
    report = build.report()
    assert report.verdict == "ACTIVE"
    assert report.attention_gemm.kernels["fp32"] == 6
    assert report.gemm.kernels["fp32"] == 6
    assert report.reason.endswith("attention ran as 6 FP32 GEMMs")
    (finding,) = found(report, "attention-unfused")
    assert ("math backend" in finding.message) == bool(parents)
    assert "GEMMs in FP32 took 0.6 ms" in finding.message


def test_unfused_attention_makes_no_bf16_training_one_in_fp8(
    build: TraceBuilder,
) -> None:
    attention(build, fp8_linear=False)
    assert build.report().verdict == "INACTIVE"


def test_experts_in_batched_products_are_no_attention(build: TraceBuilder) -> None:
    build.linear(M, N, K, fp8=True)
    build.launch(
        SOFTMAX, "aten::_softmax", types=(FP32,), dims=((64, 8),)
    )  # the router's
    dims = (((8, 32, 16), (8, 16, 64)), ((8, 32, 64), (8, 64, 16)))
    for backward in (False, True, True):
        for pair in dims:
            build.launch(
                BF16_KERNEL, "aten::bmm", dims=pair, us=100, backward=backward, **BLAS
            )
    report = build.report()
    assert (report.verdict, report.attention_gemm.kernels["bf16"]) == ("PARTIAL", 0)
    assert not found(report, "attention-unfused")


# -- casts that feed GEMMs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounded", "read", "expected"),
    [
        ((), ((N, K),), "INACTIVE"),  # weights that are only stored in FP8
        (((N, K),), ((N, K),), "INACTIVE"),  # fake quantization of weights alone
        (
            ((M, K),),
            (),
            "INACTIVE",
        ),  # activations that are packed for the backward pass
        (((M, K),), ((M, K),), "EMULATED"),
        (((M, K), (N, K)), ((M, K), (N, K)), "EMULATED"),
    ],
)
def test_only_rounded_activations_that_are_read_back_are_emulation(
    build: TraceBuilder, rounded: Any, read: Any, expected: str
) -> None:
    for dims in rounded:
        build.launch("copy", "aten::copy_", types=(FP8, FP32), dims=(dims, dims))
    for dims in read:
        build.launch("copy", "aten::copy_", types=(FP32, FP8), dims=(dims, dims))
    build.linear(M, N, K, fp8=False)
    assert build.report().verdict == expected


CAST_BY_NAME = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::"
    "float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>"
)


@pytest.mark.parametrize(
    ("log", "expected"),
    [("", "INACTIVE"), ("FP8 training enabled\n", "EMULATED")],
)
def test_casts_by_name_alone_are_emulation_where_fp8_is_requested(
    build: TraceBuilder, log: str, expected: str
) -> None:
    """They may as well pack activations for the backward pass, or an optimizer's states."""
    for _ in range(6):
        build.launch(CAST_BY_NAME, "aten::copy_")
    build.linear(M, N, K, fp8=False)
    assert build.report(log=log).verdict == expected


# -- hardware -------------------------------------------------------------------------------------

TRITON = "triton_tem_fused__scaled_mm_t_3"


@pytest.mark.parametrize(
    ("gpu", "capability", "low", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), "c10::Float8_e4m3fn", "EMULATED"),
        ("Intel(R) Data Center GPU Max 1550", (0, 0), "c10::Float8_e4m3fn", "EMULATED"),
        ("AMD Instinct MI300X", (9, 4), "c10::Float8_e4m3fn", "EMULATED"),
        ("AMD Instinct MI300X", (9, 4), "c10::Float8_e4m3fnuz", "ACTIVE"),
        ("NVIDIA H200", (9, 0), "c10::Float8_e4m3fn", "ACTIVE"),
    ],
)
def test_hardware_that_cannot_multiply_the_format_is_never_active(
    tmp_path: Path, gpu: str, capability: tuple[int, int], low: str, expected: str
) -> None:
    build = TraceBuilder(tmp_path, gpu=gpu, capability=capability)
    passes = (
        (((M, K), (K, N)), False),
        (((M, N), (N, K)), True),
        (((N, M), (M, K)), True),
    )
    for dims, backward in passes:
        build.launch(TRITON, TRITON, types=(low, low), dims=dims, backward=backward)
    report = build.report()
    assert report.verdict == expected
    assert bool(found(report, "no-fp8-units")) == (expected != "ACTIVE")
    assert not found(report, "unknown-gemm")


def test_kernels_of_another_gpu_are_not_believed(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path, gpu="NVIDIA A100-SXM4-80GB", capability=(8, 0))
    report = build.linear(M, N, K, fp8=True).report()
    assert report.verdict == "INCONCLUSIVE"
    assert "runs only on other GPUs" in report.reason


# -- exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "code"), [(None, 0), (0.3, 0), (0.4, 0), (0.6, 1)])
def test_a_share_that_was_asked_for_and_is_not_met_fails(
    build: TraceBuilder, asked: float | None, code: int
) -> None:
    for name in ("fprop", "dgrad", "wgrad"):
        build.gemm(name, 128, 32, 16, fp8=True, us=40)
        build.gemm(name, 128, 48, 16, fp8=False, us=60)
    report = build.report(min_share=asked)
    assert report.verdict == ("ACTIVE" if asked in (0.3, 0.4) else "PARTIAL")
    assert (report.exit_code, report.fails) == (code, bool(code))
    silent = build.report(min_share=asked, exit_zero=True)
    assert (silent.exit_code, silent.fails) == (0, bool(code))
    strict = build.report(min_share=asked, strict=True)
    assert strict.exit_code == (report.verdict == "PARTIAL")


# -- the reason -----------------------------------------------------------------------------------


def test_a_filter_that_left_the_layers_out_stands_in_the_sentence(
    build: TraceBuilder,
) -> None:
    for n in range(43):
        build.linear(M, N, K, fp8=n == 42)
    states = ["high_precision"] * 42 + ["fp8"]
    modules = [module(f"layers.{n}.up", N, K, state) for n, state in enumerate(states)]
    reason = build.capture(*modules).reason
    assert "ran in FP8, as configured, " in reason
    assert reason.endswith("less than half: layers.*.up (42) stayed in BF16")


@pytest.mark.parametrize(("name", "said"), [("head", "head"), ("5.0", "layer 5.0")])
def test_a_layer_in_bf16_stands_in_the_sentence(
    build: TraceBuilder, name: str, said: str
) -> None:
    build.linear(M, N, K, fp8=True).linear(M, N, 4096, fp8=False)
    left = module(name, N, 4096, "high_precision")
    report = build.capture(module("up", N, K), left)
    assert report.reason.endswith(
        "ran in FP8, as configured, but that is 0.4% of GEMM FLOPs, less than half: "
        f"{said} stayed in BF16"
    )


# -- the name of a run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("run7/rank0.json", "run7"),
        ("host_17.1700000000.pt.trace.json", "host_17.1700000000"),
    ],
)
def test_a_run_is_called_like_its_folder_or_file(
    build: TraceBuilder, tmp_path: Path, file: str, name: str
) -> None:
    path = build.linear(M, N, K, fp8=True).write(tmp_path / file)
    shown = path.parent if path.parent != tmp_path else path
    assert inspect(shown).name == name
    assert inspect(shown, name="nightly").name == "nightly"


@pytest.mark.parametrize("file", ["rank0.json", "rank-3.w2.json.gz", "trace.json"])
def test_a_file_that_is_called_like_every_runs_is_named_with_its_folder(
    build: TraceBuilder, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.linear(M, N, K, fp8=True).write(tmp_path / "run7" / file)
    name = f"run7/{file.split('.json')[0]}"
    assert inspect(path).name == name
    monkeypatch.chdir(path.parent)
    assert inspect(file).name == name

"""Number formats: what was promised for each leg, what ran, and the findings between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Policy, Report
from fp8verify.cli.options import FORMATS
from fp8verify.kernels import decode
from fp8verify.terms import Verdict
from fp8verify.verdict.gates import gated, other_formats
from tests import hand_built
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    E5M2,
    FP8,
    LEGS,
    TraceBuilder,
    found,
    present,
)

FP8_KERNEL = "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT"
NVFP4_KERNEL = "nvjet_sm103_ootst_128x256_256x4_2x1_v_bz_Avec16UE4M3_Bvec16UE4M3_TNT"
MXFP8_KERNEL = "nvjet_sm100_qqtst_128x256_128x4_2x1_v_bz_Avec32UE8M0_Bvec32UE8M0_TNT"
MXFP8_E5M2_KERNEL = MXFP8_KERNEL.replace("qqtst", "qrtst")
# A handful of launches is never fast.
ABOUT_SPEED = {"fp8-not-paying", "gpu-idle", "small-gemms", "no-optimizer-step"}
KERNELS = {
    "nvfp4": NVFP4_KERNEL,
    "mxfp8": MXFP8_KERNEL,
    "fp8": FP8_KERNEL,
    "bf16": BF16_KERNEL,
}


@pytest.fixture
def build(tmp_path: Path) -> TraceBuilder:
    """A trace of a GPU that multiplies all of these."""
    return TraceBuilder(tmp_path, gpu="NVIDIA B200", capability=(10, 0))


def layer(
    build: TraceBuilder, fprop: str, dgrad: str | None = None, wgrad: str | None = None
) -> TraceBuilder:
    """Add the GEMMs of a layer of 64 tokens, 16 inputs and 32 outputs in a format for each leg."""
    dims = {
        "fprop": ((64, 16), (16, 32)),
        "dgrad": ((64, 32), (32, 16)),
        "wgrad": ((32, 64), (64, 16)),
    }
    for leg, ran in zip(LEGS, (fprop, dgrad or fprop, wgrad or fprop), strict=True):
        backward = leg != "fprop"
        build.launch(
            KERNELS.get(ran, ran), "aten::mm", types=("", ""), dims=dims[leg], backward=backward,
            parents=("MmBackward0",) if backward else (),
        )  # fmt: skip
    return build


def module(
    fqn: str, *formats: str, state: str | None = None, **more: Any
) -> dict[str, Any]:
    low = "fp4" if "fp4" in formats[0] else "fp8"
    legs = dict(zip(LEGS, formats if len(formats) > 1 else formats * 3, strict=True))
    known = {"source": "torchao.x", "formats": legs, **more}
    return hand_built.module(fqn, 32, 16, state or low) | known


def report(build: TraceBuilder, *modules: dict[str, Any], **more: Any) -> Report:
    memory = {"allocated_peak": 3_000, "reserved_peak": 3_000, "total": 9_000}
    window = {**hand_built.WINDOW, "memory": memory}
    return build.capture(*modules, window=[window], **more)


def write_numerics(folder: Path, **found: Any) -> None:
    measured = {
        "step": 3, "time": 0.0, "rows": [], "recomputed_high": [], "gradient": None, "notes": [],
        **found,
    }  # fmt: skip
    numerics = {
        "schema": 1,
        "rank": 0,
        "windows": [],
        "measured": measured,
        "reason": None,
    }
    (folder / "rank0.numerics.json").write_text(json.dumps(numerics))


def recompute(build: TraceBuilder, outputs: int) -> None:
    """Add a forward GEMM in BF16 that activation checkpointing computes again."""
    build.launch(
        BF16_KERNEL, "aten::mm", types=(BF16, BF16), dims=((64, 16), (16, outputs)),
        parents=("aten::linear", "CheckpointFunctionBackward"), backward=True,
    )  # fmt: skip


def told(report: Report, code: str) -> list[str]:
    return [finding.message for finding in found(report, code)]


@pytest.mark.parametrize(("name", "precision"), [*KERNELS.items()])
def test_the_kernels_here_are_what_they_are_called(name: str, precision: str) -> None:
    assert decode(precision).precision.value == name


def test_nvfp4_that_was_promised_is_active_by_its_name(build: TraceBuilder) -> None:
    seen = report(layer(build, "nvfp4"), module("up", "nvfp4"))

    assert (seen.verdict.value, seen.exit_code) == ("ACTIVE", 0)
    assert seen.reason.startswith("3 of 3 linear-layer GEMMs ran in NVFP4")
    assert seen.gemm.fp8_share_of_time == 0
    assert seen.gemm.low_precision_share_of_time == 1
    assert {finding.code for finding in seen.findings} <= ABOUT_SPEED


@pytest.mark.parametrize(
    ("ran", "promised", "verdict", "code", "message"),
    [
        (("bf16",), ("nvfp4",), "CONTRADICTED", "claimed-not-active",
         "the model has 1 Linear module set for NVFP4, but all 3 GEMMs ran in BF16"),
        (("nvfp4", "fp8"), ("nvfp4",), "PARTIAL", "higher-than-promised",
         "the run requested dgrad in NVFP4, but all 1 of these GEMMs ran in FP8"),
        (("fp8", "fp8", "nvfp4"), ("fp8",), "ACTIVE", "lower-than-promised",
         "the run requested wgrad in FP8, but all 1 of these GEMMs ran in NVFP4"),
        (("fp8",), ("fp8", "fp8", "high_precision"), "ACTIVE", "lower-than-promised",
         "the run requested wgrad in high precision, but all 1 of these GEMMs ran in"),
    ],
)  # fmt: skip
def test_another_format_than_promised_is_said(
    build: TraceBuilder, ran: tuple[str, ...], promised: tuple[str, ...],
    verdict: str, code: str, message: str,
) -> None:  # fmt: skip
    seen = report(layer(build, *ran), module("up", *promised))

    assert seen.verdict.value == verdict
    [said] = told(seen, code)
    assert said.startswith(message)


def test_the_log_promises_formats_too(build: TraceBuilder) -> None:
    log = "[titan] Converted Linear layers to NVFP4Linear\n"
    assert report(layer(build, "bf16"), log=log).verdict.value == "CONTRADICTED"


def test_modules_that_fell_back_to_fp8_do_not_hide_that_the_log_promised_fp4(
    build: TraceBuilder,
) -> None:
    log = "NVFP4 training enabled with recipe nvfp4\n"
    seen = report(layer(build, "fp8"), module("up", "fp8"), log=log)
    assert seen.verdict.value == "PARTIAL"
    assert told(seen, "higher-than-promised") == [
        "NVFP4 was requested, but all 3 GEMMs ran in FP8"
    ]


@pytest.mark.parametrize(("us", "verdict"), [(200, "INCONCLUSIVE"), (5, "ACTIVE")])
def test_layers_without_a_gemm_may_be_in_unknown_kernels(
    build: TraceBuilder, us: float, verdict: str
) -> None:
    build.step(1)
    for _ in range(3):
        layer(build, "fp8")
    build.launch("v3", "mylib::forward", us=us)
    seen = report(build, *(module(f"up{number}", "fp8") for number in range(5)))
    assert seen.verdict.value == verdict
    assert ("2 forward GEMMs of converted" in seen.reason) is (
        verdict == "INCONCLUSIVE"
    )


def test_a_tail_of_layers_in_bf16_is_no_shortfall(build: TraceBuilder) -> None:
    for _ in range(4):
        layer(build, "nvfp4")
    build.linear(64, 48, 16, fp8=False)
    tail = module(
        "tail", "high_precision", state="high_precision", out_features=48, formats={}
    )
    seen = report(build, *(module(f"up{i}", "nvfp4") for i in range(4)), tail)

    assert seen.verdict.value == "ACTIVE"
    grave = {f.code for f in seen.findings if f.severity.value != "info"}
    assert grave <= ABOUT_SPEED


def test_legs_that_the_recipe_leaves_high_are_no_shortfall(build: TraceBuilder) -> None:
    promised = module("up", "mxfp8", "high_precision", "high_precision")
    seen = report(layer(build, "mxfp8", "bf16", "bf16"), promised)

    assert seen.verdict.value in ("ACTIVE", "PARTIAL")  # by its share alone
    legs = found(seen, "leg-not-fp8")
    assert [finding.severity.value for finding in legs] == ["info", "info"]


def test_gradients_in_e5m2_beside_mx_scales_are_told_by_kernels(
    build: TraceBuilder,
) -> None:
    assert not told(report(layer(build, "mxfp8")), "mxfp8-e5m2-gradients")
    by_kernels = report(layer(build, "mxfp8", MXFP8_E5M2_KERNEL))
    assert told(by_kernels, "mxfp8-e5m2-gradients") == [
        "1 MXFP8 GEMM multiplied gradients in E5M2"
    ]


def test_kernels_and_hooks_tell_of_a_recomputation(
    build: TraceBuilder, tmp_path: Path
) -> None:
    layer(build, "fp8")
    recompute(build, 32)
    ran = "every recomputed forward GEMM ran in BF16 (0.010 of 0.040 ms of GEMM time)"
    said = f"{ran}; in FP8 when they ran first"
    assert told(report(build, module("up", "fp8")), "recompute-not-fp8") == [said]
    write_numerics(tmp_path, recomputed_high=["up"])
    seen = report(build, module("up", "fp8"))

    by_hooks, by_kernels = found(seen, "recompute-not-fp8")
    assert (by_kernels.message, by_kernels.verdict) == (said, Verdict.PARTIAL)
    assert by_hooks.layers == ("up",)
    assert (
        "up ran in FP8 and, when activation checkpointing computed it again"
        in by_hooks.message
    )


def test_a_recomputed_head_in_bf16_is_as_it_was(build: TraceBuilder) -> None:
    layer(build, "fp8").linear(64, 48, 16, fp8=False)
    recompute(build, 48)
    assert not told(report(build), "recompute-not-fp8")


def test_a_dgrad_of_a_square_layer_is_no_recomputation(build: TraceBuilder) -> None:
    build.launch(
        FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8), dims=((64, 16), (16, 16))
    )
    build.launch(
        BF16_KERNEL, "aten::mm", types=(BF16, BF16), dims=((64, 16), (16, 16)),
        parents=("MmBackward0",), backward=True,
    )  # fmt: skip
    build.launch(
        FP8_KERNEL, "aten::_scaled_mm", types=(E5M2, FP8), dims=((16, 64), (64, 16)),
        parents=("MmBackward0",), backward=True,
    )  # fmt: skip
    seen = report(build)

    assert {row.leg.value for row in seen.legs} == {"fprop", "dgrad", "wgrad"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_required_format_fails_a_run_in_another(
    build: TraceBuilder, name: str
) -> None:
    inspected = report(layer(build, "mxfp8"))
    seen = gated(inspected, other_formats(inspected, name, Policy().share))

    assert seen.exit_code == (0 if name == "mxfp8" else 1)
    accused = [one.ranks for one in seen.findings if one.code == "required-format"]
    assert accused == [(0,)] * (name != "mxfp8")


BELOW16_KERNEL = "BlockScaledMoEGroupedGemmQuantKernel_object_at_0x3"


@pytest.mark.parametrize(
    ("name", "legs", "exit_code", "severity"),
    [
        ("mxfp8", (BELOW16_KERNEL,), 3, "warning"),
        ("mxfp8", (BELOW16_KERNEL, "bf16", BELOW16_KERNEL), 3, "warning"),
        ("mxfp8", (BELOW16_KERNEL, "bf16", "bf16"), 1, "error"),
        ("mxfp8", ("fp8", "fp8", "fp8"), 1, "error"),
    ],
)
def test_kernels_of_unknown_format_leave_a_required_format_open(
    build: TraceBuilder,
    name: str,
    legs: tuple[str, ...],
    exit_code: int,
    severity: str,
) -> None:
    inspected = report(layer(build, *legs))
    unmet = list(other_formats(inspected, name, Policy().share))
    seen = gated(inspected, unmet)

    assert [one.severity.value for one in unmet] == [severity]
    assert (seen.exit_code, seen.fails) == (exit_code, True)
    assert gated(inspected, unmet, gate=False).exit_code == 0


def test_a_class_that_nobody_knows_is_unknown_and_its_gemms_decide(
    build: TraceBuilder,
) -> None:
    own = module("up", "x", state="unknown", formats={}, source="nanochat.fp8") | {
        "class": "Own"
    }
    seen = report(layer(build, "fp8"), own)

    assert seen.verdict.value == "ACTIVE"
    assert not told(seen, "layer-not-fp8")
    modules = present(seen.ranks[0].modules)
    assert (modules.counts, modules.unknown_classes) == (
        {"unknown": 1},
        ("nanochat.fp8.Own",),
    )
    assert "of unknown class (nanochat.fp8.Own), judged by" in " ".join(
        seen.to_text().split()
    )


@pytest.mark.parametrize(
    ("ran", "log", "verdict"),
    [
        ("bf16", "", "INACTIVE"),
        ("bf16", "Applied Float8 training: recipe=TENSORWISE", "CONTRADICTED"),
        ("fp8", "", "ACTIVE"),
    ],
)
def test_weights_that_are_only_stored_in_fp8_are_no_fp8_products(
    build: TraceBuilder, ran: str, log: str, verdict: str
) -> None:
    # Casts whose names do not say whether they widen the weights or round activations.
    build.launch("triton_poi_fused__to_copy_mul_0", None)
    stored = {
        "what": "weights",
        "dtype": "float8_e4m3fn",
        "count": 28,
        "elements": 1_000,
    }
    states = {"what": "optimizer", "dtype": "float8_e4m3fn", "count": 2, "elements": 9}

    seen = report(layer(build, ran), log=log, storage=[stored, states])

    assert seen.verdict.value == verdict
    message = (
        "the weights of 28 linear layers are stored in FP8 (float8_e4m3fn), and all 3 GEMMs ran in "
        "BF16: FP8 saves memory here (1e-06 GB, 25% of the peak without it), not time"
    )
    assert told(seen, "fp8-storage-only") == ([] if ran == "fp8" else [message])
    assert ("are only stored in FP8 (float8_e4m3fn)" in seen.reason) == (ran != "fp8")
    assert present(seen.ranks[0].modules).storage == (
        "28 linear layers with weights stored in float8_e4m3fn",
        "optimizer states stored in float8_e4m3fn",
    )

"""Number formats: what was promised for each leg, what ran, and the findings between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Policy, Report, inspect
from fp8verify.cli.options import FORMATS
from fp8verify.kernels import decode
from fp8verify.terms import Verdict
from fp8verify.verdict.gates import check_format
from tests.hand_built import BF16, BF16_KERNEL, E5M2, FP8, TraceBuilder

LEGS = ("fprop", "dgrad", "wgrad")
FP8_KERNEL = "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT"
NVFP4_KERNEL = "nvjet_sm103_ootst_128x256_256x4_2x1_v_bz_Avec16UE4M3_Bvec16UE4M3_TNT"
MXFP8_KERNEL = "nvjet_sm100_qqtst_128x256_128x4_2x1_v_bz_Avec32UE8M0_Bvec32UE8M0_TNT"
MXFP8_E5M2_KERNEL = MXFP8_KERNEL.replace("qqtst", "qrtst")
# A handful of launches is never fast.
ABOUT_SPEED = {"fp8-not-paying", "gpu-idle", "small-gemms", "no-optimizer-step"}
KERNELS = {"nvfp4": NVFP4_KERNEL, "mxfp8": MXFP8_KERNEL, "fp8": FP8_KERNEL, "bf16": BF16_KERNEL}


@pytest.fixture
def build() -> TraceBuilder:
    """A trace of a GPU that multiplies all of these."""
    return TraceBuilder(gpu="NVIDIA B200", capability=(10, 0))


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


def module(fqn: str, *formats: str, state: str | None = None, **more: Any) -> dict[str, Any]:
    low = "fp4" if "fp4" in formats[0] else "fp8"
    legs = dict(zip(LEGS, formats if len(formats) > 1 else formats * 3, strict=True))
    return {
        "fqn": fqn, "class": "Linear", "kind": "linear", "source": "torchao.x",
        "state": state or low, "in_features": 16, "out_features": 32, "formats": legs, **more,
    }  # fmt: skip


def report(
    build: TraceBuilder, folder: Path, *modules: dict[str, Any], log: str = "", **more: Any
) -> Report:
    build.write(folder / "rank0.json")
    memory = {"allocated_peak": 3_000, "reserved_peak": 3_000, "total": 9_000}
    window = {"first": 1, "last": 1, "state": "complete", "trace": "rank0.json", "memory": memory}
    meta = {"schema": 1, "rank": 0, "steps_seen": 3, "window": [window], "modules": modules}
    meta |= more
    (folder / "rank0.meta.json").write_text(json.dumps(meta))
    (folder / "log.txt").write_text(log)
    return inspect(folder)


def write_numerics(folder: Path, **found: Any) -> None:
    measured = {
        "step": 3, "time": 0.0, "rows": [], "recomputed_high": [], "gradient": None, "notes": [],
        **found,
    }  # fmt: skip
    numerics = {"schema": 1, "rank": 0, "windows": [], "measured": measured, "reason": None}
    (folder / "rank0.numerics.json").write_text(json.dumps(numerics))


def recompute(build: TraceBuilder, outputs: int) -> None:
    """Add a forward GEMM in BF16 that activation checkpointing computes again."""
    build.launch(
        BF16_KERNEL, "aten::mm", types=(BF16, BF16), dims=((64, 16), (16, outputs)),
        parents=("aten::linear", "CheckpointFunctionBackward"), backward=True,
    )  # fmt: skip


def told(found: Report, code: str) -> list[str]:
    return [finding.message for finding in found.findings if finding.code == code]


@pytest.mark.parametrize(("name", "precision"), [*KERNELS.items()])
def test_the_kernels_here_are_what_they_are_called(name: str, precision: str) -> None:
    assert decode(precision).precision.value == name


def test_nvfp4_that_was_promised_is_active_by_its_name(build: TraceBuilder, tmp_path: Path) -> None:
    found = report(layer(build, "nvfp4"), tmp_path, module("up", "nvfp4"))

    assert (found.verdict.value, found.exit_code) == ("ACTIVE", 0)
    assert found.reason.startswith("3 of 3 linear-layer GEMMs ran in NVFP4")
    assert found.gemm.fp8_share_of_time == 0
    assert found.gemm.low_precision_share_of_time == 1
    assert {finding.code for finding in found.findings} <= ABOUT_SPEED


@pytest.mark.parametrize(
    ("ran", "promised", "verdict", "code", "message"),
    [
        (("bf16",), ("nvfp4",), "CONTRADICTED", "claimed-not-active",
         "the model has 1 Linear modules set for NVFP4, but all 3 GEMMs ran in BF16"),
        (("nvfp4", "fp8"), ("nvfp4",), "PARTIAL", "higher-than-promised",
         "the run requested dgrad in NVFP4, but all 1 of these GEMMs ran in FP8"),
        (("fp8", "fp8", "nvfp4"), ("fp8",), "ACTIVE", "lower-than-promised",
         "the run requested wgrad in FP8, but all 1 of these GEMMs ran in NVFP4"),
        (("fp8",), ("fp8", "fp8", "high_precision"), "ACTIVE", "lower-than-promised",
         "the run requested wgrad in high precision, but all 1 of these GEMMs ran in"),
    ],
)  # fmt: skip
def test_another_format_than_promised_is_said(
    build: TraceBuilder, tmp_path: Path, ran: tuple[str, ...], promised: tuple[str, ...],
    verdict: str, code: str, message: str,
) -> None:  # fmt: skip
    found = report(layer(build, *ran), tmp_path, module("up", *promised))

    assert found.verdict.value == verdict
    [said] = told(found, code)
    assert said.startswith(message)


def test_the_log_promises_formats_too(build: TraceBuilder, tmp_path: Path) -> None:
    log = "[titan] Converted Linear layers to NVFP4Linear\n"
    assert report(layer(build, "bf16"), tmp_path, log=log).verdict.value == "CONTRADICTED"


def test_modules_that_fell_back_to_fp8_do_not_hide_that_the_log_promised_fp4(
    build: TraceBuilder, tmp_path: Path
) -> None:
    log = "NVFP4 training enabled with recipe nvfp4\n"
    found = report(layer(build, "fp8"), tmp_path, module("up", "fp8"), log=log)
    assert found.verdict.value == "PARTIAL"
    assert told(found, "higher-than-promised") == [
        "NVFP4 was requested, but all 3 GEMMs ran in FP8"
    ]


@pytest.mark.parametrize(("us", "verdict"), [(200, "INCONCLUSIVE"), (5, "ACTIVE")])
def test_layers_without_a_gemm_may_be_in_unknown_kernels(
    build: TraceBuilder, tmp_path: Path, us: float, verdict: str
) -> None:
    build.step(1)
    for _ in range(3):
        layer(build, "fp8")
    build.launch("v3", "mylib::forward", us=us)
    found = report(build, tmp_path, *(module(f"up{number}", "fp8") for number in range(5)))
    assert found.verdict.value == verdict
    assert ("2 forward GEMMs of converted" in found.reason) is (verdict == "INCONCLUSIVE")


def test_a_tail_of_layers_in_bf16_is_no_shortfall(build: TraceBuilder, tmp_path: Path) -> None:
    for _ in range(4):
        layer(build, "nvfp4")
    build.linear(64, 48, 16, fp8=False)
    tail = module("tail", "high_precision", state="high_precision", out_features=48, formats={})
    found = report(build, tmp_path, *(module(f"up{i}", "nvfp4") for i in range(4)), tail)

    assert found.verdict.value == "ACTIVE"
    grave = {f.code for f in found.findings if f.severity.value != "info"}
    assert grave <= ABOUT_SPEED


def test_legs_that_the_recipe_leaves_high_are_no_shortfall(
    build: TraceBuilder, tmp_path: Path
) -> None:
    promised = module("up", "mxfp8", "high_precision", "high_precision")
    found = report(layer(build, "mxfp8", "bf16", "bf16"), tmp_path, promised)

    assert found.verdict.value in ("ACTIVE", "PARTIAL")  # by its share alone
    legs = [f for f in found.findings if f.code == "leg-not-fp8"]
    assert [finding.severity.value for finding in legs] == ["info", "info"]


def test_gradients_in_e5m2_beside_mx_scales_are_told_by_kernels(
    build: TraceBuilder, tmp_path: Path
) -> None:
    plain = report(layer(TraceBuilder(), "mxfp8"), tmp_path)
    assert not told(plain, "mxfp8-e5m2-gradients")
    by_kernels = report(layer(build, "mxfp8", MXFP8_E5M2_KERNEL), tmp_path)
    assert told(by_kernels, "mxfp8-e5m2-gradients") == ["1 MXFP8 GEMM multiplied gradients in E5M2"]


def test_kernels_and_hooks_each_tell_of_a_recomputation(
    build: TraceBuilder, tmp_path: Path
) -> None:
    layer(build, "fp8")
    recompute(build, 32)
    said = "every recomputed forward GEMM ran in BF16 (0.0 ms); in FP8 when they ran first"
    assert told(report(build, tmp_path, module("up", "fp8")), "recompute-not-fp8") == [said]
    write_numerics(tmp_path, recomputed_high=["up"])
    found = report(build, tmp_path, module("up", "fp8"))

    by_hooks, by_kernels = (one for one in found.findings if one.code == "recompute-not-fp8")
    assert (by_kernels.message, by_kernels.verdict) == (said, Verdict.PARTIAL)
    assert by_hooks.layers == ("up",)
    assert "up ran in FP8 and, when activation checkpointing computed it again" in by_hooks.message


def test_a_recomputed_head_in_bf16_is_as_it_was(build: TraceBuilder, tmp_path: Path) -> None:
    layer(build, "fp8").linear(64, 48, 16, fp8=False)
    recompute(build, 48)
    assert not told(report(build, tmp_path), "recompute-not-fp8")


def test_a_dgrad_of_a_square_layer_is_no_recomputation(build: TraceBuilder, tmp_path: Path) -> None:
    build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8), dims=((64, 16), (16, 16)))
    build.launch(
        BF16_KERNEL, "aten::mm", types=(BF16, BF16), dims=((64, 16), (16, 16)),
        parents=("MmBackward0",), backward=True,
    )  # fmt: skip
    build.launch(
        FP8_KERNEL, "aten::_scaled_mm", types=(E5M2, FP8), dims=((16, 64), (64, 16)),
        parents=("MmBackward0",), backward=True,
    )  # fmt: skip
    found = report(build, tmp_path)

    assert {row.leg.value for row in found.legs} == {"fprop", "dgrad", "wgrad"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_required_format_fails_a_run_in_another(
    build: TraceBuilder, tmp_path: Path, name: str
) -> None:
    found = check_format(report(layer(build, "mxfp8"), tmp_path), name, Policy().share)

    assert found.exit_code == (0 if name == "mxfp8" else 1)
    assert bool(told(found, "required-format")) == (name != "mxfp8")


def test_a_class_that_nobody_knows_is_unknown_and_its_gemms_decide(
    build: TraceBuilder, tmp_path: Path
) -> None:
    own = module("up", "x", state="unknown", formats={}, source="nanochat.fp8") | {"class": "Own"}
    found = report(layer(build, "fp8"), tmp_path, own)

    assert found.verdict.value == "ACTIVE"
    assert not told(found, "layer-not-fp8")
    modules = found.ranks[0].modules
    assert modules is not None
    assert (modules.counts, modules.unknown_classes) == ({"unknown": 1}, ("nanochat.fp8.Own",))
    assert "of unknown class (nanochat.fp8.Own), judged by" in " ".join(found.to_text().split())


@pytest.mark.parametrize(
    ("ran", "log", "verdict"),
    [
        ("bf16", "", "INACTIVE"),
        ("bf16", "Applied Float8 training: recipe=TENSORWISE", "CONTRADICTED"),
        ("fp8", "", "ACTIVE"),
    ],
)
def test_weights_that_are_only_stored_in_fp8_are_no_fp8_products(
    build: TraceBuilder, tmp_path: Path, ran: str, log: str, verdict: str
) -> None:
    # Casts whose names do not say whether they widen the weights or round activations.
    build.launch("triton_poi_fused__to_copy_mul_0", None)
    stored = {"what": "weights", "dtype": "float8_e4m3fn", "count": 28, "elements": 1_000}
    states = {"what": "optimizer", "dtype": "float8_e4m3fn", "count": 2, "elements": 9}

    found = report(layer(build, ran), tmp_path, log=log, storage=[stored, states])

    assert found.verdict.value == verdict
    message = (
        "the weights of 28 linear layers are stored in FP8 (float8_e4m3fn), and all 3 GEMMs ran in "
        "BF16: FP8 saves memory here (1e-06 GB, 25%), not time"
    )
    assert told(found, "fp8-storage-only") == ([] if ran == "fp8" else [message])
    assert ("are only stored in FP8 (float8_e4m3fn)" in found.reason) == (ran != "fp8")
    modules = found.ranks[0].modules
    assert modules is not None
    assert modules.storage == (
        "28 linear layers with weights stored in float8_e4m3fn",
        "optimizer states stored in float8_e4m3fn",
    )

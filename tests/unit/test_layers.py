"""Layers: the module list against the GEMMs of the layers' sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Report, inspect
from fp8verify.report.model.parts import LayersReport
from fp8verify.report.tables import shown_findings
from fp8verify.text import patterns
from tests.hand_built import BF16, FP8, FP8_KERNEL, TraceBuilder

LEGS = ["fprop", "dgrad", "wgrad"]


def linear(fqn: str, n: int, k: int, *, fp8: bool, **more: Any) -> dict[str, Any]:
    return {
        "fqn": fqn, "class": "Float8Linear" if fp8 else "Linear", "kind": "linear",
        "state": "fp8" if fp8 else "high_precision", "in_features": k, "out_features": n,
        "formats": dict.fromkeys(LEGS, "fp8") if fp8 else {}, **more,
    }  # fmt: skip


def report(build: TraceBuilder, folder: Path, *modules: dict[str, Any]) -> Report:
    build.write(folder / "rank0.json")
    window = [{"first": 1, "last": 1, "state": "complete", "trace": "rank0.json"}]
    meta = {"schema": 1, "rank": 0, "steps_seen": 3, "window": window, "modules": modules}
    if modules:
        (folder / "rank0.meta.json").write_text(json.dumps(meta))
    return inspect(folder)


def layers_of(found: Report) -> LayersReport:
    layers = found.ranks[0].layers
    assert layers is not None
    return layers


def layer_findings(found: Report) -> list[tuple[str, str]]:
    return [
        (f.severity.value, f.message) for f in shown_findings(found) if f.code == "layer-not-fp8"
    ]


def test_expected_gemms_follow_from_the_modules_and_their_passes(
    build: TraceBuilder, tmp_path: Path
) -> None:
    for _ in range(4):  # two modules, two micro-batches
        build.linear(64, 32, 16, fp8=True)
    modules = [linear(f"layers.{i}.up", 32, 16, fp8=True) for i in range(2)]
    layers = layers_of(report(build, tmp_path, *modules))
    row = layers.rows[0]
    assert (row.n, row.k, row.modules, row.converted, row.passes) == (32, 16, 2, 2, 2)
    assert row.expected == row.observed == row.in_fp8 == {"fprop": 4, "dgrad": 4, "wgrad": 4}
    assert row.names == ("layers.*.up (2)",)
    assert row.share_of_flops == 1.0


def test_a_frozen_layer_owes_no_wgrad(build: TraceBuilder, tmp_path: Path) -> None:
    build.linear(64, 32, 16, fp8=True)
    modules = linear("up", 32, 16, fp8=True, frozen=True)
    layers = layers_of(report(build, tmp_path, modules))
    assert layers.rows[0].expected["wgrad"] == 0


def test_layers_left_out_are_weighed_by_their_flops(build: TraceBuilder, tmp_path: Path) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 16, 16, fp8=False)
    reason = "out_features 10 is not divisible by 16"
    found = report(
        build, tmp_path, linear("up", 48, 16, fp8=True),
        linear("router", 16, 16, fp8=False, reason=reason),
    )  # fmt: skip
    said = "1 linear module not converted to FP8, 25.0% of GEMM FLOPs: router"
    assert layer_findings(found) == [("info", f"{said} (1 because {reason})")]
    assert found.verdict == "ACTIVE"


def test_converted_layers_that_ran_in_bf16_are_named(build: TraceBuilder, tmp_path: Path) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 16, 16, fp8=False)
    found = report(
        build, tmp_path, linear("up", 48, 16, fp8=True),
        linear("down", 16, 16, fp8=True, training=False),
    )  # fmt: skip
    (severity, message), = layer_findings(found)  # fmt: skip
    assert severity == "warning"
    assert message.startswith("1 converted layer never ran in FP8, 25.0% of GEMM FLOPs")
    assert message.endswith(": down")
    assert found.verdict == "PARTIAL"


@pytest.mark.parametrize(("short", "told"), [(1, False), (5, True)])
def test_one_layer_of_many_in_bf16_is_too_little_to_accuse(
    build: TraceBuilder, tmp_path: Path, short: int, told: bool
) -> None:
    for number in range(150):
        build.linear(64, 48, 16, fp8=number >= short)
    build.linear(64, 32, 16, fp8=True)
    modules = [linear(f"layers.{number}.up", 48, 16, fp8=True) for number in range(150)]
    modules.append(linear("down", 32, 16, fp8=True))
    assert bool(layer_findings(report(build, tmp_path, *modules))) is told


def test_converted_layers_that_did_not_run_at_all_are_no_fault(
    build: TraceBuilder, tmp_path: Path
) -> None:
    found = report(
        build.linear(64, 48, 16, fp8=True), tmp_path, linear("up", 48, 16, fp8=True),
        linear("unused", 16, 16, fp8=True),
    )  # fmt: skip
    assert not layer_findings(found)
    assert found.verdict == "ACTIVE"
    layers = layers_of(found)
    assert layers.not_joined == ("unused",)
    assert layers.note == "no GEMM has the size of 1 of the modules"


def test_without_a_census_sizes_in_bf16_alone_are_told(build: TraceBuilder, tmp_path: Path) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 16, 32, fp8=False)
    found = report(build, tmp_path)
    (severity, message), = layer_findings(found)  # fmt: skip
    assert severity == "info"
    assert "16x32" in message
    assert "40.0% of GEMM FLOPs" in message


def test_a_bf16_run_has_no_layers_to_miss(build: TraceBuilder, tmp_path: Path) -> None:
    assert not layer_findings(report(build.linear(64, 48, 16, fp8=False), tmp_path))


def test_without_shapes_layers_cannot_be_joined_and_it_says_so(
    build: TraceBuilder, tmp_path: Path
) -> None:
    build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8))
    layers = layers_of(report(build, tmp_path, linear("up", 48, 16, fp8=True)))
    assert not layers.rows
    assert "no GEMM has the size of a layer" in (layers.note or "")


@pytest.mark.parametrize(
    ("name", "n", "found"),
    [("lm_head", 32000, True), ("model.output", 32000, True), ("up", 32000, False),
     ("head", 64, False)],
)  # fmt: skip
def test_a_head_in_fp8_is_told_by_its_name_and_width(
    build: TraceBuilder, tmp_path: Path, name: str, n: int, found: bool
) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, n, 16, fp8=True)
    modules = (linear("layers.0.up", 48, 16, fp8=True), linear(name, n, 16, fp8=True))
    codes = {f.code for f in report(build, tmp_path, *modules).findings}
    assert ("lm-head-fp8" in codes) is found


def test_without_a_census_a_head_is_the_widest_layer_run_least(
    build: TraceBuilder, tmp_path: Path
) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 48, 16, fp8=True).linear(64, 32000, 16, fp8=True)
    found = [f for f in report(build, tmp_path).findings if f.code == "lm-head-fp8"]
    assert [f.severity.value for f in found] == ["info"]
    build.linear(64, 32000, 16, fp8=True)  # as often as the others: Llama's gate_up is as wide
    assert "lm-head-fp8" not in {f.code for f in report(build, tmp_path).findings}


def test_experts_are_named_by_the_census(build: TraceBuilder, tmp_path: Path) -> None:
    build.linear(64, 48, 16, fp8=True)
    build.launch(
        "_ZN7cutlass13device_kernelI", "aten::_grouped_mm", types=(BF16, BF16),
        dims=((64, 16), (4, 16, 32)),
    )  # fmt: skip
    experts = {"fqn": "layers.0.moe.w1", "class": "Experts", "kind": "experts",
               "state": "high_precision"}  # fmt: skip
    found = report(build, tmp_path, linear("up", 48, 16, fp8=True), experts)
    message = next(f.message for f in found.findings if f.code == "grouped-gemm-high-precision")
    assert "layers.0.moe.w1" in message


def test_transformer_engine_outside_its_autocast_is_information(
    build: TraceBuilder, tmp_path: Path
) -> None:
    build.linear(64, 48, 16, fp8=False)
    module = {**linear("up", 48, 16, fp8=False), "state": "fp8_module_off"}
    found = report(build, tmp_path, module)
    assert found.verdict == "INACTIVE"
    (severity, message), = layer_findings(found)  # fmt: skip
    assert severity == "info"
    assert "outside its FP8 autocast" in message


def test_names_alike_but_for_numbers_are_shortened() -> None:
    names = ["layers.0.up", "layers.11.up", "head", "0.0", "5.0", "conv2d.1"]
    assert patterns(names) == ["layers.*.up (2)", "head", "0.0", "5.0", "conv2d.1"]

"""Layers: the module list against the GEMMs of the layers' sizes."""

from __future__ import annotations

from typing import Any

import pytest

from fp8verify import Report
from fp8verify.model.layers import LayersReport
from fp8verify.report.tables import shown_findings
from fp8verify.text import patterns
from tests.hand_built import (
    BF16,
    FP8,
    FP8_KERNEL,
    LEGS,
    TraceBuilder,
    codes,
    found,
    module,
    present,
)


def linear(fqn: str, n: int, k: int, *, fp8: bool, **more: Any) -> dict[str, Any]:
    formats = dict.fromkeys(LEGS, "fp8") if fp8 else {}
    return module(
        fqn, n, k, "fp8" if fp8 else "high_precision", formats=formats, **more
    )


def report(build: TraceBuilder, *modules: dict[str, Any]) -> Report:
    return build.capture(*modules) if modules else build.report()


def layers_of(report: Report) -> LayersReport:
    return present(report.ranks[0].layers)


def layer_findings(report: Report) -> list[tuple[str, str]]:
    told = [one for one in shown_findings(report) if one.code == "layer-not-fp8"]
    return [(finding.severity.value, finding.message) for finding in told]


def test_expected_gemms_follow_from_the_modules_and_their_passes(
    build: TraceBuilder,
) -> None:
    for _ in range(4):  # two modules, two micro-batches
        build.linear(64, 32, 16, fp8=True)
    modules = [linear(f"layers.{i}.up", 32, 16, fp8=True) for i in range(2)]
    layers = layers_of(report(build, *modules))
    row = layers.rows[0]
    assert (row.n, row.k, row.modules, row.converted, row.passes) == (32, 16, 2, 2, 2)
    assert (
        row.expected
        == row.observed
        == row.in_fp8
        == {"fprop": 4, "dgrad": 4, "wgrad": 4}
    )
    assert row.names == ("layers.*.up (2)",)
    assert row.share_of_flops == 1.0


def test_a_frozen_layer_owes_no_wgrad(build: TraceBuilder) -> None:
    build.linear(64, 32, 16, fp8=True)
    layers = layers_of(report(build, linear("up", 32, 16, fp8=True, frozen=True)))
    assert layers.rows[0].expected["wgrad"] == 0


def test_layers_left_out_are_weighed_by_their_flops(build: TraceBuilder) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 16, 16, fp8=False)
    reason = "out_features 10 is not divisible by 16"
    left = linear("router", 16, 16, fp8=False, reason=reason)
    seen = report(build, linear("up", 48, 16, fp8=True), left)
    said = "1 linear module not converted to FP8, 25.0% of GEMM FLOPs: router"
    assert layer_findings(seen) == [("info", f"{said} (1 because {reason})")]
    assert seen.verdict == "ACTIVE"


def test_converted_layers_that_ran_in_bf16_are_named(build: TraceBuilder) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 16, 16, fp8=False)
    down = linear("down", 16, 16, fp8=True, training=False)
    seen = report(build, linear("up", 48, 16, fp8=True), down)
    (severity, message), = layer_findings(seen)  # fmt: skip
    assert severity == "warning"
    assert message.startswith("1 converted layer never ran in FP8, 25.0% of GEMM FLOPs")
    assert message.endswith(": down")
    assert seen.verdict == "PARTIAL"


@pytest.mark.parametrize(
    ("short", "verdict"),
    # One lacks less than a hundredth of the work: a warning.
    [(0, "ACTIVE"), (1, "ACTIVE"), (2, "PARTIAL"), (5, "PARTIAL")],
)
def test_a_list_states_each_layer_of_many(
    build: TraceBuilder, short: int, verdict: str
) -> None:
    for number in range(150):
        build.linear(64, 48, 16, fp8=number >= short)
    build.linear(64, 32, 16, fp8=True)
    modules = [linear(f"layers.{number}.up", 48, 16, fp8=True) for number in range(150)]
    modules.append(linear("down", 32, 16, fp8=True))
    seen = report(build, *modules)
    assert seen.verdict == verdict
    codes = {one.code for one in seen.findings if one.severity != "info"}
    assert bool(codes - {"fp8-not-paying"}) == (short > 0)


def test_converted_layers_that_did_not_run_at_all_are_no_fault(
    build: TraceBuilder,
) -> None:
    modules = linear("up", 48, 16, fp8=True), linear("unused", 16, 16, fp8=True)
    seen = report(build.linear(64, 48, 16, fp8=True), *modules)
    assert not layer_findings(seen)
    assert seen.verdict == "ACTIVE"
    layers = layers_of(seen)
    assert layers.not_joined == ("unused",)
    assert layers.note == "no GEMM has the size of 1 of the modules"


def test_without_a_census_sizes_in_bf16_alone_are_told(build: TraceBuilder) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 16, 32, fp8=False)
    (severity, message), = layer_findings(report(build))  # fmt: skip
    assert severity == "info"
    assert "16x32" in message
    assert "40.0% of GEMM FLOPs" in message


def test_a_bf16_run_has_no_layers_to_miss(build: TraceBuilder) -> None:
    assert not layer_findings(report(build.linear(64, 48, 16, fp8=False)))


def test_without_shapes_layers_cannot_be_joined_and_it_says_so(
    build: TraceBuilder,
) -> None:
    build.launch(FP8_KERNEL, "aten::_scaled_mm", types=(FP8, FP8))
    layers = layers_of(report(build, linear("up", 48, 16, fp8=True)))
    assert not layers.rows
    assert "no GEMM has the size of a layer" in (layers.note or "")


@pytest.mark.parametrize(
    ("name", "n", "told"),
    [("lm_head", 32000, True), ("model.output", 32000, True), ("up", 32000, False),
     ("head", 64, False)],
)  # fmt: skip
def test_a_head_in_fp8_is_told_by_its_name_and_width(
    build: TraceBuilder, name: str, n: int, told: bool
) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, n, 16, fp8=True)
    modules = (linear("layers.0.up", 48, 16, fp8=True), linear(name, n, 16, fp8=True))
    assert ("lm-head-fp8" in codes(report(build, *modules))) is told


def test_without_a_census_a_head_is_the_widest_layer_run_least(
    build: TraceBuilder,
) -> None:
    build.linear(64, 48, 16, fp8=True).linear(64, 48, 16, fp8=True).linear(
        64, 32000, 16, fp8=True
    )
    (finding,) = found(report(build), "lm-head-fp8")
    assert finding.severity == "info"
    build.linear(
        64, 32000, 16, fp8=True
    )  # as often as the others: Llama's gate_up is as wide
    assert "lm-head-fp8" not in codes(report(build))
    build.linear(64, 32000, 32, fp8=True).linear(
        64, 32000, 48, fp8=True
    )  # which of them?
    assert "lm-head-fp8" not in codes(report(build))


@pytest.mark.parametrize(
    ("listed", "name"), [(True, "layers.0.moe.w1"), (False, "_grouped_mm")]
)
def test_experts_are_named_by_the_census_or_else_by_their_operator(
    build: TraceBuilder, listed: bool, name: str
) -> None:
    build.linear(64, 48, 16, fp8=True)
    build.launch(
        "_ZN7cutlass13device_kernelI", "aten::_grouped_mm", types=(BF16, BF16),
        dims=((64, 16), (4, 16, 32)),
    )  # fmt: skip
    experts = {"fqn": "layers.0.moe.w1", "class": "Experts", "kind": "experts",
               "state": "high_precision"}  # fmt: skip
    modules = (linear("up", 48, 16, fp8=True), experts) if listed else ()
    (finding,) = found(report(build, *modules), "grouped-gemm-high-precision")
    assert name in finding.message


def test_transformer_engine_outside_its_autocast_is_information(
    build: TraceBuilder,
) -> None:
    build.linear(64, 48, 16, fp8=False)
    seen = report(build, module("up", 48, 16, "fp8_module_off"))
    assert seen.verdict == "INACTIVE"
    (severity, message), = layer_findings(seen)  # fmt: skip
    assert severity == "info"
    assert "last run outside its FP8 autocast" in message


def test_names_alike_but_for_numbers_are_shortened() -> None:
    names = ["layers.0.up", "layers.11.up", "head", "0.0", "5.0", "conv2d.1"]
    assert patterns(names) == ["layers.*.up (2)", "head", "0.0", "5.0", "conv2d.1"]

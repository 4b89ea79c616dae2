"""Layers by name: from a capture with names to findings, verdict and every form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8verify import Report, inspect
from fp8verify.model.layers import NamedLayersReport
from fp8verify.report import REPORT_FORMS
from fp8verify.report.forms import render
from fp8verify.terms import Severity, Verdict
from fp8verify.text import shorten
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    LEGS,
    WINDOW,
    TraceBuilder,
    present,
    write_meta,
)
from tests.hand_built import module as module_of

M, N, K = 64, 48, 16
Product = tuple[str, bool]


def module(
    fqn: str, *, outputs: int = N, legs: tuple[str, ...] = LEGS
) -> dict[str, Any]:
    """Return a converted layer, of which these legs are to run in FP8; no legs for another one."""
    formats = {leg: "fp8" if leg in legs else "high_precision" for leg in LEGS if legs}
    return module_of(
        fqn, outputs, K, "fp8" if legs else "high_precision", formats=formats
    )


def trace(*layers: Product, named: bool = True) -> TraceBuilder:
    """Run layers of one size, forward and backward; True for those in FP8."""
    build = TraceBuilder()
    for layer, fp8 in layers:
        build.linear(M, N, K, fp8=fp8, layer=layer if named else None)
    return build


def capture(
    folder: Path,
    window: TraceBuilder,
    *modules: dict[str, Any],
    named: bool = True,
    naming: dict[str, Any] | None = None,
    step: TraceBuilder | None = None,
) -> Report:
    if step is not None:
        step.write(folder / "layers" / "rank0.json")
    record = {**WINDOW, "layers": named}
    window.folder = folder
    return window.capture(*modules, window=[record], naming=naming)


def told(found: Report) -> list[tuple[str, str, str]]:
    codes = ("layer-not-fp8", "leg-not-fp8")
    return [
        (f.code, f.severity.value, f.message) for f in found.findings if f.code in codes
    ]


def named_of(found: Report) -> NamedLayersReport:
    return present(found.ranks[0].named_layers)


def ran(found: Report) -> dict[str, dict[str, dict[str, int]]]:
    return {
        row.layer: {leg.leg: leg.kernels for leg in row.legs}
        for row in named_of(found).rows
    }


def every_leg(precision: str) -> dict[str, dict[str, int]]:
    return {leg: {precision: 1} for leg in LEGS}


def test_layers_of_one_size_are_told_apart_by_name(tmp_path: Path) -> None:
    window = trace(("layers.0.up", True), ("layers.1.up", False), ("head", False))
    modules = module("layers.0.up"), module("layers.1.up"), module("head", legs=())
    found = capture(tmp_path, window, *modules)
    assert ran(found) == {
        "layers.0.up": every_leg("fp8"),
        "layers.1.up": every_leg("bf16"),
        "head": every_leg("bf16"),
    }
    named = named_of(found)
    assert (named.source, named.step, named.gemms, named.unjoined) == (
        "window",
        None,
        9,
        0,
    )
    row = named.rows[1]
    assert (row.n, row.k, row.state) == (N, K, "fp8")
    assert row.legs[0].time_us == {"bf16": 10.0}


@pytest.mark.parametrize("in_step", [False, True])
def test_a_converted_layer_in_high_precision_is_a_warning_with_its_name(
    tmp_path: Path, in_step: bool
) -> None:
    """By size it could not be found: another layer of that size ran in FP8."""
    layers = [("layers.0.up", True), ("layers.1.up", False), ("layers.2.up", True)]
    naming = {"step": 4, "trace": "rank0.json"} if in_step else None
    found = capture(
        tmp_path, trace(*layers, named=not in_step), *(module(name) for name, _ in layers),
        named=not in_step, naming=naming, step=trace(*layers) if in_step else None,
    )  # fmt: skip
    assert found.verdict == "PARTIAL"
    if in_step:
        return  # the list states it already of the window, where each call is a micro-batch
    (code, severity, message), = told(found)  # fmt: skip
    assert (code, severity) == ("layer-not-fp8", "warning")
    what = "1 converted layer never ran in FP8, 33.3% of GEMM FLOPs"
    assert message == f"{what}: layers.1.up"
    assert "layers.1.up" in found.reason


def test_what_names_tell_is_not_told_by_size_again(tmp_path: Path) -> None:
    window = trace(("up", True), ("wide", False))
    window.linear(M, 2 * N, K, fp8=False, layer="wider")
    modules = [module("up"), module("wide"), module("wider", outputs=2 * N)]
    assert [message for _, _, message in told(capture(tmp_path, window, *modules))] == [
        "2 converted layers never ran in FP8, 75.0% of GEMM FLOPs: wider, wide"
    ]


def test_a_layer_without_names_is_still_found_by_its_size(tmp_path: Path) -> None:
    window = trace(("up", True)).linear(M, 2 * N, K, fp8=False)
    modules = [module("up"), module("wider", outputs=2 * N)]
    (_, severity, message), = told(capture(tmp_path, window, *modules))  # fmt: skip
    assert severity == "warning"
    assert message.endswith(": wider")
    window.linear(M, 2 * N, K, fp8=False, layer="known")
    modules.append(module("known", outputs=2 * N))
    (_, _, message), = told(capture(tmp_path, window, *modules))  # fmt: skip
    assert message.endswith(": wider, known")


def one_leg_in_bf16(build: TraceBuilder, layer: str) -> TraceBuilder:
    """Add a layer in FP8 whose wgrad runs in BF16."""
    build.linear(M, N, K, fp8=True, layer=layer)
    cpu = [e for e in build.events if e["cat"] == "cpu_op"]
    cpu[-1]["name"] = "aten::mm"
    cpu[-1]["args"]["Input type"] = [BF16, BF16]
    build.events[-1]["name"] = BF16_KERNEL.replace("TNT", "NTT")
    return build


def test_a_leg_in_high_precision_is_a_warning_with_its_layers(tmp_path: Path) -> None:
    window = one_leg_in_bf16(trace(("layers.0.up", True)), "layers.1.up")
    found = capture(tmp_path, window, module("layers.0.up"), module("layers.1.up"))
    said = (
        "every wgrad GEMM of layers.1.up ran in BF16 (0.010 of 0.060 ms of GEMM time)"
    )
    assert told(found) == [("leg-not-fp8", "warning", said)]
    assert found.verdict == "PARTIAL"


def test_a_leg_that_a_layers_recipe_leaves_out_is_no_fault(tmp_path: Path) -> None:
    window = one_leg_in_bf16(trace(("layers.0.up", True)), "layers.1.up")
    left = module("layers.1.up", legs=("fprop", "dgrad"))
    found = capture(tmp_path, window, module("layers.0.up"), left)
    assert not told(found)
    assert found.verdict == "ACTIVE"


def test_a_leg_that_is_nowhere_in_fp8_is_told_once_with_the_layers(
    tmp_path: Path,
) -> None:
    window = one_leg_in_bf16(one_leg_in_bf16(trace(), "layers.0.up"), "layers.1.up")
    found = capture(tmp_path, window, module("layers.0.up"), module("layers.1.up"))
    (code, severity, message), = told(found)  # fmt: skip
    assert (code, severity) == ("leg-not-fp8", "warning")
    assert message.startswith("every wgrad GEMM ran in BF16")
    assert message.endswith(": layers.*.up (2)")


def test_layers_of_compiled_code_come_from_the_step_after_the_window(
    tmp_path: Path,
) -> None:
    found = capture(
        tmp_path, trace(("up", True), ("head", False), named=False), module("up"),
        module("head", legs=()), named=False, naming={"step": 4, "trace": "rank0.json"},
        step=trace(("up", True), ("head", False)),
    )  # fmt: skip
    named = named_of(found)
    assert (named.source, named.step, named.note) == ("step", 4, None)
    assert ran(found) == {"up": every_leg("fp8"), "head": every_leg("bf16")}
    assert found.gemm.kernels["fp8"] == 3  # those of the step are not added
    assert found.verdict == "ACTIVE"
    text = render(found, "text", verbose=True)
    assert "in one step (step 4, run without torch.compile)" in text


def damage(kind: str, folder: Path) -> None:
    path = folder / "layers" / "rank0.json"
    path.parent.mkdir()
    whole = json.dumps(trace(("a", True), ("b", True)).document(), indent=2)
    contents = {
        "empty": "", "no JSON": "hello", "no trace": "{}", "no kernels": '{"traceEvents": []}',
        "cut": whole[: len(whole) - 900], "no names": whole.replace("fp8verify:", "other:"),
    }  # fmt: skip
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text(contents[kind])


@pytest.mark.parametrize(
    "kind",
    [
        "missing",
        "folder",
        "empty",
        "no JSON",
        "no trace",
        "no kernels",
        "cut",
        "no names",
    ],
)
def test_a_damaged_layers_trace_is_a_note_and_never_the_verdict(
    tmp_path: Path, kind: str
) -> None:
    damage(kind, tmp_path)
    window, modules = (
        trace(("a", True), ("b", True), named=False),
        (module("a"), module("b")),
    )
    naming = {"step": 4, "trace": "rank0.json"}
    without = capture(tmp_path, window, *modules, named=False)
    found = capture(tmp_path, window, *modules, named=False, naming=naming)
    assert (found.verdict, found.exit_code, found.findings) == (
        "ACTIVE",
        0,
        without.findings,
    )
    named = named_of(found)
    assert named.note
    # The note names a file, whose path may be broken at the end of a line.
    text = render(found, "text", verbose=True)
    assert "".join(named.note.split()) in "".join(text.split())


@pytest.mark.parametrize("name", ["../rank0.json", "/etc/hostname", "..", "", "a\\b"])
def test_nothing_outside_the_capture_is_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "capture").mkdir()
    trace(("a", True)).write(tmp_path / "capture" / "other.json")
    naming = {"step": 4, "trace": name, "reason": "it is not there"}
    found = capture(tmp_path / "capture", trace(("a", True), named=False), module("a"), named=False,
                    naming=naming)  # fmt: skip
    named = named_of(found)
    assert (named.rows, named.note) == ((), "it is not there")


def test_why_layers_could_not_be_named_is_said(tmp_path: Path) -> None:
    naming = {
        "step": None,
        "trace": None,
        "reason": "compiled code: not all ranks agreed",
    }
    found = capture(
        tmp_path, trace(("a", True), named=False), named=False, naming=naming
    )
    assert "not recorded: compiled code: not all ranks agreed" in found.to_text(
        verbose=True
    )


def test_without_the_option_there_is_nothing_of_it(tmp_path: Path) -> None:
    found = capture(tmp_path, trace(("a", True)), module("a"), named=False)
    assert found.ranks[0].named_layers is None
    assert "FP8 of all GEMMs" not in render(found, "text")


def test_windows_of_a_rank_add_up(tmp_path: Path) -> None:
    capture(tmp_path, trace(("a", True)), module("a"))
    trace(("a", True), ("b", True)).write(tmp_path / "rank0.w2.json")
    first = {**WINDOW, "layers": True}
    second = {**first, "first": 5, "last": 5, "trace": "rank0.w2.json"}
    write_meta(tmp_path, module("a"), window=[first, second])
    two = {leg: {"fp8": 2} for leg in LEGS}
    assert ran(inspect(tmp_path)) == {"a": two, "b": every_leg("fp8")}


def test_names_in_the_window_come_before_those_of_a_step(tmp_path: Path) -> None:
    """As where the first window ran before anything was compiled."""
    naming = {"step": 4, "trace": "rank0.json"}
    found = capture(
        tmp_path,
        trace(("a", True)),
        module("a"),
        naming=naming,
        step=trace(("b", True)),
    )
    assert ran(found) == {"a": every_leg("fp8")}


def test_the_step_may_be_noted_by_the_second_process_of_a_rank(tmp_path: Path) -> None:
    capture(tmp_path, trace(("a", True), named=False), module("a"), named=False)
    meta = json.loads((tmp_path / "rank0.meta.json").read_text())
    meta |= {"window": [], "naming": {"step": 4, "reason": "it was late"}}
    (tmp_path / "rank0-123.meta.json").write_text(json.dumps(meta))
    named = named_of(inspect(tmp_path))
    assert (named.step, named.note) == (4, "it was late")


def test_what_casts_cost_is_told_for_each_layer(tmp_path: Path) -> None:
    kernel = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::AbsFunctor>(int)"
    )
    window = trace(("a", True), ("b", True))
    around = ("matmul_with_hp_or_float8_args",)
    window.launch(kernel, "aten::abs", parents=around, layer="a", sequence=9, us=7.0)
    window.launch(kernel, "aten::add", layer="a", sequence=10, us=5.0)  # a bias
    window.launch(kernel, "aten::abs", parents=around, us=3.0)
    named = named_of(capture(tmp_path, window, module("a"), module("b")))
    assert [row.casts_us for row in named.rows] == [7.0, None]


def test_names_split_no_kernel_rows(tmp_path: Path) -> None:
    """The kernels of a named run are summed up as those of any other."""
    layers = [(f"layers.{i}.up", True) for i in range(5)]
    plain, with_names = tmp_path / "plain", tmp_path / "names"
    plain.mkdir()
    with_names.mkdir()
    without = capture(plain, trace(*layers, named=False), named=False)
    found = capture(with_names, trace(*layers))
    assert [row.kernels for row in found.ranks[0].kernels] == [5, 5, 5]
    assert found.ranks[0].kernels == without.ranks[0].kernels


def test_gemms_of_no_layer_are_counted(tmp_path: Path) -> None:
    window = trace(("a", True)).launch(
        BF16_KERNEL, types=(BF16, BF16), dims=((8, 8), (8, 8))
    )
    found = capture(tmp_path, window, module("a"))
    named = named_of(found)
    assert (named.gemms, named.unjoined) == (4, 1)
    assert "1 of 4 GEMMs could not be joined to a layer" in render(found, "text")


def test_the_text_groups_layers_alike_and_counts_the_rest(tmp_path: Path) -> None:
    names = [f"layers.{i}.up" for i in range(20)]
    others = [f"part_{chr(97 + i)}" for i in range(15)]
    window = trace(
        *((name, name != "layers.7.up") for name in names), *((o, True) for o in others)
    )
    found = capture(tmp_path, window, *map(module, [*names, *others]))
    text = render(found, "text")
    lines = [line.split() for line in text.splitlines()]
    first = lines.index(["0/1", "0/1", "0/1", "0.03", "layers.7.up"])
    alike = ["19/19", "19/19", "19/19", "0.57", "layers.{0-6,8-19}.up"]
    assert lines[first + 1] == alike
    assert "… and 5 more with -v" in text
    assert "part_o" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("form", REPORT_FORMS)
def test_every_form_takes_a_hostile_name(tmp_path: Path, form: str) -> None:
    name = "<script>alert(1)</script>\x1b[31m`|[x](y)"
    output = render(capture(tmp_path, trace((name, True)), module(name)), form)
    assert "\x1b[31m" not in output
    if form == "html":
        assert "<script>alert" not in output
        assert "&lt;script&gt;alert(1)" in output


def test_frames_have_a_row_for_each_leg(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed (the pandas extra)")
    frame = capture(tmp_path, trace(("a", True)), module("a")).to_pandas().named_layers
    assert frame.drop(columns="time_us").to_dict("records") == [
        {
            "rank": 0,
            "layer": "a",
            "leg": leg,
            "precision": "fp8",
            "kernels": 1,
            "source": "window",
        }
        for leg in LEGS
    ]


def test_a_pattern_stands_only_for_all_it_fits() -> None:
    ups, downs = ([f"layers.{i}.{part}" for i in range(3)] for part in ("up", "down"))
    assert shorten([*ups, *downs[1:]], [*ups, *downs]) == [
        "layers.*.up (3)",
        *downs[1:],
    ]


def test_a_little_that_a_named_layer_lacks_is_told_once(tmp_path: Path) -> None:
    layers = [f"layers.{number}.up" for number in range(60)]
    window = TraceBuilder()
    for step in (5, 6):
        window.step(step)
        for layer in layers:
            is_low = (step, layer) != (6, layers[30])
            window.linear(M, N, K, fp8=is_low, layer=layer)
    found = capture(tmp_path, window, *map(module, layers))
    assert found.verdict is Verdict.ACTIVE
    warnings = [f for f in found.findings if f.severity is Severity.WARNING]
    assert "leg-unknown" not in [warning.code for warning in warnings]
    (warning,) = [f for f in warnings if f.code == "layer-not-fp8"]
    assert warning.message.startswith("3 GEMMs expected in FP8 ran in BF16")
    assert "fprop of layers.30.up in step 6" in warning.message

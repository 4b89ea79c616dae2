"""A saved state below which a run may not fall: the FP8 share, legs and layers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fp8verify import Report, inspect
from fp8verify.errors import InputError
from fp8verify.model.layers import ModulesReport
from fp8verify.pytest_plugin.session_reports import Demands, unmet
from fp8verify.terms import Severity
from fp8verify.verdict.gates import (
    Baseline,
    assert_gemm_precision,
    assert_no_regression,
    baseline_of,
    gated,
    read_baseline,
    regressions,
)
from tests.captures import CAPTURES, ROOT, report_of
from tests.command_line import fp8verify


def _messages(report: Report, baseline: Baseline, tolerance: float = 0.02) -> list[str]:
    return [finding.message for finding in regressions(report, baseline, tolerance)]


def _with_layers(report: Report, states: dict[str, str]) -> Report:
    names: dict[str, tuple[str, ...]] = {}
    for name, state in states.items():
        names[state] = (*names.get(state, ()), name)
    counts = {state: len(found) for state, found in names.items()}
    modules = ModulesReport(counts=counts, names=names, recipes=())
    return replace(report, ranks=(replace(report.ranks[0], modules=modules),))


@pytest.mark.parametrize("name", CAPTURES)
def test_a_run_never_falls_below_itself(name: str) -> None:
    report = report_of(name)
    held = gated(report, regressions(report, baseline_of(report), 0.0))
    assert held.exit_code == report.exit_code
    assert not [finding for finding in held.findings if finding.code == "regression"]


def test_what_fell_is_shown_as_a_difference() -> None:
    found = _messages(
        report_of("fp8_rowwise_gw_hp"), baseline_of(report_of("fp8_compiled"))
    )
    overall, wgrad = found
    assert re.fullmatch(
        r"below the baseline: the FP8 share of GEMM time fell from 100.0% to 5\d.\d% "
        r"\(4\d.\d points\)",
        overall,
    )
    assert wgrad.endswith(
        "the FP8 share of wgrad fell from 100.0% to 0.0% (100.0 points)"
    )


@pytest.mark.parametrize(
    ("fell", "counts"), [(0.01, False), (0.02, False), (0.021, True)]
)
def test_the_tolerance_is_in_points_of_the_share(fell: float, counts: bool) -> None:
    report = report_of("fp8_rowwise_gw_hp")
    now = report.gemm.fp8_share_of_time or 0.0
    assert (
        bool(_messages(report, Baseline(fp8verify_baseline=1, fp8_share=now + fell)))
        is counts
    )


def test_one_rank_of_many_that_loses_fp8_falls_below_whatever_the_mean_says() -> None:
    report = report_of("ddp_one_rank_bf16")
    good = replace(report, ranks=(report.ranks[0],) * 2)
    found = _messages(report, baseline_of(good))
    assert len(found) == 1
    assert "the lowest FP8 share of a rank fell from 5" in found[0]
    assert "to 0.0%" in found[0]


def test_a_layer_that_left_fp8_is_named() -> None:
    before = report_of("fp8_compiled")
    states = {"head": "high_precision", "layers.0.attn.q_proj": "fp8"}
    baseline = replace(
        baseline_of(before), layers={"head": "fp8", "layers.0.attn.q_proj": "fp8"}
    )
    found = _messages(_with_layers(before, states), baseline)
    assert found == [
        "below the baseline: 2 layers were in FP8, now 1 are; no longer: head"
    ]


def test_a_module_that_is_called_module_keeps_its_name_in_every_place() -> None:
    states = {"encoder.module.0.up": "fp8", "encoder.module.1.up": "high_precision"}
    report = _with_layers(report_of("fp8_compiled"), states)
    assert baseline_of(report).layers == states
    assert report.layer_states == states
    *_, complaint = unmet(report, Demands(layers=("encoder.module.*",)), 0.5, None)
    assert complaint.endswith(
        "1 of 2 layers are not in FP8: encoder.module.1.up (high_precision)"
    )


def test_layers_that_vanish_count_as_fallen_unless_as_many_are_in_fp8() -> None:
    report = report_of("fp8_compiled")
    baseline = replace(baseline_of(report), layers={"a": "fp8", "b": "fp8"})
    assert _messages(_with_layers(report, {"a": "fp8", "c": "fp8"}), baseline) == []
    assert _messages(_with_layers(report, {"a": "fp8"}), baseline) == [
        "below the baseline: 2 layers were in FP8, now 1 are; no longer: b"
    ]


def test_a_capture_that_cannot_be_compared_fails() -> None:
    report = inspect(ROOT / "fp8_compiled" / "rank0.json.gz")
    found = list(regressions(report, baseline_of(report_of("fp8_compiled")), 0.02))
    assert [(f.code, f.severity) for f in found] == [
        ("baseline-not-comparable", Severity.ERROR)
    ]
    held = gated(report, found)
    assert (held.exit_code, held.fails) == (1, True)


def _libraries(before: Report, now: Report) -> list[tuple[str, str]]:
    found = regressions(now, baseline_of(before), 0.02)
    return [(f.severity.value, f.message) for f in found if f.code == "library-changed"]


def test_a_gemm_that_left_its_library_for_a_slower_one_is_told() -> None:
    cublas = report_of("fp8_blockwise_cublas")
    triton = report_of("fp8_blockwise_triton")
    ((severity, message),) = _libraries(cublas, triton)
    assert severity == "error"
    assert message.startswith(
        "GEMMs in fp8 left cuBLAS (sm90), and ran in Triton: dgrad"
    )
    assert "fprop 8192x2048x2048 (1.9 times as long)" in message
    held = gated(triton, regressions(triton, baseline_of(cublas), 0.02))
    assert (held.exit_code, held.verdict) == (1, triton.verdict)
    assert _libraries(triton, cublas) == []  # it is faster


def test_another_library_that_is_as_fast_fails_no_run() -> None:
    cublas = report_of("fp8_blockwise_cublas")
    before = baseline_of(cublas)
    renamed = [replace(one, libraries=("CUTLASS",)) for one in before.libraries]
    found = list(regressions(cublas, replace(before, libraries=tuple(renamed)), 0.02))
    assert [(one.code, one.severity) for one in found] == [
        ("library-changed", Severity.WARNING)
    ]
    assert gated(cublas, found).exit_code == cublas.exit_code
    assert_no_regression(cublas, replace(before, libraries=tuple(renamed)))


def test_an_older_generation_of_a_library_is_told_and_a_newer_one_is_not() -> None:
    cublas = report_of("fp8_compiled")
    before = baseline_of(cublas)
    newer = tuple(replace(one, generation="sm100") for one in before.libraries)
    older = tuple(replace(one, generation="sm89") for one in before.libraries)
    (found,) = regressions(cublas, replace(before, libraries=newer), 0.02)
    assert (found.code, found.severity) == ("library-changed", Severity.ERROR)
    assert "left cuBLAS (sm100), and ran in cuBLAS (sm90)" in found.message
    assert list(regressions(cublas, replace(before, libraries=older), 0.02)) == []


def test_other_sizes_are_compared_by_leg_and_other_gpus_are_not() -> None:
    triton = report_of("fp8_blockwise_triton")
    before = baseline_of(report_of("fp8_blockwise_cublas"))
    sizes = [replace(one, size="64x64x64") for one in before.libraries]
    found = list(regressions(triton, replace(before, libraries=tuple(sizes)), 0.02))
    assert {one.severity for one in found} == {Severity.WARNING}
    assert "times as long" not in found[0].message
    elsewhere = replace(before, gpu="NVIDIA B200")
    assert list(regressions(triton, elsewhere, 0.02)) == []


def test_a_baseline_without_libraries_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"fp8verify_baseline": 1, "fp8_share": 1.0}))
    assert read_baseline(path).libraries == ()
    assert _messages(report_of("fp8_blockwise_triton"), read_baseline(path)) == []


# -- assertions -----------------------------------------------------------------------------------


def test_assert_no_regression_takes_a_file_or_a_baseline(tmp_path: Path) -> None:
    good, bad = report_of("fp8_compiled"), report_of("fp8_rowwise_gw_hp")
    assert_no_regression(good, baseline_of(good))
    path = tmp_path / "fp8.json"
    path.write_text(json.dumps({"fp8verify_baseline": 1, "fp8_share": 1.0}))
    with pytest.raises(AssertionError, match=r"fell from 100.0% to 5\d"):
        assert_no_regression(bad, path)


def test_assert_gemm_precision_names_what_ran_otherwise() -> None:
    report = report_of("fp8_rowwise_gw_hp")
    assert_gemm_precision(report, "fp8", leg="fprop")
    assert_gemm_precision(report, ["fp8", "bf16"])
    assert_gemm_precision(report, "bf16", leg="wgrad", op="aten::mm")
    with pytest.raises(
        AssertionError, match=r"100.0% of wgrad GEMM time .* than fp8:\n.*nvjet"
    ):
        assert_gemm_precision(report, leg="wgrad")
    with pytest.raises(AssertionError, match=r"no GEMM of aten::_grouped_mm ran"):
        assert_gemm_precision(report, op="aten::_grouped_mm")
    with pytest.raises(ValueError, match="fp9"):
        assert_gemm_precision(report, "fp9")


# -- the command line ---------------------------------------------------------------------------


def test_a_state_is_saved_and_later_runs_are_held_to_it(tmp_path: Path) -> None:
    baseline = tmp_path / "fp8.json"
    saved = fp8verify("inspect", ROOT / "fp8_compiled", "--save-baseline", baseline)
    assert saved.returncode == 0
    assert saved.stderr == f"{baseline}: baseline saved\n"
    held = ("inspect", ROOT / "fp8_rowwise_gw_hp", "--baseline", baseline)
    fallen = fp8verify(*held)
    assert fallen.returncode == 1
    text = " ".join(fallen.stdout.split())
    assert (
        "error [regression] below the baseline: the FP8 share of GEMM time fell from"
        in text
    )
    assert fp8verify(*held, "--tolerance", "100%").returncode == 0


def test_a_run_without_fp8_is_no_baseline(tmp_path: Path) -> None:
    baseline = tmp_path / "fp8.json"
    done = fp8verify("inspect", ROOT / "bf16_compiled", "--save-baseline", baseline)
    assert done.returncode == 1
    assert done.stderr == "no baseline was saved: the run is INACTIVE\n"
    assert not baseline.exists()


@pytest.mark.parametrize(
    "content",
    [
        None, b"\xff\xfe", b"{}", b'{"fp8verify_baseline": 2}',
        b'{"fp8verify_baseline": 1, "layers": {"a": []}}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_bad_baseline_is_an_error_of_the_input(
    content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "fp8.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_baseline(path)
    assert caught.value.hint

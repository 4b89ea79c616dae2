"""The verdict names its cause where module list, log or operators tell it, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8verify import Report, inspect
from fp8verify.report.forms import page_of
from tests.captures import CAPTURES, ROOT, report_of
from tests.hand_built import TraceBuilder

MEGATRON = """\
------------------------ arguments ------------------------
  first_last_layers_bf16 .......................... True
  fp8 ............................................. hybrid
  fp8_recipe ...................................... tensorwise
  num_layers ...................................... 4
  num_layers_at_end_in_bf16 ....................... 1
  num_layers_at_start_in_bf16 ..................... 1
-------------------- end of arguments ---------------------
"""


def fixes(report: Report) -> list[str]:
    page = page_of(report)
    grave = [one.hint for one in page.findings if one.severity != "info"]
    shown = [note.text for note in page.told() if note.label == "fix"]
    return [fix for fix in (page.fix, *grave, *shown) if fix]


@pytest.mark.parametrize(
    ("capture", "cause", "advice"),
    [
        (
            "bf16_filter_rejects_all",
            "0 of 15 linear layers were converted",
            "module_filter_fn",
        ),
        (
            "bf16_te_no_autocast",
            "their operators are Transformer Engine's, outside its FP8 autocast",
            "te.autocast",
        ),
        ("bf16_compiled", "0 of 15 linear layers were converted", "`fp8verify doctor`"),
        (
            "fp8_megatron_first_last",
            "Megatron-LM keeps blocks 0, 3",
            "--min-share expected",
        ),
        (
            "fp8_te_backward_bf16",
            "dgrad and wgrad stayed in BF16",
            "--min-share expected",
        ),
    ],
)
def test_the_page_begins_with_cause_and_remedy(
    capture: str, cause: str, advice: str
) -> None:
    report = report_of(capture)
    assert cause in report.reason
    assert advice in fixes(report)[0]


def test_arguments_in_the_log_that_keep_layers_in_bf16_are_the_cause(
    tmp_path: Path,
) -> None:
    log = tmp_path / "train.log"
    log.write_text(MEGATRON)
    report = inspect(ROOT / "fp8_muon" / "rank0.json.gz", log=log)
    assert (
        "blocks 0, 3 in high precision (first_last_layers_bf16, around log line 3)"
        in report.reason
    )


@pytest.mark.parametrize("name", CAPTURES)
def test_every_verdict_but_a_clean_active_says_what_to_do(name: str) -> None:
    report = report_of(name)
    clean = report.verdict == "ACTIVE" and {f.severity for f in report.findings} <= {
        "info"
    }
    assert bool(fixes(report)) != clean


@pytest.mark.parametrize(
    ("converted", "cause"),
    [
        (20, "28 of 48 layers were left out of the conversion (log line 1)"),
        (30, "linear layers of 32x64, 32x48, 32x32 ran only in high precision"),
    ],
)
def test_the_layers_that_a_log_counts_are_the_cause_if_most_were_left_out(
    converted: int, cause: str, build: TraceBuilder
) -> None:
    for place in range(4):
        build.step(1).linear(64, 32, 16 * (place + 1), fp8=not place)
    log = f"FP8 training enabled - converted {converted}/48 linear layers\n"
    assert build.report(log=log).reason.endswith(cause)


def test_of_several_kernels_of_unknown_precision_the_longest_is_named(
    build: TraceBuilder,
) -> None:
    build.launch("triton_tem_fused_mm_3", None, us=30)
    build.launch("another_gemm_kernel", None, us=10)
    said = "kernels of unknown precision, most of it in triton_tem_fused_mm_3"
    assert said in build.report().reason


@pytest.mark.parametrize(("high", "may_be_warm_up"), [(1, True), (2, False)])
def test_a_step_behind_one_in_fp8_is_no_warm_up(
    build: TraceBuilder, high: int, may_be_warm_up: bool
) -> None:
    for step in (1, 2, 3):
        build.step(step).linear(64, 32, 16, fp8=step != high)
    findings = build.report().findings
    (found,) = (one for one in findings if one.code == "step-without-fp8")
    assert ("warm-up" in found.hint) is may_be_warm_up

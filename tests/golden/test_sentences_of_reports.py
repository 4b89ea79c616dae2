"""Every sentence of a capture's report earns its place: none twice, none hidden that must not be."""

from __future__ import annotations

import html
import re
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from fp8verify import inspect
from fp8verify.cli.group import cli
from fp8verify.model.verdict import Finding
from fp8verify.report import report_page
from fp8verify.report.forms import page_of, render
from fp8verify.report.page import Note
from fp8verify.terms import Severity
from fp8verify.thresholds import FUSED_CASTS
from tests.captures import report_of
from tests.golden.test_reports import CAPTURES
from tests.hand_built import TraceBuilder, present
from tests.reading import faults

UNEXPLAINED = ("no grammar knows", "not in the list", "function name")
LABELS = ("error", "warning", "info", "speed")


@pytest.mark.parametrize("name", CAPTURES)
def test_no_sentence_is_said_twice(name: str) -> None:
    page = page_of(report_of(name), verbose=True)
    told = [page.sentence, page.exit]
    told += [note.text for note in page.told(verbose=True)]
    for part in (*page.requested, *page.body):
        told += [part] if isinstance(part, str) else [part.above, *part.below]
    said = [
        sentence.strip(" .")
        for text in told
        for sentence in re.split(r"(?<=[.;])\s+", text)
        if sentence
    ]
    # Of each rank its own figures, which may be the same.
    said += [note.text for note in (*page.notes, *page.facts)]
    assert sorted(said) == sorted(set(said))


@pytest.mark.parametrize("name", CAPTURES)
def test_the_page_gives_no_advice_twice(name: str) -> None:
    report = report_of(name)
    page = page_of(report, verbose=True)
    # What is folded is the page of a finding, which has every advice that there is.
    open_text = re.sub(r"(?s)<details.*?</details>", "", report.to_html())
    text = html.unescape(re.sub(r"<[^>]+>", "", open_text))
    for advice in filter(None, (page.fix, *(one.hint for one in page.findings))):
        assert text.count(advice.replace("`", "")) <= 1


@pytest.mark.parametrize("name", CAPTURES)
def test_a_fix_is_shown_with_what_it_is_about(name: str) -> None:
    shown = report_of(name).to_text().splitlines()
    labels = [line[:9].strip() for line in shown]
    advice = [label for label in labels if label in (*LABELS, "fix")]
    assert advice[:1] != ["fix"] or page_of(report_of(name)).fix
    for before, label in pairwise(advice):
        assert label != "fix" or before != "fix"


@pytest.mark.parametrize("name", CAPTURES)
def test_no_error_and_no_first_fix_is_hidden(name: str) -> None:
    report = report_of(name)
    page = page_of(report)
    text = " ".join(report.to_text().split())
    for finding in page.findings:
        if finding.severity is Severity.ERROR:
            assert f"[{finding.code}]" in text
    fixes = [
        note.text
        for note in page.told()
        if note.label == "fix" or note.text.startswith("fix: ")
    ]
    assert " ".join("".join(fixes[:1]).split()) in text


@pytest.mark.parametrize("name", CAPTURES)
def test_what_is_hidden_is_counted(name: str) -> None:
    report = report_of(name)
    shown = report.to_text().splitlines()
    last = shown[-1]
    for label, counted in (("warning", r"(\d+) warning"), ("fix", r"(\d+) fix")):
        notes = sum(note.label == label for note in page_of(report).told())
        seen = sum(line.startswith(f"{label} ") for line in shown)
        more = re.search(rf" · more with -v: .*?{counted}", last)
        assert notes == seen + int(more[1] if more else 0)


@pytest.mark.parametrize("name", CAPTURES)
def test_nothing_of_a_report_is_hard_to_read(name: str) -> None:
    assert list(faults(report_of(name))) == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("of what", "layers ran in FP8 for 75.0%, 50.1% of GEMM FLOPs"),
        ("of what", "24 of 96 GEMMs ran in FP8 (29%)"),
        (
            "of two wholes",
            "384 of 576 GEMMs ran in FP8, but 204 of 780 wgrad GEMMs did not",
        ),
        ("twice", "all ran in FP8: 90 GEMMs ran faster than it can: really so"),
    ],
)
def test_faults_of_a_report_are_found(fault: str, reason: str) -> None:
    report = report_of("fp8_te_recompute_bf16")
    said = "90 GEMMs ran faster than it can"
    info = replace(
        report.findings[0],
        severity=Severity.INFO,
        message=said,
        hint="",
        code="gpu-idle",
    )
    findings = (*report.findings, info)
    (found,) = faults(replace(report, reason=reason, findings=findings))
    assert found.startswith(f"{fault}: ")


def test_an_error_that_is_cut_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of("fp8_pinned_layer")
    usual = Note.of

    def unimportant(finding: Finding, _: int) -> Note:
        return usual(finding, 9)

    monkeypatch.setattr(Note, "of", unimportant)
    monkeypatch.setitem(report_page._LINES, report.verdict, 10)
    assert "hidden: pinned-layer-low" in list(faults(report))


def test_a_terminal_has_bars_and_a_pipe_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    report = report_of("fp8_te_backward_bf16")
    text = render(report, "text", terminal=True, width=100)
    assert "0/27 ░░░░░░░░░░" in text
    assert "24/27 ████████░░" in text
    assert "░" not in report.to_text(width=100)


def test_a_gpu_without_fp4_is_why_fp8_ran_instead() -> None:
    report = report_of("fp8_instead_of_nvfp4")
    assert report.reason == (
        "NVFP4 was requested, but none ran in it: all 72 GEMMs ran in FP8, because the "
        "NVIDIA H200 has no FP4 units"
    )
    (found,) = (one for one in report.findings if one.code == report.cause)
    assert "compute capability 10.0" in found.hint


def test_a_filter_that_the_log_names_is_why_nothing_was_converted() -> None:
    report = report_of("bf16_torchtitan_auto_filter")
    assert report.reason.endswith("(the filter of log line 5 accepted none)")
    (found,) = (one for one in report.findings if one.code == report.cause)
    assert found.hint.startswith('Remove "auto_filter_small_kn" from filter_fqns')


def test_the_states_of_layers_add_up_and_say_what_ran() -> None:
    _, model, _ = page_of(report_of("fp8_megatron_first_last")).sources
    assert re.match(
        r"8 of 17 linear layers converted, 8 .*, 1 not converted", model.text
    )
    assert "Transformer Engine's (last run outside its FP8 autocast)" in model.text


@pytest.mark.parametrize(
    "capture", ["fp8_one_micro_batch_bf16", "fp8_te_recompute_bf16"]
)
def test_an_autocast_that_was_off_at_the_end_is_not_said_of_layers_that_ran_fp8(
    capture: str,
) -> None:
    report = report_of(capture)
    assert report.ranks[0].modules is not None
    assert report.ranks[0].modules.counts["fp8_module_off"] == 4
    assert "outside its FP8 autocast" not in report.to_text(verbose=True)
    _, model, _ = page_of(report).sources
    assert "(in FP8 only inside its autocast)" in model.text


def test_a_notice_of_a_library_is_no_evidence(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "fp8_autocast is deprecated\n  with te.fp8_autocast():\nstep 1\nno fp8 here\n"
    )
    build = TraceBuilder().linear(64, 32, 16, fp8=False)
    report = inspect(build.write(tmp_path / "trace.json"), log=log)
    assert report.mention is not None
    assert report.mention.line == 4


def test_a_finding_that_the_sentence_says_has_no_message_of_its_own() -> None:
    report = report_of("fp8_unfused_attention")
    (first, *_) = (one for one in report.findings if one.hint)
    reason = f"{report.reason}; {first.message}; and more"
    page = page_of(replace(report, reason=reason))
    (shown,) = (one for one in page.findings if one.code == first.code)
    assert shown.message == ""
    assert shown.hint == first.hint


def test_of_the_only_trace_its_file_is_not_named_a_second_time() -> None:
    report = report_of("fp8_unfused_attention")
    (rank,) = report.ranks
    (first, *_) = (one for one in report.findings if one.hint)
    of_file = replace(first, message=f"{rank.source}: no GPU kernels")
    alone = replace(report, reason="no GPU kernels", findings=(of_file,))
    (shown,) = page_of(alone).findings
    assert shown.message == ""
    of_two = replace(alone, ranks=(rank, replace(rank, rank=1)))
    (shown,) = page_of(of_two).findings
    assert shown.message.endswith(of_file.message)


def test_a_kernel_is_named_without_the_types_of_its_parameters() -> None:
    names = {
        "void f<int, g<(bool)1>>(float const*, int)": "void f<int, g<(bool)1>>",
        "void (anonymous namespace)::f<2>(T)": "void (anonymous namespace)::f<2>",
        "nvjet_sm90_qqtst_TNT": "nvjet_sm90_qqtst_TNT",
    }
    report = report_of("fp8_compiled")
    (rank,) = report.ranks
    gemm = next(row for row in rank.kernels if row.role.is_gemm)
    for name, shown in names.items():
        named = replace(rank, kernels=(replace(gemm, name=name),))
        page = page_of(replace(report, ranks=(named,)), verbose=True)
        (grid,) = (one for one in page.grids if one.title == "Longest GEMM kernels")
        assert [row[-1] for row in grid.rows] == [shown]


def test_layers_that_the_log_counts_out_are_why_not_all_ran_in_fp8() -> None:
    reason = report_of("fp8_nanochat").reason
    assert reason.endswith(
        "; 7 of 80 layers were left out of the conversion (log line 30)"
    )


def test_layers_of_one_size_are_not_told_apart_by_size() -> None:
    hints = [one.hint for one in report_of("fp8_experts").findings]
    assert any(hint.startswith("All FP8 layers have one size") for hint in hints)
    assert not any("shortest sides" in hint for hint in hints)


def test_the_fix_of_the_cause_is_shown_whatever_the_table_takes() -> None:
    report = report_of("fp8_te_recompute_bf16")
    assert report.proof is not None
    (row, *_) = report.proof.rows
    rows = tuple(replace(row, value=f"layer {number}") for number in range(40))
    proof = replace(report.proof, coordinate="layer", rows=rows, left_out=3)
    hint = "Look for recomputation outside the FP8 autocast. " * 6
    findings = [
        replace(one, hint=hint) if one.code == report.cause else one
        for one in report.findings
    ]
    text = replace(report, proof=proof, findings=tuple(findings)).to_text()
    assert "fix: Look for recomputation" in " ".join(text.split())
    assert "see the sentence above" not in text


def test_kernels_of_unknown_precision_may_be_in_fp8() -> None:
    report = report_of("bf16_compiled")
    (rank,) = report.ranks
    assert rank.payoff is not None
    gemm = replace(
        report.gemm,
        kernels={"unknown": 100, "bf16": 35},
        time_us={"unknown": 3000.0, "bf16": 1000.0},
    )
    unknown = replace(report, gemm=gemm, ranks=(replace(rank, gemm=gemm),))
    page = page_of(unknown)
    assert page.sources[2].text.endswith("FP8 is 0% of GEMM time, and 75% of it may be")
    assert page.speed is None
    assert page_of(report).speed is not None


def test_a_list_that_goes_on_has_no_full_stop() -> None:
    report = replace(report_of("fp8_compiled"), reason="layers a, b …")
    assert "Layers a, b …\n" in report.to_text()


@pytest.mark.parametrize("name", CAPTURES)
def test_one_fact_is_one_error(name: str) -> None:
    report = report_of(name)
    errors = {one.code for one in report.findings if one.severity is Severity.ERROR}
    assert not {"emulated", "claimed-not-active"} <= errors


def test_the_speed_has_all_ranks_and_its_remedy_the_one_that_gains_least() -> None:
    report = report_of("fsdp_fp8_all_gather")
    page = page_of(report)
    assert page.speed is not None
    assert page.speed.finding is not None
    casts_us = 0.0
    busy_us = 0.0
    gains = []
    for rank in report.ranks:
        figures = present(rank.payoff)
        casts_us += present(rank.tax).time_us
        busy_us += figures.gpu_busy_us
        gains.append(present(figures.speedup_estimate))
    assert f"{min(gains):.2f}x to {max(gains):.2f}x BF16" in page.speed.text
    assert f"casts take {casts_us / busy_us:.0%} of GPU time" in page.speed.text
    slowest = report.ranks[gains.index(min(gains))]
    figures = present(slowest.payoff)
    tax = present(slowest.tax)
    fused_us = figures.gpu_busy_us - (1 - FUSED_CASTS) * tax.unfused_us
    bf16_us = figures.gpu_busy_us - tax.time_us + tax.saved_at_most_us
    after = f"FP8 is about {bf16_us / fused_us:.2f}x BF16"
    assert after in page.speed.finding.hint


def test_two_fixes_of_one_time_say_what_both_bring() -> None:
    report = report_of("fp8_unfused_attention")
    figures = present(report.ranks[0].payoff)
    tax = present(report.ranks[0].tax)
    of_gpu = report.attention_gemm.total_ns / 1000 / sum(report.gpu_time_us.values())
    attention_us = of_gpu * figures.gpu_busy_us
    saved_us = (1 - FUSED_CASTS) * tax.unfused_us
    fused_us = figures.gpu_busy_us - saved_us - attention_us
    bf16_us = fused_us + saved_us - tax.time_us + tax.saved_at_most_us
    (found,) = (one for one in report.findings if one.code == "fp8-not-paying")
    both = f"({figures.gpu_busy_us / fused_us:.1f}x with fused attention)"
    assert both in found.hint
    after = f"With both fixes FP8 is about {bf16_us / fused_us:.2f}x BF16"
    assert after in found.hint


def test_what_cannot_be_changed_is_last_and_no_fix(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path)
    for leg in ("fprop", "dgrad"):
        build.gemm(leg, 4096, 4096, 4096, fp8=leg == "fprop")
    build.gemm("wgrad", 4096, 16, 4096, fp8=False)
    *_, last = page_of(build.report()).told()
    present(last.finding)
    assert last.text.startswith("Nothing to change here")


@pytest.mark.parametrize(
    "word",
    [
        *("scaling", "tensorwise", "rowwise", "blockwise", "delayed", "current"),
        *("fprop", "dgrad", "wgrad", "recompute", "backward", "attention", "optimizer"),
        *("casts", "exposed", "flushed", "clipped", "headroom", "SQNR", "speed-up"),
    ],
)
def test_words_of_reports_are_explained(word: str) -> None:
    said = CliRunner().invoke(cli, ["explain", word]).output
    assert said.startswith(word)
    assert not any(sign in said for sign in UNEXPLAINED)


def test_what_begins_a_line_or_heads_a_column_is_explained() -> None:
    words: set[str] = set()
    for name in CAPTURES:
        report = report_of(name)
        page = page_of(report, verbose=True)
        for note in (*page.told(verbose=True), *page.notes, *page.facts):
            words.add(note.label)
        for grid in page.grids:
            words.update(map(_without_unit, grid.names))
        words.update(report.gpu_time_us)
        for rank in report.ranks:
            for row in rank.kernels:
                words.update({row.role.value, row.precision.value})
        if page.speed is not None and ": " in page.speed.text:
            words.add(page.speed.text.partition(": ")[0])
    words -= {""}
    assert len(words) > 50
    said = CliRunner().invoke(cli, ["explain", *sorted(words)]).output
    unexplained = []
    for block in said.split("\n\n"):
        word, _, meaning = block.partition("\n")
        if any(sign in meaning for sign in UNEXPLAINED):
            unexplained.append(word)
    assert unexplained == []


def _without_unit(heading: str) -> str:
    """Return what a column holds: "leg" of "leg (ms)"."""
    return re.sub(r" \((?:ms|each|us)\)$|, \d+ steps$", "", heading)

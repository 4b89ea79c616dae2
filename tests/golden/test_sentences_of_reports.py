"""Every sentence of a capture's report earns its place: none twice, none hidden that must not be."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from fp8verify.cli.group import cli
from fp8verify.report.forms import page_of, render
from fp8verify.terms import Severity
from tests.captures import report_of
from tests.golden.test_reports import CAPTURES


@pytest.mark.parametrize("name", CAPTURES)
def test_no_sentence_is_said_twice(name: str) -> None:
    page = page_of(report_of(name))
    told = [page.sentence, *(note.text for note in page.told(verbose=True))]
    said = [
        sentence.strip(" .")
        for text in told
        for sentence in re.split(r"(?<=[.;])\s+", text)
    ]
    assert sorted(said) == sorted(set(said))


@pytest.mark.parametrize("name", CAPTURES)
def test_no_error_and_no_first_fix_is_hidden(name: str) -> None:
    report = report_of(name)
    page = page_of(report)
    text = " ".join(report.to_text().split())
    for finding in page.findings:
        if finding.severity is Severity.ERROR:
            assert f"[{finding.code}]" in text
    fixes = [note.text for note in page.told() if note.label == "fix"]
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
def test_each_percentage_names_its_whole(name: str) -> None:
    page = page_of(report_of(name))
    for text in (page.sentence, *(note.text for note in page.told())):
        for share in re.finditer(r"[\d.]+%(?P<after>[^%]*)", text):
            named = r" (of|faster|slower|less|more|expected)\b|\)|, less than half"
            assert re.match(named, share["after"]), text


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
    assert "the NVIDIA H200 has no FP4 units: all 72 GEMMs ran in FP8" in report.reason
    (found,) = (one for one in report.findings if one.code == report.cause)
    assert "compute capability 10.0" in found.hint


def test_a_filter_that_the_log_names_is_why_nothing_was_converted() -> None:
    report = report_of("bf16_torchtitan_auto_filter")
    assert report.reason.endswith("(the filter of log line 5 accepted none)")
    (found,) = (one for one in report.findings if one.code == report.cause)
    assert found.hint.startswith('Remove "auto_filter_small_kn" from filter_fqns')


def test_the_states_of_layers_add_up_and_say_when_they_were_read() -> None:
    _, model, _ = page_of(report_of("fp8_megatron_first_last")).sources
    assert re.match(
        r"8 of 17 linear layers converted, 8 .*, 1 not converted", model.text
    )
    assert "was off when the window ended" in model.text


@pytest.mark.parametrize("name", CAPTURES)
def test_one_fact_is_one_error(name: str) -> None:
    report = report_of(name)
    errors = {one.code for one in report.findings if one.severity is Severity.ERROR}
    assert not {"emulated", "claimed-not-active"} <= errors


def test_the_speed_and_its_remedy_speak_of_the_same_rank() -> None:
    page = page_of(report_of("fsdp_fp8_all_gather"))
    assert page.speed is not None
    assert page.speed.finding is not None
    (said,) = re.findall(r"casts take (\d+%) of GPU time", page.speed.text)
    assert f"casts take {said} of GPU time" in page.speed.finding.hint


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
    assert "no grammar knows" not in said
    assert "function name" not in said

"""Within one report no figure contradicts another: headline, tables, findings, JSON, every form."""

from __future__ import annotations

import html
import json
import re

import pytest

from fp8verify import Report
from fp8verify.model.report import RankReport
from fp8verify.report import REPORT_FORMS
from fp8verify.report.forms import page_of, render
from fp8verify.report.page import Grid
from fp8verify.terms import Precision, Severity, Verdict
from tests.captures import CAPTURES, report_of

WORDS = ("text", "html", "markdown", "github", "junit")
ROUNDED_MS = 0.0051


@pytest.fixture(params=CAPTURES)
def report(request: pytest.FixtureRequest) -> Report:
    return report_of(request.param)


def grid(report: Report, title: str) -> Grid | None:
    return next(
        (one for one in page_of(report, verbose=True).grids if one.title == title), None
    )


def words(text: str) -> str:
    """Return a form as words, without what makes it that form."""
    for sign, code in (("%", "%25"), (" ", "%0A"), (",", "%2C"), (":", "%3A")):
        text = text.replace(code, sign)
    text = html.unescape(text)
    return " ".join(re.sub(r"[\\]|</?\w+>|\*\*|`", "", text).split())


def test_the_headline_has_the_kernels_of_the_table_and_of_the_kernels_line(
    report: Report,
) -> None:
    shown = grid(report, "GEMM time")
    if shown is None:
        return
    layers = [row for row in shown.rows if not row[0].startswith("(")]
    low = sum(int(row[1]) for row in layers if Precision(row[0]).is_low)
    total = sum(int(row[1]) for row in layers)
    counted = re.match(r"(\d+) of (\d+) linear-layer GEMMs", report.reason)
    if counted is not None:
        assert (int(counted[1]), int(counted[2])) == (low, total)
    whole = re.search(r"all (\d+) (?:linear-layer )?GEMMs ran", report.reason)
    if whole is not None:
        assert int(whole[1]) == total
    said = re.search(r"\((\d+(?:\.\d)?)% of (?:GEMM|their) time", report.reason)
    if said is not None and len(report.ranks) == 1:
        assert float(said[1]) == pytest.approx(
            100 * (report.layer_share or 0), abs=0.51
        )
    line = page_of(report).sources[2].text
    counts = re.findall(
        r"(?:[A-Z]+\d*|unknown) (\d+)(?= \(|[,:;]|$)", line.split(": ")[0]
    )
    if all(rank.judged for rank in report.ranks):  # the line has those that train
        assert sum(map(int, counts)) == total
    shares = [float(row[3].rstrip("%")) for row in layers]
    assert sum(shares) == pytest.approx(
        100 if shares else 0, abs=0.06 * len(shares) + 1e-9
    )


def test_gemm_time_is_the_same_in_every_table(report: Report) -> None:
    gemms, passes = grid(report, "GEMM time"), grid(report, "GEMM time by leg")
    if gemms is None:
        return
    listed = sum(float(row[2]) for row in gemms.rows)
    assert listed == pytest.approx(
        report.gpu_time_us["gemm"] / 1000, abs=0.006 * len(gemms.rows)
    )
    if passes is not None:
        cells = [float(cell) for row in passes.rows for cell in row[1:] if cell != "-"]
        assert sum(cells) == pytest.approx(
            listed, abs=ROUNDED_MS * (len(cells) + len(gemms.rows))
        )


def test_ranks_agree_with_the_headline_and_with_the_sums(report: Report) -> None:
    least = re.search(r"has least \((\d+)% of its GEMM time", report.reason)
    shares = [rank.layer_share or 0.0 for rank in report.ranks]
    if least is not None:
        assert float(least[1]) == pytest.approx(100 * min(shares), abs=0.51)
    for name in report.gemm.time_us:
        ranks = sum(rank.gemm.time_us[name] for rank in report.ranks)
        assert report.gemm.time_us[name] == pytest.approx(ranks, abs=0.01)
    for rank, share in zip(report.ranks, shares, strict=True):
        agrees_with_its_verdict(rank, share)


def agrees_with_its_verdict(rank: RankReport, share: float) -> None:
    if rank.verdict is Verdict.ACTIVE:
        assert share >= 0.5
        assert rank.shortfall is None
    if rank.verdict in (Verdict.INACTIVE, Verdict.CONTRADICTED, Verdict.EMULATED):
        assert share == 0
    assert " in UNKNOWN" not in rank.reason


def test_shares_in_the_json_are_those_of_its_times(report: Report) -> None:
    document = json.loads(render(report, "json"))
    for part in (document, *document["ranks"]):
        for summary in (part["gemm"], part["attention_gemm"], part["optimizer_gemm"]):
            times = summary["time_us"]
            total = sum(times.values())
            fp8 = sum(us for name, us in times.items() if Precision(name).is_fp8)
            assert (summary["fp8_share_of_time"] is None) == (not total)
            if total:
                assert summary["fp8_share_of_time"] == pytest.approx(
                    fp8 / total, abs=1e-5
                )
        assert sum(part["gpu_time_us"].values()) >= part["gpu_time_us"]["gemm"]


def test_every_form_has_verdict_sentence_sources_findings_and_the_exit_code(
    report: Report,
) -> None:
    forms = {form: render(report, form) for form in REPORT_FORMS}
    assert all(text.endswith("\n") for text in forms.values())
    page = page_of(report)
    assert page.exit.startswith(f"exit {report.exit_code}")
    for form in WORDS:
        text = words(forms[form])
        for said in (
            page.verdict,
            page.sentence,
            page.exit,
            *(note.text for note in page.sources),
        ):
            assert " ".join(said.replace("`", "").split()) in text, form
        counted = "warning" in text.split("more with -v:")[-1]
        for finding in report.findings:
            if finding.severity is Severity.ERROR:
                assert finding.code in text, form
            if finding.severity is Severity.WARNING:
                assert finding.code in text or counted, form


def test_the_first_screen_is_short_and_says_nothing_twice(report: Report) -> None:
    text = report.to_text()
    lines = text.splitlines()
    asked = any(rank.named_layers or rank.numerics for rank in report.ranks)
    # The first fix is shown, and that of what limits the step, whatever the limit of lines.
    advised = []
    for finding in report.findings:
        is_shown = f"[{finding.code}]" in text or finding.severity is not Severity.INFO
        if finding.hint and is_shown:
            advised.append(finding)
    least = 16 + 3 * min(2, len(advised))
    assert asked or len(lines) <= (least if report.verdict is Verdict.ACTIVE else 28)
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith(f"exit {report.exit_code}")
    labels = [
        line.split()[0] for line in lines if re.match(r"(log|model|kernels) {2,}", line)
    ]
    assert labels == ["log", "model", "kernels"]
    sentences = re.split(r"[.;:] ", " ".join(" ".join(lines).lower().split()))
    long = [one for one in sentences if len(one.split()) > 6]
    assert len(long) == len(set(long))


def test_every_finding_says_something_that_the_sentence_does_not(
    report: Report,
) -> None:
    page = page_of(report)
    told = [
        note.text.casefold()
        for note in page.told(verbose=True)
        if note.finding is not None
    ]
    assert all(told)
    assert page.sentence.casefold() not in told
    assert len(told) == len(set(told))


def test_layers_that_only_run_forward_are_mentioned_from_one_percent_on(
    report: Report,
) -> None:
    untrained, whole = (
        sum(g.time_us.values()) for g in (report.untrained_gemm, report.gemm)
    )
    assert ("only run forward" in report.reason) == (untrained >= 0.01 * whole > 0)


def test_attention_and_optimizer_are_named_apart_wherever_they_are_left_out(
    report: Report,
) -> None:
    shown = grid(report, "GEMM time")
    if shown is None:
        return
    apart = {
        row[0].rpartition(", ")[2].rstrip(")") for row in shown.rows if row[0][0] == "("
    }
    assert ("attention" in apart) == bool(sum(report.attention_gemm.kernels.values()))
    assert ("optimizer" in apart) == bool(sum(report.optimizer_gemm.kernels.values()))
    assert shown.names[3] == ("of layers" if apart else "share")


def test_ranks_share_one_cause_and_one_finding(report: Report) -> None:
    kinds = [
        (found.code, found.severity, found.hint)
        for found in report.findings
        if found.per_rank
    ]
    several = [found for found in report.findings if found.code == "fp8-not-paying"]
    assert len(several) <= 1
    assert len(report.ranks) == 1 or len(kinds) == len(set(kinds))

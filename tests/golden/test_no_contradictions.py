"""Within one report no figure contradicts another: headline, tables, findings, JSON, every form."""

from __future__ import annotations

import json
import re

import pytest

from fp8verify import Report
from fp8verify.report import REPORT_FORMS
from fp8verify.report.forms import page_of, render
from fp8verify.report.model.report import RankReport
from fp8verify.report.page import Grid
from fp8verify.report.tables import layer_share
from fp8verify.terms import Precision, Severity, Verdict
from scripts.truth_of_captures import KNOWN
from tests.golden.reports import report_of

WORDS = ("text", "html", "markdown", "github", "junit")
ROUNDED_MS = 0.0051


@pytest.fixture(params=sorted(KNOWN))
def report(request: pytest.FixtureRequest) -> Report:
    return report_of(request.param)


def grid(report: Report, title: str) -> Grid | None:
    return next((one for one in page_of(report, verbose=True).grids if one.title == title), None)


def figures(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(\d+\.\d)%", text)]


def test_the_headline_has_the_share_and_the_kernels_of_the_table(report: Report) -> None:
    shown, reason = grid(report, "GEMM time"), report.reason
    if shown is None or len(report.ranks) > 1:
        return
    layers = [row for row in shown.rows if not row[0].startswith("(")]
    low = [row for row in layers if Precision(row[0]).is_low]
    kernels = re.search(r"(\d+) of (\d+) GEMM kernels", reason)
    if kernels is not None:
        assert int(kernels[1]) == sum(int(row[1]) for row in low)
        assert int(kernels[2]) == sum(int(row[1]) for row in layers)
        assert figures(reason)[0] == pytest.approx(100 * (layer_share(report) or 0), abs=0.051)
    whole = re.search(r"all (\d+) GEMM kernels", reason)
    if whole is not None:
        assert int(whole[1]) == sum(int(row[1]) for row in layers)
        assert not low
    shares = [float(row[3].rstrip("%")) for row in layers]
    assert sum(shares) == pytest.approx(100 if shares else 0, abs=0.06 * len(shares) + 1e-9)


def test_gemm_time_is_the_same_in_every_table(report: Report) -> None:
    gemms, passes = grid(report, "GEMM time"), grid(report, "GEMM time by pass")
    if gemms is None:
        return
    listed = sum(float(row[2]) for row in gemms.rows)
    assert listed == pytest.approx(report.gpu_time_us["gemm"] / 1000, abs=0.006 * len(gemms.rows))
    if passes is not None:
        cells = [float(cell) for row in passes.rows for cell in row[1:] if cell != "-"]
        assert sum(cells) == pytest.approx(listed, abs=ROUNDED_MS * (len(cells) + len(gemms.rows)))


def test_ranks_agree_with_the_headline_and_with_the_sums(report: Report) -> None:
    least = re.search(r"at least (\d+\.\d)% of each rank", report.reason)
    shares = [layer_share(rank) or 0.0 for rank in report.ranks]
    if least is not None:
        assert float(least[1]) == pytest.approx(100 * min(shares), abs=0.051)
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
                assert summary["fp8_share_of_time"] == pytest.approx(fp8 / total, abs=1e-5)
        assert sum(part["gpu_time_us"].values()) >= part["gpu_time_us"]["gemm"]


def test_every_form_has_the_verdict_the_findings_and_their_figures(report: Report) -> None:
    assert all(render(report, form).endswith("\n") for form in REPORT_FORMS)
    for form in WORDS:
        text = " ".join(re.sub(r"[\\]", "", render(report, form)).split())
        assert report.verdict.value in text
        assert all(
            f"{figure:.1f}%" in text.replace("%25", "%") for figure in figures(report.reason)
        )
        for finding in report.findings:
            if finding.severity is not Severity.INFO:
                assert finding.code in text, form


def test_attention_and_optimizer_are_named_apart_wherever_they_are_left_out(report: Report) -> None:
    shown = grid(report, "GEMM time")
    if shown is None:
        return
    apart = {row[0].rpartition(", ")[2].rstrip(")") for row in shown.rows if row[0][0] == "("}
    assert ("attention" in apart) == bool(sum(report.attention_gemm.kernels.values()))
    assert ("optimizer" in apart) == bool(sum(report.optimizer_gemm.kernels.values()))
    assert shown.names[3] == ("of layers" if apart else "share")


def test_ranks_share_one_cause_and_one_finding(report: Report) -> None:
    kinds = [
        (found.code, found.severity, found.hint) for found in report.findings if found.per_rank
    ]
    several = [found for found in report.findings if found.code == "fp8-not-paying"]
    assert len(several) <= 1
    assert len(report.ranks) == 1 or len(kinds) == len(set(kinds))

"""Every form of the report: what it says, and that names and log lines stay text in it."""

from __future__ import annotations

import csv
import io
import pickle
from pathlib import Path
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from fp8verify import Policy, Report, inspect
from fp8verify.model.verdict import Finding
from fp8verify.report import REPORT_FORMS, forms
from fp8verify.report.markup import markdown
from fp8verify.terms import Severity
from tests.captures import report_of
from tests.hand_built import TraceBuilder

OF_EACH_VERDICT = (
    *("fp8_compiled", "fp8_accelerate", "ddp_one_rank_bf16", "bf16_compiled"),
    *("bf16_filter_rejects_all", "fp8_emulated", "fp8_one_step_bf16"),
)
EVIL = "a|b\x1b[2J`<script>alert(1)</script>`*x*\n::error::owned,%0A ]]> &amp; @team #1 \x00\ud800=1"


def _evil(report: Report) -> Report:
    """Put hostile text wherever text from outside can be."""
    rank = report.ranks[0]
    assert rank.clock is not None
    clock = replace(rank.clock, counts=EVIL, steps_skipped=1)
    kernel = replace(rank.kernels[0], name=EVIL, op=f"={EVIL}", reason=EVIL)
    finding = Finding(code="emulated", severity=Severity.ERROR, message=EVIL, hint=EVIL)
    claims = tuple(replace(claim, text=EVIL, source=EVIL) for claim in report.claims)
    return replace(
        report,
        reason=EVIL,
        ranks=(
            replace(
                rank,
                source=EVIL,
                reason=EVIL,
                clock=clock,
                kernels=(kernel, *rank.kernels),
            ),
        )
        * 2,
        findings=(finding,),
        claims=claims,
        notes=(EVIL,),
    )


@pytest.fixture(scope="module")
def silent() -> Report:
    return report_of("bf16_filter_rejects_all")


@pytest.mark.parametrize("form", REPORT_FORMS)
def test_gemms_that_took_no_time_are_reported(form: str, tmp_path: Path) -> None:
    build = TraceBuilder().linear(64, 32, 16, fp8=True)
    for event in build.events:
        if event["cat"] == "kernel":
            event["dur"] = 0
    build.write(tmp_path / "trace.json")
    assert forms.render(inspect(tmp_path / "trace.json"), form)


@pytest.mark.parametrize("form", [form for form in REPORT_FORMS if form != "json"])
def test_nothing_in_a_report_can_steer_a_terminal(form: str, silent: Report) -> None:
    text = forms.render(_evil(silent), form)
    assert [
        c
        for c in text
        if not (c.isprintable() or c == "\n" or (form == "csv" and c == "\r"))
    ] == []


# -- github -------------------------------------------------------------------------------------


def test_github_annotates_a_silent_failure_as_an_error(silent: Report) -> None:
    first, *rest = forms.render(silent, "github").splitlines()
    title = "FP8 CONTRADICTED%3A claimed-not-active"
    assert first.startswith(
        f"::error title={title}::The log claims FP8 (line 7), but all 135"
    )
    assert not any("claimed-not-active" in line for line in rest)


# -- junit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_EACH_VERDICT)
@pytest.mark.parametrize(
    "policy", [Policy(), Policy(strict=True), Policy(exit_zero=True)]
)
def test_junit_fails_exactly_if_the_run_does_whatever_the_exit_code_is(
    name: str, policy: Policy
) -> None:
    report = report_of(name, policy)
    suite = Xml.fromstring(forms.render(report, "junit"))[0]
    failing = int(suite.get("failures", "")) + int(suite.get("errors", ""))
    assert (failing > 0) == report.fails
    assert report.fails == (report_of(name, Policy(strict=policy.strict)).exit_code > 0)
    assert int(suite.get("tests", "")) == len(suite.findall("testcase"))


def test_junit_names_the_rank_that_failed() -> None:
    report = report_of("ddp_one_rank_bf16", Policy(strict=True))
    suite = Xml.fromstring(forms.render(report, "junit"))[0]
    failed = {case.get("name"): case.find("failure") for case in suite}
    assert [name for name, found in failed.items() if found is not None] == [
        "run",
        "rank 1",
    ]
    assert "CONTRADICTED" in str(getattr(failed["rank 1"], "attrib", ""))
    assert {case.get("classname") for case in suite} == {report.name}


# -- markdown -----------------------------------------------------------------------------------


def _html(markdown: str) -> str:
    return MarkdownIt("gfm-like", {"linkify": False}).render(markdown)


def test_markdown_says_the_verdict_the_shares_and_the_findings() -> None:
    html = _html(forms.render(report_of("ddp_one_rank_bf16"), "markdown"))
    assert "FP8 PARTIAL  ddp_one_rank_bf16 · NVIDIA H200" in html
    assert html.count("<table>") >= 4
    assert "<code>rank-without-fp8</code>" in html
    assert "<td>1</td>\n<td>CONTRADICTED</td>" in html


@given(st.text(max_size=60))
def test_escaped_markdown_is_one_paragraph_of_plain_text(text: str) -> None:
    html = MarkdownIt("gfm-like", {"linkify": False}).render(f"x {markdown(text)} x")
    tags = html.replace("<p>", "").replace("</p>", "")
    assert "<" not in tags


# -- csv and notebook ---------------------------------------------------------------------------


def test_csv_has_a_row_for_each_kind_on_each_rank() -> None:
    report = report_of("ddp_one_rank_bf16")
    rows = list(csv.DictReader(io.StringIO(forms.render(report, "csv"))))
    assert len(rows) == sum(len(rank.kernels) for rank in report.ranks)
    times = sum(float(row["time_us"]) for row in rows)
    assert times == pytest.approx(sum(report.gpu_time_us.values()), abs=0.1)
    assert {row["run"] for row in rows} == {"ddp_one_rank_bf16"}
    gemm = next(row for row in rows if row["role"] == "gemm")
    assert gemm["dims"].split()[0].count("x") == 1


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_no_csv_cell_is_a_formula(first: str, silent: Report) -> None:
    text = forms.render(replace(silent, name=f"{first}1+1"), "csv")
    assert text.splitlines()[1].rsplit(",", 1)[1][:1] in (
        "'",
        "\N{REPLACEMENT CHARACTER}",
    )


# -- the command line ---------------------------------------------------------------------------


def test_a_report_keeps_its_forms_on_every_way_back() -> None:
    report = report_of("fp8_compiled")
    decoded = msgspec.json.decode(report.to_json(), type=Report)
    for same in (
        pickle.loads(pickle.dumps(report)),
        replace(report, notes=()),
        decoded,
    ):
        assert isinstance(same, Report)
        assert same.to_json() == report.to_json()
        assert same == report


def test_hostile_text_leaves_the_structure_of_every_form(silent: Report) -> None:
    evil = _evil(silent)
    suite = Xml.fromstring(forms.render(evil, "junit"))[0]
    assert "<script>alert(1)</script>" in "".join(suite.itertext())
    rows = list(csv.reader(io.StringIO(forms.render(evil, "csv"))))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[1][5].startswith("'=")
    html = _html(forms.render(evil, "markdown"))
    assert "<script" not in html + forms.render(evil, "notebook")
    assert "<em>x</em>" not in html
    assert html.count("<tr>") == html.count("</tr>")
    table = html.split("<table>")[-1]
    assert table.split("<tbody>")[1].split("</tr>")[0].count("<td") == table.count(
        "</th>"
    )
    finding = Finding(code="a:b,c", severity=Severity.INFO, message=EVIL, hint="")
    _, second = forms.render(
        replace(silent, findings=(finding,)), "github"
    ).splitlines()
    assert second.startswith("::notice title=FP8 a%3Ab%2Cc::a|b")
    assert "%0A::error::owned,%250A" in second
    assert "CONTRADICTED" in silent._repr_html_()


@pytest.mark.parametrize("name", OF_EACH_VERDICT)
def test_the_outcome_is_that_of_the_page_which_is_not_laid_out_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_of(name)
    page = forms.page_of(report)
    monkeypatch.setattr(forms, "page_of", None)
    assert forms.outcome(report) == f"{page.verdict}, {page.exit.partition(':')[0]}"

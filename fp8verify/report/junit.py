"""The report as JUnit XML, which CI servers show as tests: the run, and each of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as Xml

from fp8verify.report.escape import printable
from fp8verify.report.model import RankReport, Report, Verdict
from fp8verify.report.tables import by_severity, layer_share, percent, rank_label, shown_findings


def write_junit(report: Report) -> str:
    """Render the report; something fails in it exactly if the run fails, also with --exit-zero.

    A rank that cannot be judged is an error, as a test that could not run; the others that are not
    ACTIVE are failures. The class of each is the run's name, by which CI servers tell runs apart.
    """
    cases = list(_cases(report))
    for case in cases:
        case.set("classname", printable(report.name))
    suite = Xml.Element("testsuite", name="fp8verify", tests=str(len(cases)))
    for kind, attribute in (("failure", "failures"), ("error", "errors")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    suite.extend(cases)
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, "unicode") + "\n"


def _cases(report: Report) -> Iterator[Xml.Element]:
    failed = report.fails
    yield _case("run", report.verdict, report.reason, _findings(report), failed=failed)
    if len(report.ranks) > 1:
        for rank in report.ranks:
            share = f"{percent(layer_share(rank))} of layers' GEMM time in FP8: {rank.source}"
            failed_too = failed and rank.verdict is not Verdict.ACTIVE
            yield _case(_name(rank), rank.verdict, rank.reason, share, failed=failed_too)


def _name(rank: RankReport) -> str:
    return printable(rank_label(rank))


def _case(name: str, verdict: Verdict, reason: str, text: str, *, failed: bool) -> Xml.Element:
    case = Xml.Element("testcase", name=name, time="0")
    head = printable(f"FP8 {verdict.value}: {reason}")
    lines = "\n".join(map(printable, text.split("\n")))
    if failed:
        kind = "error" if verdict is Verdict.INCONCLUSIVE else "failure"
        Xml.SubElement(case, kind, type=verdict.value, message=head).text = lines
    else:
        Xml.SubElement(case, "system-out").text = f"{head}\n{lines}"
    return case


def _findings(report: Report) -> str:
    return "\n".join(
        f"{finding.severity.value} [{finding.code}] {finding.message}\n    {finding.hint}".rstrip()
        for finding in by_severity(shown_findings(report))
    )

"""The writers of Markdown, and of what CI servers read: GitHub's annotations and JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as Xml

from fp8verify.report.model.parts import Finding
from fp8verify.report.model.report import Report
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Page
from fp8verify.report.tables import layer_share, percent, rank_label
from fp8verify.terms import Severity, Verdict
from fp8verify.text import printable

_ROWS = 64
_SIGNS = {GOOD: "✅", FAIR: "⚠️", BAD: "❌"}
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")


def write_markdown(page: Page) -> str:
    """Write GitHub-flavoured Markdown; names and log lines are escaped, so that they stay text."""
    return "\n\n".join(_blocks(page)) + "\n"


def _blocks(page: Page) -> Iterator[str]:
    if page.verdict:
        yield f"## {_SIGNS[page.tone]} FP8 {page.verdict}"
        yield f"{markdown(page.reason)}."
    if page.pays is not None:
        yield f"**Does it pay?** {markdown(page.pays.text)}."
    if page.findings:
        yield "\n".join(map(_finding, page.findings))
    yield from (f"**To do:** {markdown(text)}" for text in page.to_do)
    for part in page.body:
        yield markdown(part) if isinstance(part, str) else _section(part)
    if page.notes:
        yield "\n".join(f"- {note.label}: {markdown(note.text)}" for note in page.notes)
    if page.head:
        yield f"<sub>{' · '.join(map(markdown, filter(None, [page.head, page.software])))}</sub>"


def _finding(finding: Finding) -> str:
    head = f"- **{finding.severity.value}** `{finding.code}`: {markdown(finding.message)}"
    label = "Tip" if finding.severity is Severity.INFO else "To do"
    return f"{head}  \n  {label}: {markdown(finding.hint)}" if finding.hint else head


def _section(grid: Grid) -> str:
    shown = grid.head(_ROWS)
    lines = [line.replace(" with --verbose", "") for line in (shown.above, *shown.below)]
    above, *below = map(markdown, lines)
    parts = "\n\n".join(filter(None, [above, _table(shown) if shown.rows else "", *below]))
    if grid.folded:
        return f"<details><summary>{grid.title}</summary>\n\n{parts}\n\n</details>"
    return f"**{grid.title}**\n\n{parts}"


def _table(grid: Grid) -> str:
    rule = ["---" if name in grid.words else "---:" for name in grid.names]
    head, *rows = [tuple(map(markdown, row)) for row in (grid.names, *grid.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def markdown(text: str) -> str:
    """Escape text for a paragraph or table cell of GitHub-flavoured Markdown."""
    safe = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", safe).replace("@", "&#64;").replace("#", "&#35;")


def write_github(page: Page) -> str:
    """Write the verdict and the findings as workflow commands, one a line."""
    gain = f"\nDoes it pay? {page.pays_briefly}." if page.pays else ""
    level = "error" if page.fails else "notice" if page.tone == GOOD else "warning"
    lines = [annotation(level, f"FP8 {page.verdict}", f"{page.reason} ({page.name}).{gain}")]
    for finding in page.findings:
        text = f"{finding.message}\n{finding.hint}" if finding.hint else finding.message
        lines.append(annotation(_LEVELS[finding.severity], f"FP8 {finding.code}", text))
    return "".join(f"{line}\n" for line in lines)


def annotation(
    level: str, title: str, message: str, *, file: str | None = None, line: int | None = None
) -> str:
    """Return a workflow command of GitHub Actions, escaped as actions/runner 2.x reads it.

    Args:
        level: error, warning or notice.
        title: what it is about.
        message: lines of text.
        file: the file that it is about, if any.
        line: the line of the file.
    """
    place = f"file={_property(file)}," if file else ""
    place += f"line={line}," if file and line else ""
    return f"::{level} {place}title={_property(title)}::{_escape(_lines(message))}"


def _property(text: str) -> str:
    return _escape(printable(text)).replace(":", "%3A").replace(",", "%2C")


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _lines(text: str) -> str:
    """Return printable text that keeps its line ends."""
    return "\n".join(map(printable, text.split("\n")))


def write_junit(report: Report, page: Page) -> str:
    """Write the run and each of its ranks as a test.

    Something fails in it exactly if the run fails, also with --exit-zero. A rank that cannot be
    judged is an error, as a test that could not run; the others that are not ACTIVE are failures.
    The class of each is the run's name, by which CI servers tell runs apart.
    """
    findings = "\n".join(
        f"{finding.severity.value} [{finding.code}] {finding.message}\n    {finding.hint}".rstrip()
        for finding in page.findings
    )
    cases = [_case("run", report.verdict, report.reason, findings, failed=report.fails)]
    for rank in report.ranks if len(report.ranks) > 1 else ():
        text = f"{percent(layer_share(rank))} of layers' GEMM time in FP8: {rank.source}"
        failed = report.fails and rank.verdict is not Verdict.ACTIVE
        cases.append(_case(rank_label(rank), rank.verdict, rank.reason, text, failed=failed))
    suite = Xml.Element("testsuite", name="fp8verify", tests=str(len(cases)))
    for kind, attribute in (("failure", "failures"), ("error", "errors")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    for case in cases:
        case.set("classname", printable(report.name))
    suite.extend(cases)
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, "unicode") + "\n"


def _case(name: str, verdict: Verdict, reason: str, text: str, *, failed: bool) -> Xml.Element:
    case = Xml.Element("testcase", name=printable(name), time="0")
    head = printable(f"FP8 {verdict.value}: {reason}")
    if failed:
        kind = "error" if verdict is Verdict.INCONCLUSIVE else "failure"
        Xml.SubElement(case, kind, type=verdict.value, message=head).text = _lines(text)
    else:
        Xml.SubElement(case, "system-out").text = f"{head}\n{_lines(text)}"
    return case

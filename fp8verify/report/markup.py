"""The writers of Markdown, and of what CI servers read: GitHub's annotations and JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree as Xml

from fp8verify.model.report import Report
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Page
from fp8verify.report.tables import percent
from fp8verify.terms import Severity, Verdict
from fp8verify.text import printable

_ROWS = 64
_SIGNS = {GOOD: "✅", FAIR: "⚠️", BAD: "❌"}
_LEVELS = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "notice",
}
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")


def write_markdown(page: Page) -> str:
    """Write GitHub-flavored Markdown; names and log lines are escaped, so they stay text."""
    return "\n\n".join(_blocks(page)) + "\n"


def _blocks(page: Page) -> Iterator[str]:
    if page.verdict:
        run = " · ".join(map(markdown, page.run))
        yield f"## {_SIGNS[page.tone]} FP8 {markdown(page.verdict)}  {run}"
        yield f"{markdown(page.sentence)}."
    if page.proof is not None:
        yield _section(page.proof)
    yield from _list(_told(page))
    for part in (*page.requested, *page.body):
        yield markdown(part) if isinstance(part, str) else _section(part)
    yield from _list([f"{note.label}: {markdown(note.text)}" for note in page.notes])
    if page.exit:
        yield f"**{markdown(page.exit)}**"
    if page.software:
        yield f"<sub>{markdown(page.software)}</sub>"


def _list(items: Iterable[str]) -> Iterator[str]:
    if lines := [f"- {item}" for item in items]:
        yield "\n".join(lines)


def _told(page: Page) -> Iterator[str]:
    for note in page.told():
        if note.finding is not None and note.label != "fix":
            code = f" `{note.finding.code}`"
        else:
            code = ""
        yield f"**{note.label}**{code}: {markdown(note.text)}"


def _section(grid: Grid) -> str:
    shown = grid.head(_ROWS)
    lines = [line.replace(" with -v", "") for line in (shown.above, *shown.below)]
    above, *below = map(markdown, lines)
    parts = "\n\n".join(
        filter(None, [above, _table(shown) if shown.rows else "", *below])
    )
    if grid.folded:
        return f"<details><summary>{grid.title}</summary>\n\n{parts}\n\n</details>"
    return f"**{grid.title}**\n\n{parts}"


def _table(grid: Grid) -> str:
    rule = ["---" if words else "---:" for words in grid.words]
    head, *rows = [tuple(map(markdown, row)) for row in (grid.names, *grid.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def markdown(text: str) -> str:
    """Escape text for a paragraph or table cell of GitHub-flavored Markdown."""
    safe = (
        printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )
    return _SPECIAL.sub(r"\\\1", safe).replace("@", "&#64;").replace("#", "&#35;")


def write_github(page: Page) -> str:
    """Write the verdict and the findings as workflow commands, one a line.

    The first one says what failed: the verdict, or the gate that an ACTIVE run does not pass.
    """
    if page.fails:
        level = "error"
    elif page.tone == GOOD:
        level = "notice"
    else:
        level = "warning"
    cause = next((one for one in page.reports if one.code == page.cause), None)
    lines = [f"{page.sentence} ({page.name})."]
    lines += [page.fix] if cause is None else [cause.message, cause.hint]
    lines += [f"{note.label}: {note.text}" for note in page.sources]
    lines += (
        [f"{page.speed.label}: {page.speed.text}"] if page.speed is not None else []
    )
    if cause is None:
        title = f"FP8 {page.verdict}"
    else:
        title = f"FP8 {page.verdict}: {cause.code}"
    written = [annotation(level, title, "\n".join([*filter(None, lines), page.exit]))]
    for finding in page.findings:
        if finding is not cause:
            if finding.hint:
                text = f"{finding.message}\n{finding.hint}"
            else:
                text = finding.message
            written.append(
                annotation(_LEVELS[finding.severity], f"FP8 {finding.code}", text)
            )
    return "".join(f"{line}\n" for line in written)


def annotation(
    level: str,
    title: str,
    message: str,
    *,
    file: str | None = None,
    line: int | None = None,
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
    told = (f"{note.label:8} {note.coded()}" for note in page.told(verbose=True))
    head = f"FP8 {page.verdict}: {page.sentence}"
    if page.fails and report.verdict in (Verdict.ACTIVE, Verdict.PARTIAL):
        head = f"{report.exit_reason} (FP8 {page.verdict}: {page.sentence})"
    text = "\n".join([*told, page.exit])
    cases = [_case("run", report.verdict, head, text, failed=report.fails)]
    for rank in report.ranks if len(report.ranks) > 1 else ():
        text = f"{percent(rank.layer_share)} of layers' GEMM time in FP8: {rank.source}"
        failed = report.fails and rank.verdict is not Verdict.ACTIVE
        head = f"FP8 {rank.verdict.value}: {rank.reason}"
        cases.append(_case(rank.label, rank.verdict, head, text, failed=failed))
    suite = Xml.Element("testsuite", name="fp8verify", tests=str(len(cases)))
    for kind, attribute in (("failure", "failures"), ("error", "errors")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    for case in cases:
        case.set("classname", printable(report.name))
    suite.extend(cases)
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        + Xml.tostring(root, "unicode")
        + "\n"
    )


def _case(
    name: str, verdict: Verdict, head: str, text: str, *, failed: bool
) -> Xml.Element:
    case = Xml.Element("testcase", name=printable(name), time="0")
    if failed:
        kind = "failure"
        if verdict is Verdict.INCONCLUSIVE:
            kind = "error"
        message = printable(head)
        Xml.SubElement(case, kind, type=verdict.value, message=message).text = _lines(
            text
        )
    else:
        Xml.SubElement(case, "system-out").text = f"{printable(head)}\n{_lines(text)}"
    return case

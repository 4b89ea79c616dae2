"""The writers of Markdown, and of what CI servers read: GitHub's annotations and JUnit XML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from xml.etree import ElementTree as Xml

from fp8verify.model.report import RankReport, Report
from fp8verify.patterns import lazy_pattern
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
_SPECIAL = lazy_pattern(r"([\\`*_\[\]|~])")


def write_markdown(page: Page) -> str:
    """Write GitHub-flavored Markdown; names and log lines are escaped, so they stay text."""
    return "\n\n".join(_blocks(page)) + "\n"


def _blocks(page: Page) -> Iterator[str]:
    if page.verdict:
        run = " · ".join(map(markdown, page.run))
        yield f"## {_SIGNS[page.tone]} FP8 {markdown(page.verdict)}  {run}"
        yield markdown(page.statement)
    if page.proof is not None:
        yield _section(page.proof)
    yield from _list(_told(page))
    for part in (*page.requested, *page.body):
        yield markdown(part) if isinstance(part, str) else _section(part)
    notes = [f"{note.label}: {markdown(note.text)}" for note in page.notes]
    yield from _list(notes)
    if page.exit:
        yield f"**{markdown(page.exit)}**"
    if page.software:
        yield f"<sub>{markdown(page.software)}</sub>"


def _list(items: Iterable[str]) -> Iterator[str]:
    lines = [f"- {item}" for item in items]
    if lines:
        yield "\n".join(lines)


def _told(page: Page) -> Iterator[str]:
    for note in page.told():
        code = ""
        if note.finding is not None and note.label != "fix":
            code = f" `{note.finding.code}`"
        yield f"**{note.label}**{code}: {markdown(note.text)}"


def _section(grid: Grid) -> str:
    shown = grid.head(_ROWS)
    parts = [_note(shown.above)]
    if shown.rows:
        parts.append(_table(shown))
    parts += map(_note, shown.below)
    text = "\n\n".join(filter(None, parts))
    if grid.folded:
        return f"<details><summary>{grid.title}</summary>\n\n{text}\n\n</details>"
    return f"**{grid.title}**\n\n{text}"


def _note(line: str) -> str:
    """Return a line of a table; in a file there is no -v."""
    return markdown(line.replace(" with -v", ""))


def _table(grid: Grid) -> str:
    rule = []
    for words in grid.words:
        rule.append("---" if words else "---:")
    lines = [_row_of_text(grid.names), _row(rule)]
    lines += map(_row_of_text, grid.rows)
    return "\n".join(lines)


def _row_of_text(cells: Iterable[str]) -> str:
    escaped = map(markdown, cells)
    return _row(escaped)


def _row(cells: Iterable[str]) -> str:
    joined = " | ".join(cells)
    return f"| {joined} |"


def markdown(text: str) -> str:
    """Escape text for a paragraph or table cell of GitHub-flavored Markdown."""
    safe = printable(text)
    safe = safe.replace("&", "&amp;")
    safe = safe.replace("<", "&lt;")
    safe = safe.replace(">", "&gt;")
    safe = _SPECIAL.sub(r"\\\1", safe)
    safe = safe.replace("@", "&#64;")
    return safe.replace("#", "&#35;")


def write_github(page: Page) -> str:
    """Write the verdict and the findings as workflow commands, one a line.

    The first one says what failed: the verdict, or the gate that an ACTIVE run does not pass.
    """
    level = "warning"
    if page.fails:
        level = "error"
    elif page.tone == GOOD:
        level = "notice"
    causes = [one for one in page.reports if one.code == page.cause]
    cause = causes[0] if causes else None
    title = f"FP8 {page.verdict}"
    lines = [f"{page.sentence} ({page.name})."]
    if cause is None:
        lines.append(page.fix)
    else:
        title = f"{title}: {cause.code}"
        lines += [cause.message, cause.hint]
    for note in page.sources:
        lines.append(f"{note.label}: {note.text}")
    if page.speed is not None:
        lines.append(f"{page.speed.label}: {page.speed.text}")
    lines.append(page.exit)
    said = "\n".join(filter(None, lines))
    written = [annotation(level, title, said)]
    for finding in page.findings:
        if finding is not cause:
            text = "\n".join(filter(None, [finding.message, finding.hint]))
            of_finding = _LEVELS[finding.severity]
            written.append(annotation(of_finding, f"FP8 {finding.code}", text))
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
    place = ""
    if file:
        place = f"file={_property(file)},"
        if line:
            place += f"line={line},"
    return f"::{level} {place}title={_property(title)}::{_escape(_lines(message))}"


def _property(text: str) -> str:
    safe = _escape(printable(text))
    safe = safe.replace(":", "%3A")
    return safe.replace(",", "%2C")


def _escape(text: str) -> str:
    safe = text.replace("%", "%25")
    safe = safe.replace("\r", "%0D")
    return safe.replace("\n", "%0A")


def _lines(text: str) -> str:
    """Return printable text that keeps its line ends."""
    return "\n".join(map(printable, text.split("\n")))


def write_junit(report: Report, page: Page) -> str:
    """Write the run and each of its ranks as a test.

    Something fails in it exactly if the run fails, also with --exit-zero. A rank that cannot be
    judged is an error, as a test that could not run; the others that are not ACTIVE are failures.
    The class of each is the run's name, by which CI servers tell runs apart.
    """
    head = f"FP8 {page.verdict}: {page.sentence}"
    is_gate = report.verdict in (Verdict.ACTIVE, Verdict.PARTIAL)
    if page.fails and is_gate:
        head = f"{report.exit_reason} (FP8 {page.verdict}: {page.sentence})"
    lines = []
    for note in page.told(verbose=True):
        said = note.coded()
        lines.append(f"{note.label:8} {said}")
    lines.append(page.exit)
    text = "\n".join(lines)
    whole = _case("run", report.verdict, head, text, failed=report.fails)
    cases = [whole]
    if len(report.ranks) > 1:
        for rank in report.ranks:
            cases.append(_case_of_rank(report, rank))
    suite = Xml.Element("testsuite", name="fp8verify")
    suite.set("tests", str(len(cases)))
    suite.set("failures", _count_of("failure", cases))
    suite.set("errors", _count_of("error", cases))
    name = printable(report.name)
    for case in cases:
        case.set("classname", name)
    suite.extend(cases)
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    text = Xml.tostring(root, "unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _count_of(kind: str, cases: Iterable[Xml.Element]) -> str:
    count = 0
    for case in cases:
        if case.find(kind) is not None:
            count += 1
    return str(count)


def _case_of_rank(report: Report, rank: RankReport) -> Xml.Element:
    share = percent(rank.layer_share)
    return _case(
        rank.label,
        rank.verdict,
        f"FP8 {rank.verdict.value}: {rank.reason}",
        f"{share} of layers' GEMM time in FP8: {rank.source}",
        failed=report.fails and rank.verdict is not Verdict.ACTIVE,
    )


def _case(
    name: str, verdict: Verdict, head: str, text: str, *, failed: bool
) -> Xml.Element:
    case = Xml.Element("testcase", name=printable(name), time="0")
    if not failed:
        output = Xml.SubElement(case, "system-out")
        output.text = f"{printable(head)}\n{_lines(text)}"
        return case
    kind = "failure"
    if verdict is Verdict.INCONCLUSIVE:
        kind = "error"
    found = Xml.SubElement(
        case,
        kind,
        type=verdict.value,
        message=printable(head),
    )
    found.text = _lines(text)
    return case

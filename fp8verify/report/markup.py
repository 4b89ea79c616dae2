"""The writers of Markdown, of GitHub's annotations, and of HTML for notebooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from html import escape

from fp8verify.report.escape import code, markdown, printable
from fp8verify.report.model import Finding, Severity
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Page

_ROWS = 64
_SIGNS = {GOOD: "✅", FAIR: "⚠️", BAD: "❌"}
_COLOURS = {GOOD: "#1a7f37", FAIR: "#9a6700", BAD: "#cf222e"}
# GitHub shows ten annotations of each kind for a step; one is the verdict's.
_ANNOTATIONS = 9
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


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
    head = f"- **{finding.severity.value}** {code(finding.code)}: {markdown(finding.message)}"
    return f"{head}  \n  To do: {markdown(finding.hint)}" if finding.hint else head


def _section(grid: Grid) -> str:
    shown = grid.head(_ROWS)
    lines = [line.replace(" with --verbose", "") for line in (shown.above, *shown.below)]
    above, *below = (markdown(line) for line in lines)
    table = markdown_table(shown) if shown.rows else ""
    parts = "\n\n".join(filter(None, [above, table, *below]))
    if grid.folded:
        return f"<details><summary>{grid.title}</summary>\n\n{parts}\n\n</details>"
    return f"**{grid.title}**\n\n{parts}"


def markdown_table(grid: Grid) -> str:
    """Write a table."""
    rule = ["---" if name in grid.words else "---:" for name in grid.names]
    rows = [tuple(map(markdown, row)) for row in (grid.names, *grid.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], rule, *rows[1:]))


def write_github(page: Page) -> str:
    """Write the verdict and the findings as workflow commands, one a line."""
    return "".join(f"{line}\n" for line in _commands(page))


def _commands(page: Page) -> Iterator[str]:
    gain = f"\nDoes it pay? {page.pays_briefly}." if page.pays else ""
    yield annotation(page.level, f"FP8 {page.verdict}", f"{page.reason} ({page.name}).{gain}")
    by_severity: dict[Severity, list[Finding]] = defaultdict(list)
    for finding in page.findings:
        by_severity[finding.severity].append(finding)
    for severity, level in _LEVELS.items():
        found = by_severity[severity]
        for finding in found[:_ANNOTATIONS]:
            text = f"{finding.message}\n{finding.hint}" if finding.hint else finding.message
            yield annotation(level, f"FP8 {finding.code}", text)
        if len(found) > _ANNOTATIONS:
            yield f"{len(found) - _ANNOTATIONS} more findings of severity {severity.value}"


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
    lines = "\n".join(map(printable, message.split("\n")))
    return f"::{level} {place}title={_property(title)}::{_escape(lines)}"


def _property(text: str) -> str:
    return _escape(printable(text)).replace(":", "%3A").replace(",", "%2C")


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def write_notebook(page: Page) -> str:
    """Write a few lines of HTML for a notebook's cell: verdict, findings, tables."""
    return "\n".join(["<div>", *_fragments(page), "</div>"])


def _fragments(page: Page) -> Iterator[str]:
    if page.verdict:
        verdict = f'<strong style="color: {_COLOURS[page.tone]}">{_text(page.verdict)}</strong>'
        yield f"<p>{verdict} {_text(page.reason)}. <i>{_text(page.name)}</i></p>"
    if page.pays is not None:
        yield f"<p>Does it pay? {_text(page.pays.text)}.</p>"
    if page.findings:
        yield f"<ul>{''.join(map(_item, page.findings))}</ul>"
    for grid in page.grids:
        if not grid.folded:
            yield f"<p><b>{_text(grid.title)}</b></p>{_table(grid.head(_ROWS))}"


def _item(finding: Finding) -> str:
    hint = f"<br><small>{_text(finding.hint)}</small>" if finding.hint else ""
    head = f"<b>{finding.severity.value}</b> <code>{_text(finding.code)}</code>"
    return f"<li>{head} {_text(finding.message)}{hint}</li>"


def _table(grid: Grid) -> str:
    rows = (
        f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in row)}</tr>"
        for tag, row in (("th", grid.names), *(("td", row) for row in grid.rows))
    )
    return f"<table>{''.join(rows)}</table>"


def _text(text: str) -> str:
    return escape(printable(text))

"""Results in a notebook cell, in HTML of a few lines: of a report verdict, GEMM time, findings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from html import escape

from fp8verify.report.comparison_tables import grids, word
from fp8verify.report.escape import printable
from fp8verify.report.grid import Grid
from fp8verify.report.model import Finding, Report, Verdict
from fp8verify.report.model.comparison import Comparison
from fp8verify.report.model.run_table import RunTable
from fp8verify.report.naming import run_name
from fp8verify.report.run_table_forms import grid
from fp8verify.report.tables import gravest_first, millis, percent, precision_rows, told_findings
from fp8verify.report.worth import told_worth, worth

_COLOURS = {Verdict.ACTIVE: "#1a7f37", Verdict.PARTIAL: "#9a6700", Verdict.INCONCLUSIVE: "#9a6700"}
_OTHER_COLOUR = "#cf222e"


@singledispatch
def to_notebook(found: object) -> str:
    """Render a report, a comparison or a table of runs for `_repr_html_`; pages say more."""
    raise TypeError(f"{type(found).__name__} has no form for notebooks")


@to_notebook.register
def _report(report: Report) -> str:
    return "\n".join(_parts(report))


def _parts(report: Report) -> Iterator[str]:
    colour = _COLOURS.get(report.verdict, _OTHER_COLOUR)
    verdict = f'<strong style="color: {colour}">{report.verdict.value}</strong>'
    yield f"<div><p>{verdict} {_text(report.reason)}. <i>{_text(run_name(report))}</i></p>"
    found = worth(report)
    if found is not None:
        yield f"<p>Does it pay? {_text(told_worth(report, found))}.</p>"
    rows = precision_rows(report.gemm)
    if rows:
        yield "<table><tr><th>GEMM time</th><th>kernels</th><th>ms</th><th>share</th></tr>"
        for row in rows:
            cells = (row.precision, str(row.kernels), millis(row.time_us), percent(row.share))
            yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        yield "</table>"
    if report.findings:
        yield f"<ul>{''.join(map(_finding, gravest_first(told_findings(report))))}</ul>"
    yield "</div>"


@to_notebook.register
def _comparison(found: Comparison) -> str:
    """Render a comparison: its verdict, findings and tables."""
    notes = "".join(map(_finding, found.findings))
    tables = "".join(f"<p><b>{one.title}</b></p>{_table(one)}" for one in grids(found))
    head = f"<p><strong>{word(found)}</strong> {_text(found.reason)}.</p>"
    return f"<div>{head}<ul>{notes}</ul>{tables}</div>"


@to_notebook.register
def _run_table(found: RunTable) -> str:
    return f"<div>{_table(grid(found))}</div>"


def _table(shown: Grid) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in shown.names)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in shown.rows
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _finding(finding: Finding) -> str:
    hint = f"<br><small>{_text(finding.hint)}</small>" if finding.hint else ""
    head = f"<b>{finding.severity.value}</b> <code>{_text(finding.code)}</code>"
    return f"<li>{head} {_text(finding.message)}{hint}</li>"


def _text(text: str) -> str:
    return escape(printable(text))

"""The forms of results, each imported when it is asked for: text needs rich, html jinja2."""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.report.model import Report
from fp8verify.report.page_of import Result, page_of

NAMES = ("text", "json", "html", "markdown", "github", "junit", "csv")
COMPARISON_NAMES = ("text", "json", "html", "markdown", "github", "csv")
TABLE_NAMES = ("text", "json", "csv", "markdown", "html")


class RenderOptions(NamedTuple):
    """How to render, for the forms that leave a choice.

    Attributes:
        terminal: whether the text goes to a terminal, which shows colours and has a width.
        verbose: whether to show every table.
        width: columns of the text; None for the terminal's, or 80.
    """

    terminal: bool = False
    verbose: bool = False
    width: int | None = None


def render(found: Result, form: str, options: RenderOptions | None = None) -> str:
    """Render a result whole.

    Args:
        found: a report, a comparison or a table of runs.
        form: one of `NAMES`, `COMPARISON_NAMES` or `TABLE_NAMES`.
        options: how, for text.
    """
    terminal, verbose, width = options or RenderOptions()
    if form == "text":
        from fp8verify.report.text import write_text

        page = page_of(found, verbose=verbose)
        return write_text(page, terminal=terminal, verbose=verbose, width=width)
    if form == "json":
        from fp8verify.report.json_form import to_json

        return to_json(found)
    if form == "csv":
        from fp8verify.report.csv_form import write_csv

        return write_csv(found)
    if form == "html":
        from fp8verify.report.html import write_html

        return write_html(found)
    if form == "junit" and isinstance(found, Report):
        from fp8verify.report.junit import write_junit

        return write_junit(found)
    from fp8verify.report import markup

    writers = {
        "markdown": markup.write_markdown,
        "github": markup.write_github,
        "notebook": markup.write_notebook,
    }
    return writers[form](page_of(found))


def brief(found: Result, whole: str = "") -> str:
    """Return a result in at most four lines.

    Args:
        found: a report, a comparison or a table of runs.
        whole: the file of the whole result, or the command that prints it; empty if none can.
    """
    from fp8verify.report.text import brief as brief_text

    return brief_text(page_of(found), whole)

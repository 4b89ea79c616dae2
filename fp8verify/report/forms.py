"""Results and their forms; a writer is imported when its form is needed (text needs rich)."""

from __future__ import annotations

import msgspec

from fp8verify.model.comparison import Comparison, RunTable
from fp8verify.model.report import Report
from fp8verify.report.page import Page
from fp8verify.text import printable


def page_of(result: msgspec.Struct, *, verbose: bool = False) -> Page:
    """Lay out a result as a page, which the writers of most formats take.

    Raises:
        TypeError: it is neither a report nor a comparison nor a table of runs.
    """
    if isinstance(result, Report):
        from fp8verify.report.report_page import report_page

        return report_page(result, verbose=verbose)
    from fp8verify.report.comparison_page import comparison_page, run_table_page

    if isinstance(result, Comparison):
        return comparison_page(result)
    if isinstance(result, RunTable):
        return run_table_page(result, verbose=verbose)
    raise TypeError(f"a {type(result).__name__} has no page")


def render(
    result: msgspec.Struct,
    form: str,
    *,
    terminal: bool = False,
    verbose: bool = False,
    width: int | None = None,
    whole: str = "",
) -> str:
    """Render a result whole.

    Args:
        result: a report, a comparison or a table of runs.
        form: one of the names in `fp8verify.report` that the result has, or "notebook".
        terminal: whether text goes to a terminal, which shows colors and has a width.
        verbose: whether text shows every table.
        width: columns of text; None for the terminal's, or 80.
        whole: the file of the whole result, which text then names; empty if there is none.
    """
    if form == "json":
        return to_json(result)
    if form == "csv" and isinstance(result, (Report, Comparison, RunTable)):
        from fp8verify.report.rows import write_csv

        return write_csv(result)
    shows_all = form == "html"
    if form == "text":
        shows_all = verbose
    page = page_of(result, verbose=shows_all)
    if form == "text":
        from fp8verify.report.text import write_text

        return write_text(
            page, terminal=terminal, verbose=verbose, width=width, whole=whole
        )
    if form in ("html", "notebook"):
        from fp8verify.report import html

        if form == "html":
            return html.write_html(result, page)
        return html.write_notebook(page)
    from fp8verify.report import markup

    if form == "junit" and isinstance(result, Report):
        return markup.write_junit(result, page)
    return {"markdown": markup.write_markdown, "github": markup.write_github}[form](
        page
    )


def to_json(result: msgspec.Struct) -> str:
    """Return a result as indented JSON with a final newline."""
    encoded = msgspec.json.encode(result)
    text = msgspec.json.format(encoded, indent=2).decode()
    return f"{text}\n"


def brief(result: msgspec.Struct, whole: str = "") -> str:
    """Return at most four lines: verdict and run, the sentence, what fails or the speed, the exit.

    Args:
        result: a report, a comparison or a table of runs.
        whole: the file of the whole result, or the command that prints it; empty if none can.
    """
    page = page_of(result)
    run = " · ".join(page.run)
    lines = [f"{page.verdict}  {run}", page.statement]
    worth = [note for note in page.told() if note.label == "error"]
    if page.speed is not None:
        worth.append(page.speed)
    if worth:
        first = worth[0]
        lines.append(f"{first.label:8} {first.coded()}")
    last = page.exit
    if whole:
        last = f"{page.exit} · whole report: {whole}"
    lines.append(last)
    shown = map(printable, lines)
    return "\n".join(shown) + "\n"


def outcome(result: msgspec.Struct) -> str:
    """Return the verdict and the exit code, for whom a result goes into a file.

    No page is laid out for it.

    Raises:
        TypeError: it is neither a report nor a comparison nor a table of runs.
    """
    if isinstance(result, Report):
        from fp8verify.report.report_page import exit_code_of, verdict_of_report

        return f"{verdict_of_report(result)}, exit {exit_code_of(result)}"
    from fp8verify.report.comparison_page import active_of, outcome_word

    if isinstance(result, Comparison):
        return f"{outcome_word(result)}, exit {result.exit_code}"
    if isinstance(result, RunTable):
        return f"{active_of(result)}, exit {result.exit_code}"
    raise TypeError(f"a {type(result).__name__} has no outcome")

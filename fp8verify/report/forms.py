"""Results and their forms; a writer is imported when its form is needed (text needs rich)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import msgspec

from fp8verify.report.model import comparison, report
from fp8verify.report.page import Page
from fp8verify.terms import Severity
from fp8verify.text import printable

if TYPE_CHECKING:
    import pandas as pd

    from fp8verify.report.rows import Frames

Result: TypeAlias = report.Report | comparison.Comparison | comparison.RunTable


def page_of(found: Result, *, verbose: bool = False) -> Page:
    """Lay out a result as a page, which the writers of most formats take."""
    if isinstance(found, report.Report):
        from fp8verify.report.report_page import report_page

        return report_page(found, verbose=verbose)
    from fp8verify.report.comparison_page import comparison_page, run_table_page

    if isinstance(found, comparison.Comparison):
        return comparison_page(found)
    return run_table_page(found, verbose=verbose)


def render(
    found: Result,
    form: str,
    *,
    terminal: bool = False,
    verbose: bool = False,
    width: int | None = None,
) -> str:
    """Render a result whole.

    Args:
        found: a report, a comparison or a table of runs.
        form: one of the names in `fp8verify.report`, or "notebook".
        terminal: whether text goes to a terminal, which shows colours and has a width.
        verbose: whether text shows every table.
        width: columns of text; None for the terminal's, or 80.
    """
    if form == "json":
        return to_json(found)
    if form == "csv":
        from fp8verify.report.rows import write_csv

        return write_csv(found)
    page = page_of(found, verbose=form == "html" or (form == "text" and verbose))
    if form == "text":
        from fp8verify.report.text import write_text

        return write_text(page, terminal=terminal, verbose=verbose, width=width)
    if form in ("html", "notebook"):
        from fp8verify.report import html

        return html.write_html(found, page) if form == "html" else html.write_notebook(page)
    from fp8verify.report import markup

    if form == "junit" and isinstance(found, report.Report):
        return markup.write_junit(found, page)
    return {"markdown": markup.write_markdown, "github": markup.write_github}[form](page)


def to_json(found: msgspec.Struct) -> str:
    """Return a result as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def brief(found: Result, whole: str = "") -> str:
    """Return at most four lines: the verdict, what fails, whether FP8 pays, where the rest is.

    Args:
        found: a report, a comparison or a table of runs.
        whole: the file of the whole result, or the command that prints it; empty if none can.
    """
    page = page_of(found)
    lines = [f"{page.verdict}  {page.reason} ({page.name})."]
    error = next((one for one in page.findings if one.severity is Severity.ERROR), None)
    if error is not None:
        lines.append(f"error    [{error.code}] {error.message}")
    if page.pays is not None:
        lines.append(f"{page.pays.label:8} {page.pays_briefly}")
    if whole:
        lines.append(f"report   {whole}")
    return "".join(f"{printable(line)}\n" for line in lines)


class _Rendered:
    """A result that can render itself."""

    __slots__ = ()

    def to_json(self) -> str:
        """Return the JSON document that `--format json` prints."""
        return render(cast("Result", self), "json")

    def to_html(self) -> str:
        """Return the page that `--format html` writes."""
        return render(cast("Result", self), "html")

    def to_markdown(self) -> str:
        """Return the Markdown that `--format markdown` prints."""
        return render(cast("Result", self), "markdown")

    def to_text(self, *, verbose: bool = False, width: int = 80) -> str:
        """Return the text that the command line prints, without colours."""
        return render(cast("Result", self), "text", verbose=verbose, width=width)

    def _repr_html_(self) -> str:
        return render(cast("Result", self), "notebook")


class _OneTable(_Rendered):
    """A result that is one table in pandas."""

    __slots__ = ()

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows that `--format csv` prints.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report.rows import columns_and_rows, to_frame

        return to_frame(*columns_and_rows(cast("Result", self)))


class Report(_Rendered, report.Report, frozen=True, kw_only=True):
    """The finished report, which can render itself; each form is imported when it is asked for."""

    def to_pandas(self) -> Frames:
        """Return kernels, GEMMs, steps, layers and ranks as DataFrames: `fp8verify.report.rows`.

        Raises:
            UsageError: pandas is not installed.
        """
        from fp8verify.report.rows import to_frames

        return to_frames(self)

    def __repr__(self) -> str:
        return f"Report: {brief(self, 'to_text(), to_html(), to_json(), to_pandas()')}".rstrip()


class Comparison(_OneTable, comparison.Comparison, frozen=True, kw_only=True):
    """A finished comparison, which can render itself."""

    def __repr__(self) -> str:
        return f"Comparison: {brief(self)}".rstrip()


class RunTable(_OneTable, comparison.RunTable, frozen=True, kw_only=True):
    """A table of runs, which can render itself."""

    def __repr__(self) -> str:
        return self.to_text().rstrip()


_Public = TypeVar("_Public", Report, Comparison, RunTable)


def with_forms(kind: type[_Public], found: msgspec.Struct) -> _Public:
    """Return the same result with its forms as methods."""
    return kind(**msgspec.structs.asdict(found))

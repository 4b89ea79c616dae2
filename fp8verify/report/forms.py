"""The forms of a report, each imported when it is asked for: text needs rich, html jinja2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fp8verify.report.model import Report


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


# Renders a report whole. Raises UsageError if the form needs a package that is not installed.
Form = Callable[["Report", RenderOptions], str]


def _text(report: Report, options: RenderOptions) -> str:
    from fp8verify.report.text import to_text

    terminal, verbose, width = options
    return to_text(report, terminal=terminal, verbose=verbose, width=width)


def _json(report: Report, _: RenderOptions) -> str:
    from fp8verify.report.json_form import to_json

    return to_json(report)


def _html(report: Report, _: RenderOptions) -> str:
    from fp8verify.report.html import to_html

    return to_html(report)


def _markdown(report: Report, _: RenderOptions) -> str:
    from fp8verify.report.markdown import to_markdown

    return to_markdown(report)


def _github(report: Report, _: RenderOptions) -> str:
    from fp8verify.report.github import to_github

    return to_github(report)


def _junit(report: Report, _: RenderOptions) -> str:
    from fp8verify.report.junit import to_junit

    return to_junit(report)


def _sarif(report: Report, _: RenderOptions) -> str:
    from fp8verify.report.sarif import to_sarif

    return to_sarif(report)


def _csv(report: Report, _: RenderOptions) -> str:
    from fp8verify.report.csv_form import to_csv

    return to_csv(report)


FORMS: dict[str, Form] = {
    "text": _text,
    "json": _json,
    "html": _html,
    "markdown": _markdown,
    "github": _github,
    "junit": _junit,
    "sarif": _sarif,
    "csv": _csv,
}
NAMES = tuple(FORMS)


def render(report: Report, form: str, options: RenderOptions | None = None) -> str:
    """Render a report in one of `NAMES`.

    Raises:
        UsageError: the form needs a package that is not installed.
    """
    return FORMS[form](report, options or RenderOptions())

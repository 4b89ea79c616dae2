"""The forms of a report: a name each, and where the function is that renders it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from fp8verify.model import Report

# The module is imported when the form is asked for: text needs rich, html needs jinja2.
_FORMS = {
    "text": "text:to_text",
    "json": "json_form:to_json",
    "html": "html:to_html",
    "markdown": "markdown:to_markdown",
    "github": "github:to_github",
    "junit": "junit:to_junit",
    "csv": "csv_form:to_csv",
}
NAMES = tuple(_FORMS)


def render(report: Report, form: str) -> str:
    """Render a report in one of `NAMES`; the text as it is where there is no terminal.

    Raises:
        UsageError: the form needs a package that is not installed.
    """
    module, function = _FORMS[form].split(":")
    found = getattr(import_module(f"fp8verify.report.{module}"), function)
    return cast("Callable[[Report], str]", found)(report)

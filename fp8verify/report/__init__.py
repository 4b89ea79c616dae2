"""The writers of results, one for each form; a writer never judges and never reads a trace."""

from __future__ import annotations

from fp8verify import model

# What a report, a comparison and a table of runs can be written as.
REPORT_FORMS = ("text", "json", "html", "markdown", "github", "junit", "csv")
COMPARISON_FORMS = ("text", "json", "html", "markdown", "github", "csv")
TABLE_FORMS = ("text", "json", "csv", "markdown", "html")


def _writers() -> model.Writers:
    from fp8verify.report import forms

    return forms


model.writers = _writers

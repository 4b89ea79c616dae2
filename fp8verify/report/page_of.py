"""The page of each kind of result: what its writers lay out in their formats."""

from __future__ import annotations

from functools import singledispatch
from typing import TypeAlias

from fp8verify.report.model import Report
from fp8verify.report.model.comparison import Comparison
from fp8verify.report.model.run_table import RunTable
from fp8verify.report.page import Page

Result: TypeAlias = Report | Comparison | RunTable


@singledispatch
def page_of(found: object, *, verbose: bool = False) -> Page:
    """Lay out a report, a comparison or a table of runs as a page."""
    del verbose
    raise TypeError(f"{type(found).__name__} has no page")


@page_of.register
def _(found: Report, *, verbose: bool = False) -> Page:
    from fp8verify.report.report_page import report_page

    return report_page(found, verbose=verbose)


@page_of.register
def _(found: Comparison, *, verbose: bool = False) -> Page:
    from fp8verify.report.comparison_page import comparison_page

    return comparison_page(found, verbose=verbose)


@page_of.register
def _(found: RunTable, *, verbose: bool = False) -> Page:
    from fp8verify.report.run_table_page import run_table_page

    return run_table_page(found, verbose=verbose)

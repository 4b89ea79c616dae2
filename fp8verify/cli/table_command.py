"""`fp8verify table`: many runs side by side, one row each."""

from __future__ import annotations

import sys
from typing import Any

import click

from fp8verify.cli.options import PLACE, ResultOptions, flag, result_options
from fp8verify.cli.output import write_result
from fp8verify.report import TABLE_FORMS


@click.command("table")
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE…", type=PLACE)
@flag("--exit-zero", text="Exit with 0 whatever the verdicts are.")
@result_options(TABLE_FORMS, "Show the reason of each verdict, and full names.")
def command(captures: tuple[str, ...], exit_zero: bool, **given: Any) -> None:
    """Show many runs in one table, one row each: a sweep, or a week of CI.

    \b
    fp8verify table sweep/*/
    fp8verify table nightly-*/ -o week.html
    fp8verify table sweep/*/ --format csv > sweep.csv

    The exit code is the largest one of the runs; 0 means that FP8 ran in all of them.
    """
    from fp8verify.comparison.public import table

    options = ResultOptions.take(given, TABLE_FORMS)
    found = table(*captures, workers=None)
    write_result(found, options)
    sys.exit(0 if exit_zero else found.exit_code)

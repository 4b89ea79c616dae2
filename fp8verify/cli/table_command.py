"""`fp8verify table`: many runs side by side, one row each."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fp8verify.cli.options import files, result_options
from fp8verify.cli.output import form_of, write_result

_FORMS = ("text", "json", "csv", "markdown", "html")


@click.command("table")
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE…", shell_complete=files)
@click.option("--exit-zero", is_flag=True, help="Exit with 0 whatever the verdicts are.")
@result_options(_FORMS, "Show the reason of each verdict, names uncut.")
def command(
    captures: tuple[str, ...],
    exit_zero: bool,
    form: str | None,
    output: Path | None,
    width: int | None,
    verbose: bool,
) -> None:
    """Lay many runs side by side, one row each: a sweep, or a week of CI at a glance.

    \b
    fp8verify table sweep/*/
    fp8verify table nightly-*/ -o week.html
    fp8verify table sweep/*/ --format csv > sweep.csv

    The exit code is the largest of the runs' own: 0 FP8 ran in all of them.
    """
    from fp8verify.compare.public import table

    form = form_of(form, output, _FORMS)
    found = table(*captures, workers=None)
    write_result(found, form, output, width=width, verbose=verbose)
    sys.exit(0 if exit_zero else found.exit_code)

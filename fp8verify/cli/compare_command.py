"""`fp8verify compare`, is the candidate faster; and `fp8verify table`, many runs, one row each."""

from __future__ import annotations

import sys
from typing import Any

import click

from fp8verify.cli.options import (
    PLACE,
    FiniteFloat,
    ResultOptions,
    flag,
    result_options,
    valued,
)
from fp8verify.cli.progress import shown_progress
from fp8verify.report import COMPARISON_FORMS, TABLE_FORMS


@click.command("compare")
@click.argument("baseline", metavar="BASELINE", type=PLACE)
@click.argument("candidate", metavar="CANDIDATE", type=PLACE)
@click.option(
    "--baseline-log", metavar="FILE", type=PLACE, help="The baseline's log, for losses."
)
@click.option(
    "--candidate-log",
    metavar="FILE",
    type=PLACE,
    help="The candidate's log, for losses.",
)
@valued(
    "--loss-regex REGEX",
    text="Lines with a loss, for both logs: an expression with the group (?P<loss>…) and, if it "
    "can, (?P<step>…). For every command declare it in the settings file.",
)
@valued(
    "--min-speedup F",
    type=FiniteFloat(min=0, min_open=True),
    text="Exit with 1 if the candidate's speed-up at equal work is below this factor.",
)
@valued(
    "--max-loss-gap F|P%",
    text="Exit with 1 if the candidate's mean loss exceeds the baseline's by more than this: a "
    "difference such as 0.05, or a share such as 5%.",
)
@flag("-q", "--quiet", text="Print the result and the findings, but no table.")
@result_options(COMPARISON_FORMS, "Show every GEMM, layer and rank.")
def compare_command(baseline: str, candidate: str, **given: Any) -> None:
    """Compare two runs: traces, folders of ranks, or captures of `run`.

    \b
    fp8verify compare bf16-capture/ fp8-capture/
    fp8verify compare bf16-capture/ fp8-capture/ --min-speedup 1.1 -o compare.html
    fp8verify compare bf16.json.gz fp8.json.gz --format json

    Compares step times with a 95% interval, GEMMs by layer size, pass and layer, and the losses at
    equal steps.

    Exit codes: 0 compared, 1 a required limit is not met, 2 usage, 3 the runs cannot be compared.
    """
    from fp8verify.comparison import compare

    options = ResultOptions.take(given, COMPARISON_FORMS)
    with shown_progress((baseline, candidate), quiet=options.quiet):
        found = compare(baseline, candidate, workers=None, **given)
    options.write(found)
    sys.exit(found.exit_code)


@click.command("table")
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE…", type=PLACE)
@flag("--exit-zero", text="Exit with 0 whatever the verdicts are.")
@result_options(TABLE_FORMS, "Show the reason of each verdict, and full names.")
def table_command(captures: tuple[str, ...], exit_zero: bool, **given: Any) -> None:
    """Show many runs in one table, one row each: a sweep, or a week of CI.

    \b
    fp8verify table sweep/*/
    fp8verify table nightly-*/ -o week.html
    fp8verify table sweep/*/ --format csv > sweep.csv

    The exit code is that of the run that has the largest one; 0 means that FP8 ran in all of them.
    """
    from fp8verify.comparison import table

    options = ResultOptions.take(given, TABLE_FORMS)
    with shown_progress(captures, quiet=options.quiet):
        found = table(*captures, workers=None)
    options.write(found)
    sys.exit(0 if exit_zero else found.exit_code)

"""`fp8verify compare`: is the candidate faster, and where does the gain go?"""

from __future__ import annotations

import sys
from typing import Any

import click

from fp8verify.cli.options import PLACE, FiniteFloat, ResultOptions, flag, result_options, valued
from fp8verify.cli.output import write_result
from fp8verify.report import COMPARISON_FORMS


@click.command("compare")
@click.argument("baseline", metavar="BASELINE", type=PLACE)
@click.argument("candidate", metavar="CANDIDATE", type=PLACE)
@click.option("--baseline-log", metavar="FILE", type=PLACE, help="The baseline's log, for losses.")
@click.option(
    "--candidate-log", metavar="FILE", type=PLACE, help="The candidate's log, for losses."
)
@valued(
    "--loss-regex REGEX",
    text="Regular expression for the loss in a log line, with the group (?P<loss>…) and, if "
    "possible, (?P<step>…).",
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
def command(baseline: str, candidate: str, **given: Any) -> None:
    """Compare two runs: traces, folders of ranks, or captures of `run`.

    \b
    fp8verify compare bf16-capture/ fp8-capture/
    fp8verify compare bf16-capture/ fp8-capture/ --min-speedup 1.1 -o compare.html
    fp8verify compare bf16.json.gz fp8.json.gz --format json

    Compares step times with a 95% interval, GEMMs by layer size, pass and layer, and the losses at
    equal steps.

    Exit codes: 0 compared, 1 a required limit is not met, 2 usage, 3 the runs cannot be compared.
    """
    from fp8verify.comparison.public import compare

    options = ResultOptions.take(given, COMPARISON_FORMS)
    found = compare(baseline, candidate, workers=None, **given)
    write_result(found, options)
    sys.exit(found.exit_code)

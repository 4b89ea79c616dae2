"""Options of commands that print one result: its form, its file, its width."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click

from fp8verify.cli.option import width_option

C = TypeVar("C", bound=Callable[..., Any])


def result_options(forms: Collection[str], verbose: str) -> Callable[[C], C]:
    """Add --format, -o, --width and -v; `verbose` says what the last one shows."""
    options = (
        click.option(
            "--format",
            "form",
            type=click.Choice(list(forms)),
            help="Form of the result.  [default: as -o ends; else text]",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write the result to a file instead of standard output.",
        ),
        width_option,
        click.option("-v", "--verbose", is_flag=True, help=verbose),
    )

    def add(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return add

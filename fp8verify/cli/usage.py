"""Wrong options and arguments, told in two lines like every other error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from fp8verify.errors import UsageError


@contextmanager
def told_in_two_lines() -> Iterator[None]:
    """Turn click's usage errors into ours; the help that it shows for no argument at all stays."""
    try:
        yield
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click has it since 8.2
            raise
        raise _in_two_lines(error) from None


def _in_two_lines(error: click.UsageError) -> UsageError:
    fact, _, meant = " ".join(error.format_message().split()).partition(" Did you mean ")
    options = f"{error.ctx.command_path if error.ctx else 'fp8verify'} --help says what it takes."
    return UsageError(fact, f"Did you mean {meant} {options}" if meant else options)

"""Options whose help is read when it is shown, as click's own would load `inspect`; their types."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import click

# Narrower than this no figure has room.
LEAST_WIDTH = 20
MOST_WIDTH = 1000


class FiniteFloat(click.FloatRange):
    """A number in a range; click takes `nan` for one in every range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number that the text stands for."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, ctx)
        return number


class _Option(click.Option):
    def __init__(self, *words: Any, help: str | None = None, **more: Any) -> None:  # noqa: A002
        super().__init__(*words, **more)
        self.help = help


option = partial(click.option, cls=_Option)
help_option = partial(click.help_option, "-h", "--help", cls=_Option)
version_option = partial(click.version_option, cls=_Option)
width_option = option(
    "--width",
    type=click.IntRange(LEAST_WIDTH, MOST_WIDTH),
    metavar="N",
    help="Columns of the text.  [default: COLUMNS, or the terminal's, or 80]",
)

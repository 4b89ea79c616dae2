"""Options whose help is read when it is shown, as click's own would load `inspect`; their types."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fp8verify.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

C = TypeVar("C", bound=Callable[..., Any])

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
            self.fail(f"{number} is not a finite number.", param, ctx)
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


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files and folders; a URL or "-" stays as it is typed."""
    from click.shell_completion import CompletionItem  # only a shell that completes needs it

    return [CompletionItem(incomplete, type="file")]


def refuse_unknown_option(command: click.Command, word: str) -> None:
    """Refuse a mistyped option, which would be taken for the program to run.

    Raises:
        UsageError: the first word of the command to run is an option.
    """
    if not word.startswith("-"):
        return
    from difflib import get_close_matches

    names = [name for param in command.params for name in param.opts if name.startswith("--")]
    close = get_close_matches(word.partition("=")[0], names, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"fp8verify {command.name} --help lists them."
    raise UsageError(
        f"fp8verify {command.name} has no option {word.partition('=')[0]}.",
        f"{hint} The options of a script come after it.",
    )

"""Which steps `fp8verify run` records: by the command line, a variable or the training's own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource

from fp8verify.errors import UsageError


def settle_window(
    steps: str | None, after_seconds: float | None, words: list[str]
) -> tuple[str | None, float | None]:
    """Settle windows and times from different places: the command line is above a variable."""
    if steps is None and after_seconds is None:
        return _steps_of_training(words), None
    if steps is not None and after_seconds is not None and not steps.isdecimal():
        if _rank("steps") < _rank("after_seconds"):
            return steps, None
        if _rank("after_seconds") < _rank("steps"):
            return None, after_seconds
    return steps, after_seconds


def _steps_of_training(words: list[str]) -> str | None:
    """Return the steps that the `[profiling]` of the training's configuration names, and say so."""
    for word in words:
        if word.endswith(".toml"):
            from fp8verify.record.settings_file import read_toml, steps_of_profiling

            with suppress(OSError, ValueError):
                steps = steps_of_profiling(read_toml(Path(word)).get("profiling"))
                if steps is not None:
                    click.echo(f"fp8verify: steps {steps}, by the [profiling] of {word}", err=True)
                    return steps
    return None


def need_every(**given: object) -> None:
    """Refuse options that are only for a run with `--every`, where the command line has them.

    Raises:
        UsageError: it has one.
    """
    for name, value in given.items():
        # A settings file may serve runs of both kinds.
        if value and _rank(name) == 0:
            wanted = "--" + name.replace("_", "-")
            raise UsageError(f"{wanted} needs --every.", f"Such as --every 1000 {wanted} ….")


def _rank(name: str) -> int:
    order = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
    source = click.get_current_context().get_parameter_source(name)
    return order.index(source) if source in order else len(order)

"""Give options the values of the settings file and of `FP8VERIFY_*` variables.

The command line comes first, then the variables, then the file; click keeps this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fp8verify.errors import UsageError
from fp8verify.record.settings_file import SettingsFile, find_settings
from fp8verify.record.stderr import log as say

HUGE = 10**18  # above what any option takes, and far below what Python refuses to write as text
NEVER = frozenset({"help", "version", "dry-run"})


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that can be set, by their long names without hyphens."""
    return {
        name[2:]: param
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
        if name.startswith("--") and name[2:] not in NEVER
    }


def read_variables(command: click.Command) -> None:
    """Let a command's options be set by variables: --min-share by FP8VERIFY_MIN_SHARE."""
    for name, option in options_of(command).items():
        option.envvar = "FP8VERIFY_" + name.upper().replace("-", "_")


def settings_for(
    command: click.Command, others: Callable[[], Iterable[click.Command]]
) -> dict[str, Any]:
    """Return what the settings file says of a command's options, by the names of its parameters.

    Args:
        command: the command.
        others: returns all commands; called if a key is not an option of this one.

    Raises:
        InputError: the file cannot be read.
        UsageError: a key is not an option of any command, or a value does not fit.
    """
    options = options_of(command)
    try:
        found = find_settings(Path.cwd())
    except FileNotFoundError:  # the current folder was removed
        return {}
    for note in found.notes:
        say(note)
    if not options.keys() >= found.values.keys():
        known = {name for each in others() for name in options_of(each)}
        for name in sorted(found.values.keys() - known):
            raise UsageError(
                f"{found.path} sets {name[:80]!r}, which is not an option.", _hint(name, known)
            )
    return {
        str(options[name].name): _value(found, name, value, options[name])
        for name, value in found.values.items()
        if name in options
    }


def with_source(error: click.BadParameter) -> click.BadParameter:
    """Return an error that says where the value stands, if in a settings file or a variable."""
    if error.ctx is None or not isinstance(error.param, click.Option):
        return error
    source = error.ctx.get_parameter_source(str(error.param.name))
    if source is ParameterSource.ENVIRONMENT:
        place = f"It is the value of {error.param.envvar}."
    elif source is ParameterSource.DEFAULT_MAP:
        place = f"It stands in {find_settings(Path.cwd()).path}."
    else:
        return error
    return click.BadParameter(f"{error.message} {place}", error.ctx, error.param, error.param_hint)


def _hint(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only a slip is worth its import

    if name == "tool":
        return "In fp8verify.toml the options stand at the top, without [tool.fp8verify]."
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"Options are: {', '.join(sorted(known))}."


def _value(file: SettingsFile, name: str, value: Any, option: click.Option) -> Any:
    """Return a value as the command line would have it.

    Raises:
        UsageError: it is of another kind.
    """
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{file.path}: {name} is true or false.", f"Write {name} = true.")
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, (str, int, float)) for item in items):
        raise UsageError(
            f"{file.path}: the value of {name} is neither text nor a number.",
            f'Write it as on the command line: {name} = "…".',
        )
    if any(isinstance(item, int) and abs(item) > HUGE for item in items):
        raise UsageError(
            f"{file.path}: the value of {name} is larger than any that an option takes.",
            "Write a smaller number.",
        )
    words = [str(item) for item in items]
    return words if option.multiple else ",".join(words)

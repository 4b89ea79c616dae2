"""Give the options of commands the values of settings files and `FP8VERIFY_*` variables.

The command line comes first, then the variables, then the file; click keeps this order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fp8verify.errors import UsageError
from fp8verify.record.settings_files.files import SettingsFile, find_settings

PREFIX = "FP8VERIFY_"
# How near a variable's name has to be to an option's to be taken for a slip.
SLIP = 0.8
HUGE = 10**18
NEVER = frozenset({"help", "version", "dry-run"})

Options = dict[str, click.Option]


def options_of(command: click.Command) -> Options:
    """Return the options of a command that can be set, by their long names without hyphens."""
    named = {
        name[2:]: param
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
        if name.startswith("--")
    }
    return {name: option for name, option in named.items() if name not in NEVER}


def read_variables(command: click.Command) -> None:
    """Let a command's options be set by variables: --min-share by FP8VERIFY_MIN_SHARE."""
    for name, option in options_of(command).items():
        option.envvar = PREFIX + name.upper().replace("-", "_")


def settings_for(
    command: click.Command, others: Callable[[], Iterable[click.Command]]
) -> dict[str, Any]:
    """Return what the settings file says of a command's options, by the names of its parameters.

    Args:
        command: the command.
        others: returns all commands; asked if a key is none of this one's options.

    Raises:
        InputError: the file cannot be read.
        UsageError: a key or a variable is no option of any command, or a value does not fit.
    """
    options, all_options = options_of(command), _all_options(others)
    _check_variables(os.environ, options, all_options)
    try:
        found = find_settings(Path.cwd())
    except FileNotFoundError:  # the current folder was removed
        found = None
    if found is None:
        return {}
    unknown = [name for name in found.values if name not in options]
    known = all_options() if unknown else options
    for name in unknown:
        if name not in known:
            raise UsageError(
                f"{found.path} sets {name[:80]!r}, which is no option.", _suggest(name, known)
            )
    return {
        str(options[name].name): _value(found, name, value, options[name])
        for name, value in found.values.items()
        if name in options
    }


def with_source(error: click.BadParameter) -> click.BadParameter:
    """Return an error that says where the value stands, if in a settings file or a variable."""
    source = _source_of(error)
    if source is None:
        return error
    return click.BadParameter(f"{error.message} {source}", error.ctx, error.param, error.param_hint)


def _source_of(error: click.BadParameter) -> str | None:
    if error.ctx is None or not isinstance(error.param, click.Option):
        return None
    source = error.ctx.get_parameter_source(str(error.param.name))
    if source is ParameterSource.ENVIRONMENT:
        return f"It is the value of {error.param.envvar}."
    if source is ParameterSource.DEFAULT_MAP and (found := find_settings(Path.cwd())):
        return f"It stands in {found.path}."
    return None


def _all_options(others: Callable[[], Iterable[click.Command]]) -> Callable[[], Options]:
    return lambda: {name: o for command in others() for name, o in options_of(command).items()}


def _check_variables(
    environment: Mapping[str, str], options: Options, all_options: Callable[[], Options]
) -> None:
    """Refuse a variable that looks like an option's and is none."""
    ours = {
        name: name[len(PREFIX) :].lower().replace("_", "-")
        for name in environment
        if name.startswith(PREFIX)
    }
    unknown = {
        name: meant for name, meant in ours.items() if meant not in options or name != name.upper()
    }
    known = all_options() if unknown else options
    for name, meant in unknown.items():
        # A longer or shorter name may be of another version, or of a program around us.
        near = _near(meant, known, SLIP)
        if near and (meant not in known or name != name.upper()):
            variable = PREFIX + near.upper().replace("-", "_")
            raise UsageError(f"{name} is no variable of fp8verify.", f"Did you mean {variable}?")


def _suggest(name: str, known: Options) -> str:
    if name == "tool":
        return "In fp8verify.toml the options stand at the top, without [tool.fp8verify]."
    near = _near(name, known, 0.6)
    return f"Did you mean {near}?" if near else f"Options are: {', '.join(sorted(known))}."


def _near(name: str, known: Options, cutoff: float) -> str | None:
    from difflib import get_close_matches  # only a slip is worth its import

    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def _value(file: SettingsFile, name: str, value: Any, option: click.Option) -> Any:
    """Return a value as the command line would have it.

    Raises:
        UsageError: it is of another kind.
    """
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{file.path}: {name} is true or false.", f"Write {name} = true.")
    if _is_huge(value):
        raise UsageError(
            f"{file.path}: the value of {name} is larger than any that an option takes.",
            "Write a smaller number.",
        )
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return [str(item) for item in value] if option.multiple else ",".join(map(str, value))
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return [str(value)] if option.multiple else str(value)
    raise UsageError(
        f"{file.path}: the value of {name} is neither text nor a number.",
        f'Write it as on the command line: {name} = "…".',
    )


def _is_huge(value: Any) -> bool:
    """Whether there are numbers in a value that Python refuses to write as text."""
    items = value if isinstance(value, list) else [value]
    return any(isinstance(item, int) and abs(item) > HUGE for item in items)

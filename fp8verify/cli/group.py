"""The list of commands, each imported when it is called, and where the values of options come from.

The command line comes first, then `FP8VERIFY_*` variables, then the settings file; click keeps this
order.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fp8verify.errors import UsageError
from fp8verify.record.trust import SettingsFile, find_settings
from fp8verify.version import __version__

# The visible list of commands; a command's module is imported when it is called.
COMMANDS = {
    "doctor": "Check hardware, versions and configuration before the run.",
    "run": "Run a training script, record a window of steps and verify it.",
    "inspect": "Verify existing traces: a file, a folder of ranks, or a capture.",
    "compare": "Compare two runs: is FP8 faster, and where does the time go?",
    "table": "Show many runs in one table, one row each.",
    "explain": "Explain kernel names, codes, words of reports and error messages.",
    "annotate": "Copy a trace with every GEMM labeled by precision and leg.",
    "env": "Print environment variables for jobs whose command cannot be wrapped.",
    "prove": "Compare the precision of GEMM kernels with the GPU's own counters.",
}
MORE = ("env", "prove")
# Commands that live in the file of another.
_HOMES = {"table": "compare", "annotate": "inspect", "env": "run"}
NEVER_SET = frozenset({"help", "version"})
FRAMEWORKS = "frameworks"  # the table of settings that is no option
HUGE = (
    10**18
)  # above what any option takes, and far below what Python refuses to write as text


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that can be set, by their long names without hyphens."""
    return {
        name[2:]: param
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
        if name.startswith("--") and name[2:] not in NEVER_SET
    }


class _Commands(click.Group):
    """A group that imports a command only when it is wanted, so --help stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; a variable sets each option: --min-share is FP8VERIFY_MIN_SHARE."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(
            f"fp8verify.cli.{_HOMES.get(cmd_name, cmd_name)}_command"
        )
        command: click.Command = getattr(module, f"{cmd_name}_command")
        for name, option in options_of(command).items():
            option.envvar = "FP8VERIFY_" + name.upper().replace("-", "_")
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the options before the command."""
        with _usage_errors_of_ours():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C ends it by the signal, so that a shell's loop ends too."""
        try:
            with _usage_errors_of_ours():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            if os.name != "posix":
                raise
            from fp8verify.record.signals import end_by  # needs POSIX

            click.echo("\nAborted!", err=True)
            return end_by(signal.SIGINT)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for a name that is none, suggest what was meant."""
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from difflib import (
            get_close_matches,
        )  # only a wrong command is worth its import

        close = get_close_matches(name, COMMANDS, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        if not close and Path(name).exists():
            meant = f" Did you mean `fp8verify inspect {name}`?"
        raise click.UsageError(f"No such command {name!r}.{meant}", ctx)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        for title, is_more in (("Commands", False), ("More", True)):
            with formatter.section(title):
                formatter.write_dl(
                    [row for row in COMMANDS.items() if (row[0] in MORE) == is_more]
                )


@contextmanager
def _usage_errors_of_ours() -> Iterator[None]:
    """Turn click's usage errors into ours; the help that it shows for no argument at all stays."""
    try:
        yield
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click has it since 8.2
            raise
        message = " ".join(f"{error.format_message()}{_place_of(error)}".split())
        fact, _, meant = message.partition(" Did you mean ")
        hint = f"{error.ctx.command_path if error.ctx else 'fp8verify'} --help lists its options."
        raise UsageError(
            fact, f"Did you mean {meant} {hint}" if meant else hint
        ) from None


def _place_of(error: click.UsageError) -> str:
    """Say where a wrong value is, if in a settings file or a variable."""
    option = getattr(error, "param", None)
    if error.ctx is None or not isinstance(option, click.Option):
        return ""
    source = error.ctx.get_parameter_source(str(option.name))
    if source is ParameterSource.ENVIRONMENT:
        return f" It is the value of {option.envvar}."
    if source is ParameterSource.DEFAULT_MAP:
        return f" It is in {find_settings(Path.cwd()).path}."
    return ""


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="fp8verify")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Tell, with proof, whether an FP8 training run really ran in FP8.

    \b
    fp8verify doctor --config fp8.yaml        check a machine and a configuration
    fp8verify run train.py                    record a run and verify it
    fp8verify inspect trace.json.gz           verify an existing trace
    fp8verify compare bf16/ fp8/              is FP8 faster?
    fp8verify table sweep/*/                  many runs, one row each
    fp8verify explain 'nvjet_sm90_qqtst_…'    decode a kernel name
    fp8verify annotate trace.json.gz -o new.json.gz

    Options can also be set by FP8VERIFY_* variables, or in the nearest fp8verify.toml or
    pyproject.toml ([tool.fp8verify]), in this folder or above.

    Exit codes: 0 the run passes (PARTIAL may pass), 1 FP8 did not run or a required limit is not
    met, 2 wrong usage, 3 the evidence cannot decide.
    """
    name = ctx.invoked_subcommand
    command = cli.get_command(ctx, name) if name else None
    if name and command is not None:
        ctx.default_map = {name: _settings_for(command)}


def _settings_for(command: click.Command) -> dict[str, Any]:
    """Return the values of a command's options in the settings file, by names of parameters.

    Raises:
        InputError: the file cannot be read.
        UsageError: a key is not an option of any command, or a value does not fit.
    """
    options = options_of(command)
    try:
        file = find_settings(Path.cwd())
    except FileNotFoundError:  # the current folder was removed
        return {}
    for note in file.notes:
        click.echo(f"fp8verify: {note}", err=True)
    if (tables := file.values.pop(FRAMEWORKS, None)) is not None:
        from fp8verify.frameworks.known import declare

        declare(tables, str(file.path))
    if not options.keys() >= file.values.keys():
        _refuse_unknown_key(file)
    return {
        str(option.name): _as_typed(file, name, option)
        for name, option in options.items()
        if name in file.values
    }


def _refuse_unknown_key(file: SettingsFile) -> None:
    commands = (cli.get_command(click.Context(cli), name) for name in COMMANDS)
    known = {name for command in commands if command for name in options_of(command)}
    for key in sorted(file.values.keys() - known):
        from difflib import get_close_matches  # only a slip is worth its import

        near = get_close_matches(key, known, n=1)
        if near:
            hint = f"Did you mean {near[0]}?"
        else:
            hint = f"Options are: {', '.join(sorted(known))}."
        if key == "tool":
            hint = "In fp8verify.toml the options are at the top level, without [tool.fp8verify]."
        raise UsageError(
            f"{file.path} sets {key[:80]!r}, which is not an option.", hint
        )


def _as_typed(file: SettingsFile, name: str, option: click.Option) -> Any:
    """Return a value of the settings file as the command line would have it.

    Raises:
        UsageError: it is of another kind.
    """
    value = file.values[name]
    if option.is_flag and isinstance(value, bool):
        return value
    items = value if isinstance(value, list) else [value]
    # To Python True is a number too, and a huge one cannot be written as text.
    if not option.is_flag and all(
        type(item) in (str, float) or (type(item) is int and abs(item) < HUGE)
        for item in items
    ):
        words = [str(item) for item in items]
        if option.multiple:
            return words
        return ",".join(words)
    wanted = "text or a number below 10^18"
    if option.is_flag:
        wanted = "true or false"
    hint = f"Write {name} = " + (
        "true." if option.is_flag else '"…", as on the command line.'
    )
    raise UsageError(f"{file.path}: the value of {name} is not {wanted}.", hint)

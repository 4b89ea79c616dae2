"""The list of commands, each imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fp8verify.cli.configured import read_variables, settings_for, with_source
from fp8verify.cli.option import help_option, version_option
from fp8verify.errors import UsageError
from fp8verify.version import __version__

# The visible list of commands; a command's module is imported when it is called.
COMMANDS = {
    "doctor": "Check hardware, versions and configuration before the training.",
    "run": "Run a training script, record a window of steps and verify it.",
    "inspect": "Verify traces that exist: a file, a folder of ranks, a capture.",
    "compare": "Compare two runs: is FP8 faster, and where the gain goes.",
    "table": "Show many runs in one table, a row each.",
    "explain": "Explain kernel names and finding codes.",
    "annotate": "Copy a trace with every GEMM coloured and labelled by precision and pass.",
    "env": "Print exports that attach to jobs whose command cannot be wrapped.",
    "prove": "Check the classes of GEMM kernels against the GPU's own counters.",
    "completion": "Print what lets a shell complete commands, options and files.",
}
MORE = ("env", "prove", "completion")


@contextmanager
def _usage_errors_of_ours() -> Iterator[None]:
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


class _Commands(click.Group):
    """A group that imports a command only when it is wanted, so that --help stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: Any = importlib.import_module(f"fp8verify.cli.{cmd_name}_command").command
        if not isinstance(command, click.Command):
            return None
        read_variables(command)
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read what stands before the command."""
        with _usage_errors_of_ours():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; of a wrong value from a file or a variable, say where it stands."""
        with _usage_errors_of_ours():
            try:
                return super().invoke(ctx)
            except click.BadParameter as error:
                raise with_source(error) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for a name that is none, suggest what was meant."""
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"No such command {name!r}.{_suggest(name)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([row for row in COMMANDS.items() if row[0] not in MORE])
        with formatter.section("More"):
            formatter.write_dl([row for row in COMMANDS.items() if row[0] in MORE])


def _suggest(name: str) -> str:
    """Name the command nearest to one that is none; a file stands for `inspect`."""
    from difflib import get_close_matches  # only a wrong command is worth its import

    close = get_close_matches(name, COMMANDS, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Did you mean `fp8verify inspect {name}`?" if Path(name).exists() else ""


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@version_option(__version__, package_name="fp8verify")
@help_option()
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Tell, with proof, whether an FP8 training run really ran in FP8.

    \b
    fp8verify doctor --config fp8.yaml        check a machine and a configuration
    fp8verify run train.py                    record and verify a training
    fp8verify inspect trace.json.gz           verify a trace that exists
    fp8verify compare bf16/ fp8/              is FP8 faster, and where the gain goes
    fp8verify table sweep/*/                  many runs, a row each
    fp8verify explain 'nvjet_sm90_qqtst_…'    decode a kernel name
    fp8verify annotate trace.json.gz -o new.json.gz

    Options also come from FP8VERIFY_* variables and, below them, from [tool.fp8verify] in
    pyproject.toml or from fp8verify.toml, the nearest upwards.

    Exit codes: 0 FP8 ran, 1 it did not, 2 usage, 3 the evidence cannot decide.
    """
    name = ctx.invoked_subcommand
    command = cli.get_command(ctx, name) if name else None
    if name and command is not None:
        ctx.default_map = {name: settings_for(command, lambda: _all_commands(ctx))}


def _all_commands(ctx: click.Context) -> Iterator[click.Command]:
    for name in COMMANDS:
        command = cli.get_command(ctx, name)
        if command is not None:
            yield command

"""`fp8verify completion`: the script by which a shell completes commands, options and files."""

from __future__ import annotations

import click

from fp8verify.cli.output import emit

_VARIABLE = "_FP8VERIFY_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what lets a shell complete commands, options and files.

    \b
    eval "$(fp8verify completion bash)"       in ~/.bashrc (bash 4.4 or newer)
    eval "$(fp8verify completion zsh)"        in ~/.zshrc, after compinit
    fp8verify completion fish > ~/.config/fish/completions/fp8verify.fish
    """
    from click.shell_completion import get_completion_class

    from fp8verify.cli.group import cli

    found = get_completion_class(shell)
    if found is None:  # pragma: no cover - click has all three
        raise click.UsageError(f"this version of click knows no {shell}")
    # `source` of bash starts bash to learn its version; the script is the same without.
    completion = found(cli, {}, "fp8verify", _VARIABLE)
    emit(completion.source_template % completion.source_vars() + "\n", None)

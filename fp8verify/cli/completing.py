"""What a shell completes where an argument is a file, a folder, or something that is neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files and folders; a URL or "-" stays as it is typed."""
    from click.shell_completion import CompletionItem  # only a shell that completes needs it

    return [CompletionItem(incomplete, type="file")]

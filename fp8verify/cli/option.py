"""Options whose help is read when it is shown: click's own would load `inspect` for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import click


class _Option(click.Option):
    def __init__(self, *words: Any, help: str | None = None, **more: Any) -> None:  # noqa: A002
        super().__init__(*words, **more)
        self.help = help


option = partial(click.option, cls=_Option)
help_option = partial(click.help_option, "-h", "--help", cls=_Option)
version_option = partial(click.version_option, cls=_Option)

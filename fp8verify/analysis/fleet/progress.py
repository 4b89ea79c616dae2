"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8verify.analysis.fleet.ranks import OnProgress


@contextmanager
def rank_progress() -> Iterator[OnProgress | None]:
    """Show how many ranks are read; the bar goes away in the end, and is not there elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("reading ranks"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", visible=False)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=total > 1)

        yield show

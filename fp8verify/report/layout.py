"""What the forms of text share: the width, the colours, and plain tables."""

from __future__ import annotations

from collections.abc import Collection
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.table import Table

PLAIN_WIDTH = 80
MAX_WIDTH = 120


def render(sections: Collection[RenderableType], *, terminal: bool) -> str:
    """Render to text; colour only on a terminal, and not where NO_COLOR is set."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=min(Console().width, MAX_WIDTH) if terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,  # names and log lines may hold brackets
        emoji=False,
    )
    console.print(Group(*sections))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def plain_table(*names: str, words: Collection[str] = (), stretch: bool = False) -> Table:
    """Make a table: figures to the right, `words` to the left; `stretch` cuts the last column."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=stretch
    )
    for place, name in enumerate(names):
        last = place == len(names) - 1
        table.add_column(
            name,
            justify="left" if name in words else "right",
            no_wrap=True,
            ratio=1 if stretch and last else None,
        )
    return table

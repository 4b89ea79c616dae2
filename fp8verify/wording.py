"""How messages count and list things."""

from __future__ import annotations

from collections.abc import Sequence, Sized


def counted(things: Sized, name: str) -> str:
    """Return "1 layer" or "2 layers"."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def listed(names: Sequence[str], shown: int = 4, *, between: str = ", ") -> str:
    """Join names; of more than `shown` the first, and how many more there are."""
    rest = len(names) - shown
    return between.join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def abridged(names: Sequence[str], shown: int) -> str:
    """Join names; of more than `shown` the first, where how many more there are tells nothing."""
    return ", ".join(names[:shown]) + (" …" if len(names) > shown else "")

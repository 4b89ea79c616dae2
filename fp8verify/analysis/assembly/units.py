"""From the facts' units to the report's: the only place where nanoseconds become microseconds."""

from __future__ import annotations

from typing import overload


def micros(time_ns: int) -> float:
    """Return nanoseconds as the report's µs, which keep three decimals."""
    return round(time_ns / 1000, 3)


@overload
def rounded(figure: float) -> float: ...


@overload
def rounded(figure: float | None) -> float | None: ...


def rounded(figure: float | None) -> float | None:
    """Return a share or ratio as the report keeps it, with six decimals; None stays None."""
    return None if figure is None else round(figure, 6)

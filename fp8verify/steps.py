"""Windows of steps, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable

from fp8verify.text import listed

Window = tuple[int, int]  # first and last step, 1-based, inclusive

_SHOWN = 4


def join_windows(windows: Iterable[Window]) -> list[Window]:
    """Return windows, which are in order and share no step, with those that touch as one."""
    joined: list[Window] = []
    for first, last in windows:
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def show_window(window: Window) -> str:
    """Return how a window is written: "10-12", or "10"."""
    first, last = window
    return str(first) if first == last else f"{first}-{last}"


def show_steps(steps: Iterable[int]) -> str:
    """Return "step 10", "steps 10-12" or "steps 10-12, 500-502"; of no steps, nothing."""
    windows = join_windows((step, step) for step in sorted(set(steps)))
    if not windows:
        return ""
    one = windows[0][0] == windows[-1][1]
    return f"step{'' if one else 's'} " + listed([*map(show_window, windows)], _SHOWN)

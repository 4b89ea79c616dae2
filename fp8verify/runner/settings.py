"""What the user asks of a run, and how it is written on the command line."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import msgspec

from fp8verify.errors import UsageError

Window = tuple[int, int]

WINDOW = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
MAX_WINDOWS = 100


class RankSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks to profile: those listed in `only`, and all that `every` divides."""

    only: tuple[int, ...] = ()
    every: int | None = None


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to observe a run.

    Attributes:
        windows: first and last step of each window, 1-based and inclusive, counted from the start
            of this run.
        trace_dir: the capture folder; None makes one in the current directory.
        capture_log: whether to keep the output of the run as the capture's `log.txt`.
        record_shapes: whether the profiler records the operators' input shapes.
    """

    windows: tuple[Window, ...] = ((10, 12),)
    ranks: RankSelection = RankSelection(only=(0,))
    trace_dir: Path | None = None
    capture_log: bool = True
    record_shapes: bool = True


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left behind.

    Attributes:
        exit_code: the command's own; 128 + n when signal n killed it.
        notes: what kept the run from being observed, for the user.
    """

    capture: Path
    exit_code: int
    log: Path | None = None
    notes: tuple[str, ...] = ()


def parse_windows(text: str) -> tuple[Window, ...]:
    """Return the windows of `text`, such as "10-12", "10" or "10-12,500-502", in order.

    Raises:
        UsageError: if a window is malformed, reversed, begins before step 1 or overlaps another.
    """
    windows = sorted(_parse_window(part.strip(), text) for part in text.split(","))
    for earlier, later in pairwise(windows):
        if later[0] <= earlier[1]:
            raise UsageError(
                f"The windows {_show(earlier)} and {_show(later)} overlap.",
                "Give windows that share no step, such as 10-12,500-502.",
            )
    if len(windows) > MAX_WINDOWS:
        raise UsageError(
            f"{len(windows)} windows are more than the {MAX_WINDOWS} that a run can have.",
            "Give fewer or longer windows.",
        )
    return tuple(windows)


def _parse_window(part: str, text: str) -> Window:
    match = WINDOW.fullmatch(part)
    if match is None:
        raise UsageError(
            f"{text[:80]!r} does not name steps.",
            "Give the first and last step, such as 10-12, or several windows: 10-12,500-502.",
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if first < 1:
        raise UsageError(f"{part} begins before the first step.", "Steps are counted from 1.")
    if last < first:
        raise UsageError(f"{part} ends before it begins.", f"Did you mean {last}-{first}?")
    return first, last


def _show(window: Window) -> str:
    first, last = window
    return str(first) if first == last else f"{first}-{last}"


def parse_ranks(text: str) -> RankSelection:
    """Return the ranks of `text`: "all", "every:64", or a list such as "0" or "0,7".

    Raises:
        UsageError: if it is none of these.
    """
    text = text.strip()
    if text == "all":
        return RankSelection(every=1)
    every = re.fullmatch(r"every:([0-9]{1,9})", text)
    if every and int(every[1]):
        return RankSelection(every=int(every[1]))
    if re.fullmatch(r"[0-9]{1,9}(\s*,\s*[0-9]{1,9})*", text):
        return RankSelection(only=tuple(sorted({int(rank) for rank in text.split(",")})))
    raise UsageError(
        f"{text[:80]!r} does not name ranks.",
        "Give all, every:64, or a list such as 0 or 0,7.",
    )

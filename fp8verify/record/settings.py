"""What the user asks of a run, and how it is written on the command line."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.errors import UsageError
from fp8verify.text import Window, join_windows, show_window

GLOBAL = "global:"
PER_NODE = 8
# Far above what three steps of large models make; a closure that LBFGS calls in a loop made more.
MAX_TRACE_MB = 2048
MAX_WINDOW_SECONDS = 900.0
MOST_STEPS = 10**9
MIN_BETWEEN = 3  # steps in which one profiler session is over and the next is prepared


class RankSelection(NamedTuple):
    """Which ranks to profile: those listed in `only`, and all that `every` divides.

    With `auto` all of up to eight ranks are profiled, and of more the first one of each node.
    """

    only: tuple[int, ...] = ()
    every: int | None = None
    auto: bool = False

    def includes(self, rank: int, world_size: int = 1) -> bool:
        """Whether a rank is profiled; `auto` takes eight ranks for a node, as the agent knows."""
        if self.auto:
            return world_size <= PER_NODE or rank % PER_NODE == 0
        return rank in self.only or bool(self.every and rank % self.every == 0)


class TimedWindow(NamedTuple):
    """A window known by time: the first `steps` steps to begin `seconds` into the run.

    With `auto` it begins once step times are stable and nothing compiles, at the latest at step 20
    or after `seconds`.
    """

    seconds: float
    steps: int = 3
    auto: bool = False


AUTO_WINDOW = TimedWindow(seconds=120.0, auto=True)


class LiveWindows(NamedTuple):
    """Windows of `length` steps for the whole run: from step `first` on, one `every` so many."""

    every: int
    length: int
    first: int


class RunSettings(NamedTuple):
    """How to observe a run.

    Attributes:
        windows: first and last step of each window, 1-based and inclusive, counted from the start
            of this run.
        global_windows: windows by the framework's own numbers of the steps instead.
        live: short windows for the whole run instead, each a capture of its own in `live/`.
        timed_window: one more window, by time; it begins two steps after its time, or after the
            windows.
        ranks: whose steps to record; the others note their modules only.
        trace_dir: the capture folder; None makes one in the current directory.
        job: the name under which several nodes put their ranks into one capture folder; None takes
            what the launcher calls the job.
        capture_log: whether to keep the output of the run as the capture's `log.txt`.
        record_shapes: whether the profiler records the operators' input shapes.
        layers: whether to name the layer of every GEMM: `WindowLayers` in the agent.
        blas_log: whether cuBLASLt is to log its products in each window: `BlasLog` in the agent.
        numerics: whether to measure the tensors of FP8 layers: `Numerics` in the agent.
        numerics_every: after how many steps to measure them again; None measures once.
        numerics_eager: whether compiled code may run the measured step without torch.compile.
        max_trace_mb: end a window whose trace would become larger, as plain text; 0 never does.
        max_window_seconds: end a window after so long; 0 never does.
        python: runs scripts and modules; None finds the active environment's.
        debug: whether every process writes down what the agent did: `DebugLog` in the agent.
    """

    windows: tuple[Window, ...] = ((10, 12),)
    global_windows: tuple[Window, ...] = ()
    live: LiveWindows | None = None
    timed_window: TimedWindow | None = None
    ranks: RankSelection = RankSelection(only=(0,))
    trace_dir: Path | None = None
    job: str | None = None
    capture_log: bool = True
    record_shapes: bool = True
    layers: bool = False
    blas_log: bool = False
    numerics: bool = False
    numerics_every: int | None = None
    numerics_eager: bool = False
    max_trace_mb: int = MAX_TRACE_MB
    max_window_seconds: float = MAX_WINDOW_SECONDS
    python: str | None = None
    debug: bool = False


def read_settings(
    *,
    steps: str | None,
    after_seconds: float | None = None,
    every: int | None = None,
    window: int | None = None,
    ranks: str = "auto",
    trace_dir: str | Path | None = None,
    numerics: bool = False,
    numerics_every: int | None = None,
    numerics_eager: bool = False,
    no_log: bool = False,
    no_shapes: bool = False,
    **as_given: Any,
) -> RunSettings:
    """Return what the options of `fp8verify run` ask for.

    Args:
        steps: windows, or with `after_seconds` how many steps, or with `every` the first window.
        after_seconds: when to record.
        every: after how many steps the next window of a whole run begins.
        window: how many steps each of them has.
        ranks: whose steps to record.
        trace_dir: the capture folder.
        numerics: whether to measure the tensors of FP8 layers.
        numerics_every: after how many steps to measure them again; implies it.
        numerics_eager: whether compiled code may run the measured step eagerly; implies it.
        no_log: whether to leave the output of the run alone.
        no_shapes: whether to leave out the operators' input shapes.
        as_given: other fields of `RunSettings`.

    Raises:
        UsageError: if one means nothing.
    """
    for name, count in (
        ("every", every),
        ("window", window),
        ("numerics_every", numerics_every),
    ):
        _check_count(name, count)
    asked = RunSettings(
        **as_given,
        windows=(),
        numerics=numerics or numerics_eager or numerics_every is not None,
        ranks=parse_ranks(ranks),
        trace_dir=None if trace_dir is None else Path(trace_dir),
        numerics_every=numerics_every,
        numerics_eager=numerics_eager,
        capture_log=not no_log,
        record_shapes=not no_shapes,
    )
    if steps is not None and steps.strip().startswith(GLOBAL):
        _check_alone_with_global_steps(every, after_seconds)
        return asked._replace(
            global_windows=parse_windows(steps.strip().removeprefix(GLOBAL))
        )
    if every is not None:
        _check_alone_with_every(asked, after_seconds)
        return asked._replace(live=_live_windows(every, window, steps))
    if after_seconds is not None:
        timed = TimedWindow(after_seconds, parse_count(steps or "3"))
        return asked._replace(timed_window=timed)
    if steps is None:
        return asked._replace(timed_window=AUTO_WINDOW)
    return asked._replace(windows=parse_windows(steps))


def _check_alone_with_global_steps(
    every: int | None, after_seconds: float | None
) -> None:
    """Refuse what counts steps from the start of the run beside steps of the framework's count."""
    if every is not None:
        other = "--every"
    elif after_seconds is not None:
        other = "--after-seconds"
    else:
        return
    raise UsageError(
        f"--steps {GLOBAL}A-B and {other} do not go together.",
        f"With {other}, steps are counted from the start of this run; its report and its "
        "lines name the framework's own numbers too.",
    )


def _check_alone_with_every(asked: RunSettings, after_seconds: float | None) -> None:
    """Refuse what records one window beside the watch of a whole run."""
    others = {
        "--layers": asked.layers,
        "--blas-log": asked.blas_log,
        "--after-seconds": after_seconds is not None,
    }
    for other in filter(others.get, others):
        raise UsageError(
            f"--every and {other} do not go together.",
            "Watch the run with --every, or record one window of another run.",
        )


def _check_count(name: str, value: object) -> None:
    """Refuse what a program may pass for a number of steps; the command line has its own checks."""
    if value is not None and not (isinstance(value, int) and 0 < value <= MOST_STEPS):
        raise UsageError(
            f"{name} is {value!r}, which is not a number of steps.",
            f"Give a whole number from 1 to {MOST_STEPS}, such as 1000.",
        )


def _live_windows(every: int, window: int | None, steps: str | None) -> LiveWindows:
    """Return the windows of a whole run; `--steps` names the first of them."""
    (first, last), *more = (
        parse_windows(steps) if steps is not None else [(every, every + 1)]
    )
    if more:
        raise UsageError(
            "With --every, --steps names the first window alone.",
            "Such as --steps 10-11.",
        )
    length = window or last - first + 1
    if length + MIN_BETWEEN > every:
        raise UsageError(
            f"Windows of {length} steps do not fit into every {every} steps.",
            f"Give --every {length + MIN_BETWEEN} or more, or a shorter --window.",
        )
    return LiveWindows(every, length, first)


def parse_windows(text: str) -> tuple[Window, ...]:
    """Return the windows of `text`, such as "10-12", "10" or "10-12,500-502", in order.

    Those that touch, such as 10-12,13, are one: a profiler session must not begin where one ends.

    Raises:
        UsageError: if a window is malformed, reversed, begins before step 1 or overlaps another.
    """
    windows = sorted(_parse_window(part.strip(), text) for part in text.split(","))
    for earlier, later in pairwise(windows):
        if later[0] <= earlier[1]:
            raise UsageError(
                f"The windows {show_window(earlier)} and {show_window(later)} overlap.",
                "Give windows that share no step, such as 10-12,500-502.",
            )
    return tuple(join_windows(windows))


def _parse_window(part: str, text: str) -> Window:
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
    if match is None:
        raise UsageError(
            f"{text[:80]!r} does not name steps.",
            "Give the first and last step, such as 10-12, or several windows: 10-12,500-502.",
        )
    first = int(match[1])
    last = int(match[2] or match[1])
    if first < 1:
        raise UsageError(
            f"{part} begins before the first step.", "Steps are counted from 1."
        )
    if last < first:
        raise UsageError(
            f"{part} ends before it begins.", f"Did you mean {last}-{first}?"
        )
    return first, last


def parse_count(text: str) -> int:
    """Return the number of steps that `text` asks for.

    Raises:
        UsageError: if it is not a whole number above zero.
    """
    if re.fullmatch("0*[1-9][0-9]{0,8}", text.strip()):
        return int(text)
    raise UsageError(
        f"{text[:80]!r} is not a number of steps.",
        "With --after-seconds, --steps says how many to record, such as 3.",
    )


def parse_ranks(text: str) -> RankSelection:
    """Return the ranks of `text`: "auto", "all", "every:64", or a list such as "0" or "0,7".

    Raises:
        UsageError: if it is none of these.
    """
    text = text.strip()
    if text == "auto":
        return RankSelection(auto=True)
    if text == "all":
        return RankSelection(every=1)
    if every := re.fullmatch("every:0*([1-9][0-9]{0,8})", text):
        return RankSelection(every=int(every[1]))
    if re.fullmatch("[0-9]{1,9}( *, *[0-9]{1,9})*", text):
        return RankSelection(
            only=tuple(sorted({int(rank) for rank in text.split(",")}))
        )
    raise UsageError(
        f"{text[:80]!r} does not name ranks.",
        "Give auto, all, every:64, or a list such as 0 or 0,7.",
    )

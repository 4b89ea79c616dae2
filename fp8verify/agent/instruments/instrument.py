"""What every instrument offers, and all instruments of a process called together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class InstrumentContext(NamedTuple):
    """What an instrument can see of the training.

    Attributes:
        config: the boot folder's `config.json`.
        optimizers: returns those that have stepped and are still alive.
        record: returns the rank's `RankRecord`, whose files an instrument may write into.
        windows_over: whether a step may be measured after so many: nothing is left to record, or
            under a watch the next window is near and not open.
    """

    config: dict[str, Any]
    optimizers: Callable[[], list[Any]]
    record: Callable[[], Any] = lambda: None
    windows_over: Callable[[int], bool] = lambda _: False


class Instrument:
    """One kind of evidence; a subclass overrides what it needs.

    One that raises is put away with a note in the record, and the window goes on without it.
    """

    def __init__(self, context: InstrumentContext) -> None:
        self.context = context

    def before_window(self) -> None:
        """Look at the training before a window begins, on ranks that are not profiled too."""

    def begin(self) -> None:
        """Get ready: the profiler is about to start."""

    def after_step(self, step: int, /) -> None:
        """Look at the training when `step` steps are complete, inside a window or not."""

    def end(self) -> dict[str, Any]:
        """Return fields for the window's record, `WindowRecord`: the profiler has stopped."""
        return {}

    def drop(self) -> None:
        """Undo what `begin` did: the window is lost, or this instrument raised."""

    @property
    def measures(self) -> bool:
        """Whether this slows the running step down, outside of windows too."""
        return False

    def record(self) -> dict[str, Any]:
        """Return fields for the rank's record, `RankMeta`."""
        return {}

"""`fp8verify run --every`: watch a training from outside for its whole life."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from fp8verify.record.live.change_command import ChangeCommand
from fp8verify.record.stderr import log as say

if TYPE_CHECKING:
    from pathlib import Path

    from fp8verify.record.folder import CaptureFolder
    from fp8verify.record.live.history import History
    from fp8verify.record.live.metrics import WindowMetrics
    from fp8verify.record.live.sinks import Sink
    from fp8verify.record.settings import RunSettings
    from fp8verify.verdict.policy import Policy

POLL_S = 0.25


class RunWatch:
    """What runs in parallel with a run of `--every`.

    Args:
        settings: of the run.
        policy: what a verdict asks for.
        sinks: get a line for each window.
        on_change: a shell command for when the verdict changes, or None.
        stop_on: verdicts upon which the training is asked to stop.

    Attributes:
        worst: the capture of the window with the worst verdict; None before the end, or without.
        stopped: whether the training was asked to stop.
        notes: what to say of the run as a whole.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: Policy,
        sinks: Sequence[Sink],
        on_change: str | None = None,
        stop_on: frozenset[str] = frozenset(),
    ) -> None:
        self.worst: Path | None = None
        self.stopped = False
        self.notes: tuple[str, ...] = ()
        self._settings = settings
        self._policy = policy
        self._sinks = sinks
        self._command = on_change
        self._stop_on = stop_on
        self._stopped_by: tuple[str, ...] = ()

    @contextmanager
    def __call__(self, capture: CaptureFolder, stop: Callable[[], None]) -> Iterator[None]:
        """Watch while inside; on leaving, wait until all windows are judged."""
        if capture.secondary_node is not None:  # the runner that made the folder does
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(capture, stop, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _follow(
        self, capture: CaptureFolder, stop: Callable[[], None], over: threading.Event
    ) -> None:
        live = capture.path / "live"
        while not live.is_dir() and not over.wait(POLL_S):
            pass
        # Only now: what is imported delays the start of the run.
        from fp8verify.record.live.history import Follower, History

        command = ChangeCommand(self._command, capture.path) if self._command else None
        history = History(capture.path, self._sinks, partial(self._changed, command, stop, over))
        follower = Follower(capture.path, self._settings.ranks, self._policy, history, capture.log)
        while not over.wait(POLL_S):
            with suppress(OSError):  # a folder that is being moved
                follower.poll()
        follower.finish()
        history.close()
        if command is not None:
            command.finish()
        self.worst = history.worst
        with suppress(OSError):
            live.rmdir()
        self.notes = tuple(self._say_of_the_run(capture.path, history, command))

    def _changed(
        self,
        command: ChangeCommand | None,
        stop: Callable[[], None],
        over: threading.Event,
        before: str | None,
        metrics: WindowMetrics,
    ) -> None:
        """Report a verdict that differs from the last one, and do what the user asked for."""
        self._say(before, metrics)
        if metrics["verdict"] in self._stop_on and not self.stopped and not over.is_set():
            self.stopped = True
            self._say_stop(metrics)
            stop()
        if command is not None and before is not None:
            command.run(before, metrics)

    def _say_of_the_run(
        self, capture: Path, history: History, command: ChangeCommand | None
    ) -> Iterator[str]:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in history.counts.items())
        yield f"of the run's windows {counts}" if counts else self._why_none(capture)
        yield from self._stopped_by
        yield from history.errors
        yield from command.errors if command is not None else ()

    def _why_none(self, capture: Path) -> str:
        from fp8verify.record.live.status import steps_seen

        live, steps = self._settings.live, steps_seen(capture)
        if live is None or not steps:
            return "no window was recorded"
        first = live.first or live.every
        return (
            f"no window was recorded: the run ended after step {steps}, and the first window was "
            f"to be steps {first}-{first + live.length - 1}"
        )

    def _say(self, before: str | None, metrics: WindowMetrics) -> None:
        was = "" if before is None else f", was {before}"
        say(f"{metrics['verdict']} at step {metrics['step']}{was}: {metrics['reason']}")

    def _say_stop(self, metrics: WindowMetrics) -> None:
        said = (
            f"the training was asked to stop, since step {metrics['step']} is {metrics['verdict']}"
        )
        say(f"{said} (--stop-on)")
        self._stopped_by = (said,)

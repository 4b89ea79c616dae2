"""Recording from inside the run's own program: `fp8verify.window` and `fp8verify.watch`."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fp8verify.capture.names import REPORT
from fp8verify.errors import InputError, UsageError
from fp8verify.record.folder import CaptureFolder, make_capture_folder
from fp8verify.record.injection import agent_config
from fp8verify.record.live import (
    Destination,
    History,
    Judge,
    WindowMetrics,
    is_closed,
    open_sink,
)
from fp8verify.record.settings import RunSettings, read_settings
from fp8verify.verdict.policy import Policy

if TYPE_CHECKING:
    from typing_extensions import Self

    from fp8verify.report.results import Report


STEP = "fp8/step"
MAX_UNREAD = 256
OPEN_END = 1 << 40


def agent(module: str) -> Any:
    """Return a module of the agent, which imports torch; `fp8verify run` never imports it."""
    return import_module(f"fp8verify.agent.{module}")


def _is_first_rank() -> bool:
    rank, _ = agent("process").rank_and_world_size()
    return bool(rank == 0)


class Recording:
    """Records the windows of `settings` once it has begun, until it is closed.

    Attributes:
        folder: the capture, a temporary folder where the settings name none.
    """

    folder: Path

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.observer: Any = None  # what counts the steps, while it records

    def begin(self) -> None:
        """Attach.

        Raises:
            UsageError: the process is watched already.
        """
        if agent("hooks").installed() is not None:
            raise UsageError(
                "This process is watched already.", "Close the other watch first."
            )
        # A TemporaryDirectory would be removed by a fork of this process that ends.
        folder = self.settings.trace_dir
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="fp8verify-"))
        self.folder = folder.absolute()
        if _is_first_rank():  # the others may write only after a step
            make_capture_folder(self.folder)
        settings = self.settings._replace(capture_log=False)
        config = agent_config(settings, CaptureFolder(self.folder))
        self.observer = agent("hooks").install_late(config)

    def step(self) -> None:
        """Say that a training step is complete; from then on only these count.

        Raises:
            UsageError: it is closed.
        """
        if self.observer is None:
            raise UsageError("The watch is closed.", "Call step() inside its with.")
        self.observer.announced()

    def close(self) -> None:
        """Write what is recorded, and take the hooks away."""
        agent("hooks").uninstall()
        self.observer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Watch(Recording):
    """Records a short window every N steps, and judges each in another process.

        with fp8verify.watch(every=1000, sinks="fp8.jsonl"):
            train()

    Steps are counted by optimizers' steps, or by `step()` once it is called. Between windows a step
    costs one call of a hook. Metrics reach the sinks on a thread of their own.

    Args:
        every: steps from the beginning of one window to that of the next.
        window: steps in a window, 2 by default.
        steps: the first window, such as "10-11"; else it begins with step `every`.
        sinks: receivers of each window's metrics: a file of JSON lines or a function, or several.
        folder: keeps windows whose verdict changed; None keeps none.
        on_change: called with the previous verdict, None at first, and the metrics.
        policy: requirements of the verdict.
        numerics_every: measure the casts of a step before a window, if at least N steps have passed
            since the last measured step; None measures none.

    Attributes:
        last: the metrics of the last window that was judged.

    Raises:
        UsageError: invalid steps, an invalid sink, or the process is watched already.
    """

    def __init__(
        self,
        every: int,
        *,
        window: int | None = None,
        steps: str | None = None,
        sinks: Destination | Iterable[Destination] = (),
        folder: str | Path | None = None,
        on_change: Callable[[str | None, WindowMetrics], object] | None = None,
        policy: Policy | None = None,
        numerics_every: int | None = None,
    ) -> None:
        settings = read_settings(
            steps=steps,
            every=every,
            window=window,
            ranks="0",
            trace_dir=folder,
            numerics_every=numerics_every,
        )
        opened = [open_sink(sink) for sink in _listed(sinks)]
        super().__init__(settings)
        self.begin()
        self._history = History(self.folder, opened, on_change)
        self._judge = Judge(policy or Policy(), self._history.take)
        self._process = os.getpid()  # a fork of it has nothing to close
        self.observer.recorder.on_closed = self._closed
        atexit.register(
            self.close
        )  # a watch that is never closed is judged to its end too

    @property
    def last(self) -> WindowMetrics | None:
        """The metrics of the last window that was judged."""
        return self._history.last

    def close(self) -> None:
        """Stop watching, and return when every window is judged."""
        if self.observer is None or self._process != os.getpid():
            return
        atexit.unregister(self.close)
        super().close()
        self._judge.wait()
        if self.settings.trace_dir is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _closed(self, folder: Path) -> None:
        if is_closed(folder, self.settings.ranks):
            self._judge.submit(folder)


def _listed(sinks: Destination | Iterable[Destination]) -> list[Destination]:
    given = cast(Any, sinks)
    several = isinstance(given, (list, tuple, set, frozenset))
    if several:
        return list(given)
    return [given]


class Window(Recording):
    """Records the steps inside a `with` block, on the first of several ranks.

        with fp8verify.window("capture") as w:
            for batch in batches:
                train(batch)
                w.step()
        w.report.verdict

    The report is made in another process; `report` waits for it.

    Args:
        folder: a new or empty folder for the capture.
        policy: requirements of the verdict.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        policy: Policy | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        settings = RunSettings(
            windows=((1, OPEN_END),),
            trace_dir=self.folder,
        )
        super().__init__(settings)
        self._judge = Judge(policy or Policy(), self._take)
        self._judged: WindowMetrics | str | None = None

    def __enter__(self) -> Self:
        if _is_first_rank():
            self.begin()
            self.observer.recorder.after(0)
        return self

    def step(self) -> None:
        """Say that a training step is complete; from then on only these count."""
        if self.observer is not None:
            super().step()

    def close(self) -> None:
        """End the window, and let it be judged."""
        if self.observer is not None:
            self.observer.recorder.close_now()
            super().close()
            self._judge.submit(self.folder)

    def _take(self, _: Path, judged: WindowMetrics | str) -> None:
        self._judged = judged

    @property
    def report(self) -> Report:
        """The report; waits for it.

        Raises:
            UsageError: there is none on this rank, or not yet.
            InputError: the window could not be judged.
        """
        self._judge.wait()
        if self._judged is None:
            raise UsageError(
                "There is no report: the window is still open, or this rank does not record.",
                "Ask for it on rank 0, after the window.",
            )
        if isinstance(self._judged, str):
            raise InputError(
                f"The window in {self.folder} could not be judged: {self._judged}.",
                f"Try fp8verify inspect {self.folder}.",
            )
        import msgspec

        from fp8verify.report.results import Report

        data = (self.folder / REPORT).read_bytes()
        return msgspec.json.decode(data, type=Report)


class Attachment:
    """From the beginning to the end of a run: a capture of windows, or a watch.

    Args:
        steps: windows to record, such as "3-4"; with `every`, the first one.
        trace_dir: the capture, for `fp8verify inspect`; optional for a watch.
        every: watch the whole training: a window every N steps.
        window: steps in a window of a watch.
        ranks: the ranks that `steps` records.
        metrics: sinks of a watch, in addition to the framework's own logs.
        min_share: low-precision share of GEMM time that ACTIVE requires.
        numerics_every: measure the tensors of FP8 layers every N steps.
    """

    def __init__(
        self,
        *,
        steps: str | None = None,
        trace_dir: str | Path | None = None,
        every: int | None = None,
        window: int | None = None,
        ranks: str = "0",
        metrics: Destination | Iterable[Destination] = (),
        min_share: float = 0.5,
        numerics_every: int | None = None,
    ) -> None:
        how: dict[str, Any] = {
            "steps": steps,
            "window": window,
            "numerics_every": numerics_every,
        }
        # Errors are the caller's: they come now, and not when the run begins.
        settings = read_settings(
            **how,
            every=every,
            ranks=ranks,
            trace_dir=trace_dir,
        )
        self._judged: deque[WindowMetrics] = deque(maxlen=MAX_UNREAD)
        self._attach: Callable[[], Recording] = partial(Recording, settings)
        if every is not None:
            sinks = [*_listed(metrics), self._judged.append]
            policy = Policy(min_share=min_share)
            self._attach = partial(
                Watch,
                every,
                **how,
                sinks=sinks,
                folder=trace_dir,
                policy=policy,
            )
        elif trace_dir is None:
            raise UsageError("There is no folder for the capture.", "Give trace_dir.")
        self._open: Recording | None = None
        self._is_done = False

    def begin(self) -> None:
        """Attach: the run is about to begin.

        A further training with the same callback is watched too, but `steps` are recorded once.
        """
        if self._open is None and not self._is_done:
            self._open = self._attach()
            self._is_done = not isinstance(self._open, Watch)
            if self._is_done:
                self._open.begin()

    def scalars(self) -> list[dict[str, float]]:
        """Return the scalars of windows that were judged since the last call."""
        several = []
        for _ in range(len(self._judged)):
            metrics = self._judged.popleft()
            scalars = {STEP: float(metrics["step"] or 0)}
            for name, value in metrics.items():
                if name.startswith(("fp8/", "train/")):
                    scalars[name] = value
            several.append(scalars)
        return several

    def end(self) -> list[dict[str, float]]:
        """Detach, and return the scalars that are left."""
        if self._open is not None:
            self._open.close()
            self._open = None
        return self.scalars()

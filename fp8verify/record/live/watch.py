"""`fp8verify.watch`: a training watched from inside for its whole life."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fp8verify.errors import UsageError
from fp8verify.record.agent_config import agent_config
from fp8verify.record.folder import make_capture_folder
from fp8verify.record.live.history import History
from fp8verify.record.live.in_process import agent, is_first_rank, is_watched
from fp8verify.record.live.judge_process import JudgeProcess
from fp8verify.record.live.metrics import WindowMetrics
from fp8verify.record.live.sinks import Call, Sink
from fp8verify.record.live.status import is_closed
from fp8verify.record.settings import LiveWindows, RankSelection, RunSettings
from fp8verify.verdict.policy import Policy

MAX_UNREAD = 256


class Watch:
    """Records a window every so many steps and has it judged in another process.

    Steps are counted by optimizers' steps, or by `step()` once it is called. Between windows a step
    costs one call of a hook. Lines reach the sinks on a thread of their own.

    Args:
        live: which steps.
        folder: for the capture: a new one, or an empty one; None for a temporary one.
        policy: what verdicts ask for.
        sinks: get a line for each window.
        on_change: called with the verdict before, None at first, and the line.
        record_shapes: whether operators' input shapes are recorded.
        numerics_every: after how many steps the tensors of FP8 layers are measured again, before
            a window; None never measures them.

    Attributes:
        folder: the capture.
    """

    def __init__(
        self,
        live: LiveWindows,
        *,
        folder: Path | None = None,
        policy: Policy | None = None,
        sinks: Sequence[Sink] = (),
        on_change: Callable[[str | None, WindowMetrics], None] | None = None,
        record_shapes: bool = True,
        numerics_every: int | None = None,
    ) -> None:
        if is_watched():
            raise UsageError("This process is watched already.", "Close the other watch first.")
        self._records = is_first_rank()
        self._is_temporary = folder is None
        if folder is None:
            # A TemporaryDirectory would be removed by a fork of this process that ends.
            folder = Path(tempfile.mkdtemp(prefix="fp8verify-"))
        elif self._records:
            make_capture_folder(folder)
        self.folder = folder.absolute()
        self._ranks = RankSelection(only=(0,))
        self._lines: deque[WindowMetrics] = deque(maxlen=MAX_UNREAD)
        self._history = History(self.folder, [*sinks, Call(self._lines.append)], on_change)
        self._judge = JudgeProcess(policy or Policy(), self._history.take)
        settings = RunSettings(
            windows=(),
            live=live,
            ranks=self._ranks,
            record_shapes=record_shapes,
            numerics=numerics_every is not None,
            numerics_every=numerics_every,
            capture_log=False,
        )
        observer: Any = agent("hooks").install_late(agent_config(settings, self.folder))
        self._observer = observer
        self._process = os.getpid()  # a fork of it has nothing to close
        observer.recorder.on_closed = self._closed
        atexit.register(self.close)  # a watch that is never closed is judged to its end too

    def step(self) -> None:
        """Say that a training step is complete; from then on only these count.

        Raises:
            UsageError: the watch is closed.
        """
        if self._observer is None:
            raise UsageError("The watch is closed.", "Call step() inside its with.")
        self._observer.announced()

    def lines(self) -> list[WindowMetrics]:
        """Return the lines that came since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    @property
    def last(self) -> WindowMetrics | None:
        """The line of the last window that was judged."""
        return self._history.last

    def close(self) -> None:
        """Stop watching, wait until every window is judged, and close the sinks."""
        if self._observer is None or self._process != os.getpid():
            return
        atexit.unregister(self.close)
        agent("hooks").uninstall()
        self._observer = None
        self._judge.wait()
        self._history.close()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _closed(self, folder: Path) -> None:
        if is_closed(folder, self._ranks):
            self._judge.submit(folder)


class Recording:
    """Records the windows of `settings` from now on, until it is closed.

    Attributes:
        folder: the capture.
    """

    def __init__(self, settings: RunSettings) -> None:
        if is_watched():
            raise UsageError("This process is watched already.", "Close the other watch first.")
        if settings.trace_dir is None:
            raise UsageError("There is no folder for the capture.", "Give trace_dir.")
        self.folder: Path = settings.trace_dir.absolute()
        if is_first_rank():  # the others may write only after a step
            make_capture_folder(self.folder)
        agent("hooks").install_late(agent_config(settings._replace(capture_log=False), self.folder))

    def close(self) -> None:
        """Write what is recorded, and take the hooks away."""
        agent("hooks").uninstall()

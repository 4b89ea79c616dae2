"""`fp8verify.window`: one window around a part of the training's own loop."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fp8verify.errors import InputError, UsageError
from fp8verify.record.agent_config import agent_config
from fp8verify.record.folder import make_capture_folder
from fp8verify.record.live.in_process import agent, is_first_rank
from fp8verify.record.live.judge import REPORT
from fp8verify.record.live.judge_process import JudgeProcess
from fp8verify.record.settings import RunSettings
from fp8verify.verdict.policy import Policy

if TYPE_CHECKING:
    from fp8verify.report.public import Report

OPEN_END = 1 << 40


class Window:
    """Records what runs inside its `with`; every rank may enter it, and the first one records.

    Args:
        folder: for the capture: a new one, or an empty one.
        policy: what the verdict asks for.
        record_shapes: whether operators' input shapes are recorded.
    """

    def __init__(
        self, folder: str | Path, *, policy: Policy | None = None, record_shapes: bool = True
    ) -> None:
        self.folder = Path(folder).absolute()
        self._record_shapes = record_shapes
        self._judge = JudgeProcess(policy or Policy())
        self._records = False
        self._recorder: Any = None
        self._clock: Any = None
        self._arbiter: Any = None
        self._report: Report | None = None
        self._error: str | None = "the window is still open"

    def __enter__(self) -> Window:
        if self._recorder is not None:
            raise UsageError("A window is entered once.", "Make another one for other steps.")
        self._records = is_first_rank()
        if self._records:
            make_capture_folder(self.folder)
        settings = RunSettings(
            windows=((1, OPEN_END),), record_shapes=self._record_shapes, capture_log=False
        )
        config = agent_config(settings, self.folder)
        self._clock = agent("steps.clock").Clock()
        self._arbiter = agent("windows.user_profiler").ProfilerArbiter(self._yield_to_user)
        self._recorder = agent("windows.manager").WindowManager(
            config, self._clock, self._arbiter, list
        )
        if self._records:
            self._arbiter.install()
            self._recorder.after(0)
        return self

    def _yield_to_user(self) -> None:
        self._recorder.yield_to_user()

    def step(self) -> None:
        """Say that a training step is complete."""
        if self._recorder is None:
            raise UsageError("The window is not open.", "Call step() inside its with.")
        if self._records and self._clock.announce(self._clock.steps + 1):
            self._recorder.after(self._clock.steps)

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._error = "this rank does not record; the first one does"
        if not self._records:
            return
        self._error = None
        self._recorder.close_now()
        self._recorder.finish(goes_on=True)
        self._arbiter.uninstall()
        self._judge.submit(self.folder)

    @property
    def report(self) -> Report:
        """The report; waits for it.

        Raises:
            UsageError: there is none on this rank, or not yet.
            InputError: the window could not be judged.
        """
        if self._error is not None:
            raise UsageError(f"There is no report: {self._error}.", "Ask for it on rank 0, after.")
        if self._report is None:
            for judged in self._judge.wait():
                if judged.error is not None:
                    raise InputError(
                        f"The window in {self.folder} could not be judged: {judged.error}.",
                        f"Try fp8verify inspect {self.folder}.",
                    )
            self._report = read_report(self.folder)
        return self._report


def read_report(folder: Path) -> Report:
    """Return the report that was written into a capture."""
    import msgspec

    from fp8verify.report.public import Report

    return msgspec.json.decode((folder / REPORT).read_bytes(), type=Report)

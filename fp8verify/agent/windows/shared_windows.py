"""Windows over which the script's own profiler ran: whose trace they get, and from which steps."""

from __future__ import annotations

from ..record.debug import debug
from ..record.rank_record import RankRecord
from .plan import Plan
from .user_profiler import ScriptProfiler, ScriptSession

RUNNING = "the script's own profiler was running"


class SharedWindows:
    """The windows that wait for the script's profiler to end, or for the trace that it exports.

    A trace of the script's over steps of a window is copied into the capture. Where it does not
    reach the window's last step, the window moves to the first steps after it, once.
    """

    def __init__(self, plan: Plan, record: RankRecord, script: ScriptProfiler) -> None:
        self._plan = plan
        self._record = record
        self._script = script
        self._waiting: dict[int, bool] = {}  # and whether the window may move
        self._moved: set[int] = set()
        self._kept = 0

    def wait(self, window: int, *, may_move: bool) -> None:
        """Let a window, which is over or cannot begin, wait for the script's profiler."""
        self._waiting[window] = may_move and window not in self._moved

    @property
    def waiting(self) -> bool:
        """Whether any window waits."""
        return bool(self._waiting)

    def settle(self, step: int) -> None:
        """Decide what can be decided when `step` steps are complete and no profiler runs."""
        for window, may_move in list(self._waiting.items()):
            sessions = self._script.over(*self._plan.windows[window])
            self._keep(window, sessions)
            if any(session.path is None and session.last == step - 1 for session in sessions):
                continue  # it ended since the last step, and may be exported before the next one
            del self._waiting[window]
            if may_move and not self._is_recorded(window, sessions):
                self._move(window, step)

    def finish(self) -> None:
        """Keep what the script exported up to the end of the run."""
        self._script.look(self._script.steps + 1)
        for window in self._waiting:
            self._keep(window, self._script.over(*self._plan.windows[window]))
        self._waiting.clear()

    def _is_recorded(self, window: int, sessions: list[ScriptSession]) -> bool:
        end = self._plan.windows[window][1]
        return any(session.kept and (session.last or 0) >= end for session in sessions)

    def _keep(self, window: int, sessions: list[ScriptSession]) -> None:
        for session in sessions:
            if session.path is None or session.kept:
                continue
            target = self._record.files.script_path(self._kept + 1, session.path)
            try:
                session.copy(target)
            except OSError as error:
                debug.error("copying the trace of the script's own profiler")
                self._record.note(
                    "the trace of the script's own profiler could not be copied: "
                    f"{error.strerror or error}"
                )
                session.path = None
                continue
            session.kept, self._kept = True, self._kept + 1
            self._enter(window, session, target.name)

    def _enter(self, window: int, session: ScriptSession, trace: str) -> None:
        first, last = session.first, session.last or session.first
        self._record.note(
            f"steps {first}-{last} were recorded by the script's own profiler, "
            f"whose trace {str(session.path)[-200:]} was copied"
        )
        if self._waiting[window] and last >= self._plan.windows[window][1]:
            self._record.mark(
                window, "complete", None, first=first, last=last, trace=trace, profiler="script"
            )
        else:
            self._record.add_script_window(first, last, trace)

    def _move(self, window: int, step: int) -> None:
        first, last = self._plan.windows[window]
        moved = (step + 2, step + 2 + last - first)
        later = [begin for begin, _ in self._plan.windows if begin > step]
        if later and moved[1] >= min(later) - 1:
            return  # those steps lie before or in another window
        self._moved.add(window)
        self._plan.windows[window] = moved
        self._record.move(window, *moved)
        self._record.note(
            f"{RUNNING} when window {first}-{last} was to begin: steps {moved[0]}-{moved[1]} were "
            "chosen instead"
        )

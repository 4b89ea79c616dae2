"""The step after the windows that runs eagerly, to name the layers of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..modules.layer_names import LayerNames
from ..record.debug import debug
from ..record.rank_record import RankRecord
from ..windows.session import Session, gpu_finishes_within

# No session begins in the hook in which another one ends: a range that C++ has open there could not
# be ended early, see `OpenRanges`. So one step lies between the last window and this one.
STEPS_AFTER_WINDOW = 2


class EagerStep:
    """A step of its own, of number `step`, in a trace of its own; what became of it is recorded.

    Args:
        session: not begun.
        modules: the linear modules of the model, when asked.
        metadata: what the trace says of itself.
    """

    def __init__(
        self,
        step: int,
        record: RankRecord,
        session: Session,
        modules: Callable[[], Sequence[tuple[str, Any]]],
        metadata: dict[str, Any],
    ) -> None:
        self.step = step
        self._record = record
        self._session = session
        self._modules = modules
        self._metadata = metadata
        self._names: LayerNames | None = None
        record.mark_naming(step, "the process ended before the step")

    def after(self, step: int) -> bool:
        """Do what is due when `step` steps are complete; return whether more is to come."""
        if step < self.step - 1:
            return True
        if step == self.step - 1:
            return self._begin()
        self.end(None)
        return False

    def end(self, why_not: str | None) -> None:
        """Go back to compiled code; keep the trace unless `why_not`."""
        if self._names is None:
            self._record.mark_naming(self.step, why_not)
            return
        self._names.remove()
        if not self._session.on_its_thread:
            why_not = why_not or "the steps moved to another thread"
        if why_not is not None:
            self._give_up(why_not)
        else:
            self._keep()

    def _begin(self) -> bool:
        self._names = LayerNames(self._modules())
        try:
            self._names.force_eager()
            self._session.start(self._metadata)
        except RuntimeError as error:
            debug.error("beginning the eager step that names layers")
            self._names.remove()
            self._record.mark_naming(self.step, str(error))
            return False
        self._session.begin_step(self.step)
        self._record.mark_naming(self.step, "the process ended inside the step")
        return True

    def _keep(self) -> None:
        self._session.stop()
        files = self._record.files
        path = files.layers_path()
        self._session.export(path, files.drafts)
        self._record.mark_naming(self.step, None, path.name)

    def _give_up(self, reason: str) -> None:
        session = self._session
        if session.state == "recording" and session.on_its_thread and gpu_finishes_within():
            session.stop()
        else:
            session.drop()
        self._record.mark_naming(self.step, reason)

"""What the numbers of the training are: scales at each window, and tensors in steps of their own.

Scales and gradients are looked at before the profiler starts and after it has stopped, so that no
kernel of ours is in a trace. `run --numerics` measures all tensors of FP8 layers in the second step
after the windows (`numerics/step.py`); `--numerics-every` does so again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..modules.eager_step import STEPS_AFTER_WINDOW
from ..modules.layer_names import compiles
from ..modules.layers import expert_modules, linear_modules
from ..numerics.gradients import gradient_norm
from ..numerics.scalers import scales_of, used_scalers
from ..record.debug import debug, describe
from ..record.process import is_selected
from .instrument import Instrument, Scene

# The rest of `numerics` is imported where it is used: every start of a run waits for this file.
if TYPE_CHECKING:
    from ..numerics.step import MeasuredStep
    from ..numerics.te_state import State

SCHEMA = 1
ENDED = "the run ended before the step to measure was complete"


class Numerics(Instrument):
    """Looks at scales, gradients and tensors; writes `rankR.numerics.json`."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._every = int(scene.config["numerics_every"] or 0)
        self._wanted = bool(scene.config["numerics"] or self._every)
        self._now = 0
        self._next: int | None = None
        self._measured: MeasuredStep | None = None
        self._rehearsed = False
        self._before: State | None = None
        self._gradients: list[dict[str, Any]] = []
        self._scales: list[float | None] = []
        self._windows: list[dict[str, Any]] = []
        self._first: dict[str, Any] | None = None
        # A watch measures before its windows, so that each has the figures of its own time.
        self._live = bool(scene.config["live"])
        self._latest: int | None = None
        self._reason: str | None = ENDED if self._wanted and not self._live else None

    def begin(self) -> None:
        """Look at the scales that the window begins with."""
        self._gradients = self._gradient_now()
        self._before = self._state()
        self._scales = scales_of(used_scalers())

    def end(self) -> dict[str, Any]:
        """Look at the scales that the window leaves, and write them down."""
        gradients = [*self._gradients, *self._gradient_now()]
        after, scalers = self._state(), used_scalers()
        if after.slots or after.recipes or scalers:
            from ..numerics.te_state import in_words

            self._windows.append(
                {
                    "last_step": self._now,
                    **in_words(self._before, after),
                    "loss_scales": scales_of(scalers),
                    "loss_scales_before": self._scales,
                }
            )
        self._before = None
        self._write()
        if self._live:
            self._forget()
        elif self._next is not None and not self._rehearsed:
            self._rehearse()
        return {"gradients": gradients}

    def drop(self) -> None:
        """Take the hooks off; a step that was cut short is made up for."""
        self._before = None
        measured, self._measured = self._measured, None
        if measured is not None:
            measured.leave()
            self._next = None
        if self._live:
            self._forget()

    def _forget(self) -> None:
        """Let go of what was written beside one window of a watch: the next has a file of its own.

        What is planned for the next one stays.
        """
        self._windows, self._first, self._reason = [], None, None

    @property
    def measures(self) -> bool:
        """Whether the running step is one that is measured."""
        return self._measured is not None

    def after_step(self, step: int, /) -> None:
        """Begin and end the steps that are measured."""
        self._now = step
        if not self._wanted:
            return
        if self._next is None:
            if self.scene.windows_over(step) and self._is_due(step + STEPS_AFTER_WINDOW):
                self._next, self._reason = step + STEPS_AFTER_WINDOW, ENDED
                self._write()
        elif step == self._next - 1:
            self._start()
        elif step == self._next:
            self._finish()

    def _is_due(self, step: int) -> bool:
        """Whether the steps of `--numerics-every` have gone by since the last measured one."""
        return self._latest is None or step - self._latest >= self._every

    def _rehearse(self) -> None:
        """Load what the measured step needs, now that the trace is written anyway."""
        from ..numerics.rehearsal import rehearse

        self._rehearsed = True
        try:
            debug.event(f"numerics rehearsed: {rehearse(self._modules())} casts")
        except RuntimeError as error:  # no memory, say: then the step itself will tell
            debug.event(f"numerics not rehearsed: {describe(error)}")

    def _modules(self) -> list[tuple[str, Any]]:
        optimizers = self.scene.optimizers()
        return [*linear_modules(optimizers), *expert_modules(optimizers)]

    def _state(self) -> State:
        from ..numerics.te_state import State

        return State(self._modules())

    def _gradient_now(self) -> list[dict[str, Any]]:
        found = gradient_norm(self.scene.optimizers())
        return [] if found is None else [{"step": self._now, **found}]

    def _start(self) -> None:
        why_not = self._obstacle()
        if why_not is not None:
            self._give_up(why_not)
            return
        from ..numerics.step import MeasuredStep

        measured = MeasuredStep(self._now + 1, self._modules())
        try:
            measured.begin()
        except RuntimeError as error:
            measured.leave()
            self._give_up(f"the step cannot run eagerly: {error}")
            return
        self._measured = measured

    def _obstacle(self) -> str | None:
        record, ranks = self.scene.record(), self.scene.config["ranks"]
        if not is_selected(record.rank, ranks):
            return f"rank {record.rank} is not among the ranks to profile"
        alone = not all(is_selected(rank, ranks) for rank in range(record.world_size))
        if alone and compiles():
            # A rank that alone runs eagerly may order its collectives differently: all, or none.
            return "numerics of compiled code need --ranks all"
        return None

    def _give_up(self, reason: str) -> None:
        self._wanted, self._reason = False, reason
        debug.event(f"no step is measured: {reason}")
        self._write()

    def _finish(self) -> None:
        measured, self._measured = self._measured, None
        if measured is None:
            return
        measured.leave()
        try:
            result = measured.result(self.scene.optimizers)
        except Exception as error:  # of the GPU, which will tell the training too, or of ours
            self._give_up(describe(error))
            return
        debug.event(f"step {measured.number} is measured: {len(result['rows'])} tensors")
        if self._first is None:
            self._first, self._reason = result, None
            self._write()
        if self._every or self._live:
            from ..numerics.series import line_of

            self.scene.record().files.append_numerics(line_of(result))
        if self._every:
            self._latest = measured.number
            self._next = None if self._live else measured.number + self._every
        else:
            self._wanted = False

    def _write(self) -> None:
        """Write the file, if there is anything to tell."""
        if not (self._windows or self._wanted or self._first or self._reason):
            return
        self.scene.record().files.write_numerics(
            {
                "schema": SCHEMA,
                "rank": self.scene.record().rank,
                "windows": self._windows,
                "measured": self._first,
                "reason": self._reason,
            }
        )

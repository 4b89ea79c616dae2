"""Numerics of the script: scales at each window, and tensors in separate measured steps.

Scales and gradients are read before the profiler starts and after it has stopped, so no trace
contains fp8verify's kernels. `run --numerics` measures all tensors of FP8 layers in the second step
after the windows (`step_hooks.py`); `--numerics-every` repeats that. Of compiled code, which calls
no hooks, the weights and gradients are measured when the step is over, and inputs and output
gradients only with `--numerics-eager`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..debug import debug, describe
from ..eager import RefusedError, eager_step
from ..guard import is_the_scripts
from ..instruments import Instrument, InstrumentContext, compiles
from ..layers import trained_layers
from ..process import is_selected
from .scales import KeptScales, gradient_norm, scale_records

# The rest of `numerics` is imported if it is used: every start of a run waits for this file.
if TYPE_CHECKING:
    from .step_hooks import NumericsHooks

SCHEMA = 1
STEPS_AFTER_WINDOW = 2
ENDED = "the run ended before the step to measure was complete"


class Numerics(Instrument):
    """Looks at scales, gradients and tensors; writes `rankR.numerics.json`."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._every = context.config["numerics_every"] or 0
        self._wanted = bool(context.config["numerics"] or self._every)
        self._may_run_eagerly = bool(context.config["numerics_eager"])
        # A watch measures before its windows, so each has the figures of its own time.
        self._live = context.config["live"] is not None
        self._now = 0
        self._next: int | None = None  # to measure
        self._latest: int | None = None
        self._hooks: NumericsHooks | None = None
        self._step = ExitStack()  # what is to be undone when it is over
        self._scales: KeptScales | None = None  # that the window began with
        self._gradients: list[dict[str, Any]] = []
        self._windows: list[dict[str, Any]] = []
        self._first: dict[str, Any] | None = None
        self._reason: str | None = ENDED if self._wanted and not self._live else None

    @property
    def measures(self) -> bool:  # type: ignore[override]
        """Whether the running step is one that is measured."""
        return self._hooks is not None

    def begin(self) -> None:
        """Look at the scales and gradients that the window begins with."""
        self._scales = KeptScales(self._modules())
        self._gradients = self._gradient_now()

    def end(self) -> dict[str, Any]:
        """Look at the scales and gradients that the window leaves, and write down the scales."""
        after = KeptScales(self._modules())
        has_scales = bool(after.slots or after.recipes or after.loss_scales)
        if has_scales and self._scales is not None:
            scales = scale_records(self._scales, after)
            self._windows.append({"last_step": self._now, **scales})
        self._write()
        if self._live:
            self._forget()
        return {"gradients": [*self._gradients, *self._gradient_now()]}

    def drop(self) -> None:
        """Take the hooks off; a step that was cut short is made up for."""
        if self._hooks is not None:
            self._next = None
        self._leave()
        if self._live:
            self._forget()

    def after_step(self, step: int, /) -> None:
        """Begin and end the steps that are measured."""
        self._now = step
        if self._hooks is not None:
            self._finish(self._hooks)
        if not self._wanted:
            return
        if self._next is None:
            first = step + STEPS_AFTER_WINDOW
            due = self._latest is None or first - self._latest >= self._every
            if due and self.context.may_measure(step):
                self._plan(first)
        elif step + 1 >= self._next:
            self._start()

    def _forget(self) -> None:
        """Drop what was written for one window of a watch: the next has a file of its own.

        What is planned for the next one stays.
        """
        self._windows = []
        self._first = None
        self._reason = None

    def _modules(self) -> list[tuple[str, Any]]:
        own = self.context.own()
        if not own:  # what is read must be no other thread's
            return []
        return [(layer.name, layer.module) for layer in trained_layers(own)]

    def _gradient_now(self) -> list[dict[str, Any]]:
        gradient = gradient_norm(self.context.own())
        if gradient is None:
            return []
        return [{"step": self._now, **gradient}]

    def _plan(self, step: int) -> None:
        files = self.context.record().files
        config = self.context.config
        if not is_selected(files.rank, config["ranks"]):
            self._give_up(f"rank {files.rank} is not among the ranks to profile")
            return
        self._next = step
        self._reason = ENDED
        if self._may_run_eagerly and compiles():
            eager_step.plan(step, config["boot"], files.rank, files.world_size)
        self._write()

    def _start(self) -> None:
        from .step_hooks import NumericsHooks

        why_not = None
        if compiles():  # only eager code calls hooks
            why_not = self._begin_eager_step()
        self._hooks = NumericsHooks(self._modules(), why_not)
        self._step.callback(self._hooks.remove)

    def _begin_eager_step(self) -> str | None:
        """Have the step run eagerly, if that is wanted; return why not, None if it does."""
        if not self._may_run_eagerly:
            return "compiled code calls no hooks (--numerics-eager runs the step without it)"
        try:
            self._step.enter_context(eager_step)
        except RefusedError as error:
            return f"the step cannot run eagerly: {error}"
        return None

    def _leave(self) -> None:
        """Take the hooks off; compiled code runs as before."""
        self._hooks = None
        self._step.close()

    def _give_up(self, reason: str) -> None:
        self._wanted = False
        self._reason = reason
        debug.event(f"no step is measured: {reason}")
        self._write()

    def _finish(self, hooks: NumericsHooks) -> None:
        self._leave()
        try:
            result = hooks.result(self._now, self.context.own())
        except Exception as error:  # of the GPU, which the script will see too
            if is_the_scripts(error):
                raise
            self._give_up(describe(error))
            return
        debug.event(f"step {self._now} is measured: {len(result['rows'])} tensors")
        if self._first is None:
            self._first = result
            self._reason = None
            self._write()
        if self._every or self._live:
            self._append(result)
        if not self._every:
            self._wanted = False
            return
        self._latest = self._now
        self._next = None
        if not self._live:
            self._next = self._now + self._every

    def _append(self, result: dict[str, Any]) -> None:
        """Add a measured step to the series."""
        from .figures import shortened

        rows = list(map(shortened, result["rows"]))
        line = result | {"rows": rows}
        text = json.dumps(line, separators=(",", ":"))
        files = self.context.record().files
        files.append_numerics(f"{text}\n")

    def _write(self) -> None:
        """Write the file, if it has any content."""
        if self._windows or self._wanted or self._first or self._reason:
            files = self.context.record().files
            record = {
                "schema": SCHEMA,
                "rank": files.rank,
                "windows": self._windows,
                "measured": self._first,
                "reason": self._reason,
            }
            files.write_numerics(record)

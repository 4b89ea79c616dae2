"""What the numbers of the training are: scales at each window, and tensors in steps of their own.

Scales, gradients and FP8 copies of weights are read before the profiler starts and after it has
stopped, so that no kernel of ours is in a trace. `run --numerics` measures all tensors of FP8
layers in the second step after the windows (`numerics/step_hooks.py`); `--numerics-every` repeats
that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..modules.layer_names import compiles
from ..modules.layers import expert_modules, linear_modules
from ..numerics.gradients import gradient_norm, scales_of, used_scalers
from ..record.debug import debug, describe
from ..record.process import is_selected
from ..windows.eager_step import STEPS_AFTER_WINDOW
from .instrument import Instrument, InstrumentContext

# The rest of `numerics` is imported where it is used: every start of a run waits for this file.
if TYPE_CHECKING:
    from ..numerics.step_hooks import MeasuredStep
    from ..numerics.te_scales import State
    from ..numerics.weight_copies import WeightCopies

SCHEMA = 1
ENDED = "the run ended before the step to measure was complete"


class Numerics(Instrument):
    """Looks at scales, gradients, weight copies and tensors; writes `rankR.numerics.json`."""

    def __init__(self, context: InstrumentContext) -> None:
        super().__init__(context)
        self._every = int(context.config["numerics_every"] or 0)
        self._wanted = bool(context.config["numerics"] or self._every)
        self._now = 0
        self._next: int | None = None  # to measure
        self._measured: MeasuredStep | None = None
        self._before: State | None = None
        self._copies: WeightCopies | None = None  # of the moment before
        self._copies_ms = 0.0
        self._follows = False  # whether the step after a window is still to be looked at
        self._gradients: list[dict[str, Any]] = []
        self._scales: list[float | None] = []
        self._windows: list[dict[str, Any]] = []
        self._first: dict[str, Any] | None = None
        # A watch measures before its windows, so that each has the figures of its own time.
        self._live = bool(context.config["live"])
        self._latest: int | None = None
        self._reason: str | None = ENDED if self._wanted and not self._live else None

    def begin(self) -> None:
        """Look at the scales and weight copies that the window begins with."""
        self._gradients = self._gradient_now()
        self._before = self._state()
        self._copies, self._copies_ms = self._sample_copies()
        self._follows = False
        self._scales = scales_of(used_scalers())

    def end(self) -> dict[str, Any]:
        """Look at the scales and weight copies that the window leaves, and write them down."""
        gradients = [*self._gradients, *self._gradient_now()]
        after, scalers = self._state(), used_scalers()
        weights = self._compare_copies()
        if after.slots or after.recipes or scalers or weights:
            from ..numerics.te_scales import in_words

            self._windows.append(
                {
                    "last_step": self._now,
                    **in_words(self._before, after),
                    "loss_scales": scales_of(scalers),
                    "loss_scales_before": self._scales,
                    "weights": weights,
                    "weights_ms": round(self._copies_ms, 3),
                }
            )
        self._before, self._follows = None, bool(weights) and not self._live
        self._write()
        if self._live:
            self._forget()
        return {"gradients": gradients}

    def drop(self) -> None:
        """Take the hooks off; a step that was cut short is made up for."""
        self._before, self._copies, self._follows = None, None, False
        measured, self._measured = self._measured, None
        if measured is not None:
            measured.leave()
            self._next = None
        if self._live:
            self._forget()

    def after_step(self, step: int, /) -> None:
        """Begin and end the steps that are measured."""
        self._now = step
        if self._follows:
            self._follow_copies()
        if self._measured is not None:
            self._finish(self._measured)
        if not self._wanted:
            return
        if self._next is None:
            first = step + STEPS_AFTER_WINDOW
            due = self._latest is None or first - self._latest >= self._every
            if due and self.context.windows_over(step):
                self._next, self._reason = first, ENDED
                self._write()
        elif step + 1 >= self._next:
            self._start()

    def _forget(self) -> None:
        """Drop what was written for one window of a watch: the next has a file of its own.

        What is planned for the next one stays.
        """
        self._windows, self._first, self._reason, self._copies = [], None, None, None

    @property
    def measures(self) -> bool:
        """Whether the running step is one that is measured."""
        return self._measured is not None

    def _modules(self) -> list[tuple[str, Any]]:
        optimizers = self.context.optimizers()
        return [*linear_modules(optimizers), *expert_modules(optimizers)]

    def _state(self) -> State:
        from ..numerics.te_scales import State

        return State(self._modules())

    def _sample_copies(self) -> tuple[WeightCopies | None, float]:
        """Return the FP8 copies of weights, None if none is kept, and how long that took in ms."""
        from ..numerics.weight_copies import Places, WeightCopies

        began = time.perf_counter()
        try:
            copies = WeightCopies(self._modules(), self.context.optimizers(), Places())
        except Exception as error:  # a tensor class that is not what its names say
            debug.event(f"FP8 copies of weights are not compared: {describe(error)}")
            return None, 0.0
        return (copies if copies.samples else None), (time.perf_counter() - began) * 1e3

    def _compare_copies(self) -> list[dict[str, Any]]:
        """Return how copies and masters have changed since the moment before, which is now."""
        before, self._copies = self._copies, None
        if before is None:
            return []
        from ..numerics.weight_copies import compare

        self._copies, spent = self._sample_copies()
        began = time.perf_counter()
        try:
            found = [] if self._copies is None else compare(before, self._copies)
        except Exception as error:
            debug.event(f"FP8 copies of weights are not compared: {describe(error)}")
            return []
        self._copies_ms += spent + (time.perf_counter() - began) * 1e3
        return found

    def _follow_copies(self) -> None:
        """Compare once more, one step after a window.

        In that step a sound copy was cast either from the master as the window left it or, by an
        optimizer that refreshes FP8 parameters, from the master as it is now.
        """
        self._follows = False
        found, self._copies = self._compare_copies(), None
        if found:
            self._windows[-1] |= {"weights": found, "weights_ms": round(self._copies_ms, 3)}
            self._write()

    def _gradient_now(self) -> list[dict[str, Any]]:
        found = gradient_norm(self.context.optimizers())
        return [] if found is None else [{"step": self._now, **found}]

    def _start(self) -> None:
        why_not = self._obstacle()
        if why_not is not None:
            self._give_up(why_not)
            return
        from ..numerics.step_hooks import MeasuredStep

        measured = MeasuredStep(self._now + 1, self._modules())
        try:
            measured.begin()
        except RuntimeError as error:
            measured.leave()
            self._give_up(f"the step cannot run eagerly: {error}")
            return
        self._measured = measured

    def _obstacle(self) -> str | None:
        record, ranks = self.context.record(), self.context.config["ranks"]
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

    def _finish(self, measured: MeasuredStep) -> None:
        self._measured = None
        measured.leave()
        try:
            result = measured.result(self.context.optimizers)
        except Exception as error:  # of the GPU, which the training will see too, or of ours
            self._give_up(describe(error))
            return
        debug.event(f"step {measured.number} is measured: {len(result['rows'])} tensors")
        if self._first is None:
            self._first, self._reason = result, None
            self._write()
        if self._every or self._live:
            from ..numerics.table import series_line

            self.context.record().files.append_numerics(series_line(result))
        if self._every:
            self._latest = measured.number
            self._next = None if self._live else measured.number + self._every
        else:
            self._wanted = False

    def _write(self) -> None:
        """Write the file, if it has any content."""
        if not (self._windows or self._wanted or self._first or self._reason):
            return
        self.context.record().files.write_numerics(
            {
                "schema": SCHEMA,
                "rank": self.context.record().rank,
                "windows": self._windows,
                "measured": self._first,
                "reason": self._reason,
            }
        )

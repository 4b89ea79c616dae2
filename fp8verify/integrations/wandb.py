"""Scalars of windows for Weights & Biases."""

from __future__ import annotations

from typing import Any

from fp8verify.integrations.requires import requires
from fp8verify.record.live.line import Line, scalars_in

STEP = "fp8/step"


class WandbSink:
    """Logs the scalars of each line to a run, by an axis of their own, `fp8/step`.

    Args:
        run: a run, or the project of a new one; "" is the run that is active, if there is one.
    """

    def __init__(self, run: Any = "") -> None:
        self._owned = False
        if isinstance(run, str):
            with requires("wandb"):
                import wandb

            self._owned = bool(run) or wandb.run is None
            run = wandb.init(project=run or "fp8verify") if self._owned else wandb.run
        self._run = run
        # The training's own step count may be ahead of a window that was judged meanwhile.
        run.define_metric(STEP)
        run.define_metric("fp8/*", step_metric=STEP)
        if self._owned:  # in a training's own run they are the training's names too
            run.define_metric("train/*", step_metric=STEP)

    def write(self, line: Line) -> None:
        """Log the scalars; in a training's own run they go with what it logs next."""
        values = {**scalars_in(line), "fp8/verdict": line["verdict"], STEP: line["step"]}
        self._run.log(values, commit=self._owned)

    def close(self) -> None:
        """Finish the run if it is ours."""
        if self._owned:
            self._run.finish()

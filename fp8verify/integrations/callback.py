"""What the callbacks of all training frameworks have in common."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fp8verify.integrations.own_loop import Destination, watch
from fp8verify.record.live.metrics import WindowMetrics, scalars_in
from fp8verify.record.live.watch import Recording, Watch
from fp8verify.record.settings import read_settings
from fp8verify.verdict.policy import Policy


class Attachment:
    """From the begin to the end of a training: a capture of windows, or a watch.

    Args:
        steps: windows to record, such as "3-4"; with `every`, the first one.
        trace_dir: the capture, for `fp8verify inspect`; a watch may do without.
        every: watch the whole training: a window every so many steps.
        window: steps in a window of a watch.
        ranks: whose windows `steps` records.
        metrics: sinks of a watch, besides the framework's own logs.
        min_share: low-precision share of GEMM time that ACTIVE asks for.
        numerics_every: measure the tensors of FP8 layers after so many steps, again and again.
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
        # Errors are the caller's: they come now, and not when the training begins.
        self._settings = read_settings(
            steps=steps,
            every=every,
            window=window,
            ranks=ranks,
            trace_dir=trace_dir,
            numerics_every=numerics_every,
        )
        self._every, self._window, self._steps = every, window, steps
        self._metrics = metrics
        self._policy = Policy(min_share=min_share)
        self._open: Watch | Recording | None = None
        self._recorded = False

    def begin(self) -> None:
        """Attach: the training is about to begin.

        A further training with the same callback is watched too, but `steps` are recorded once.
        """
        if self._open is not None:
            return
        if self._every is None:
            if not self._recorded:
                self._open = Recording(self._settings)
            self._recorded = True
            return
        self._open = watch(
            self._every,
            window=self._window,
            steps=self._steps,
            sinks=self._metrics,
            folder=self._settings.trace_dir,
            policy=self._policy,
            numerics_every=self._settings.numerics_every,
        )

    def scalars(self) -> list[dict[str, float]]:
        """Return the scalars of windows that were judged since the last call."""
        lines: list[WindowMetrics] = self._open.lines() if isinstance(self._open, Watch) else []
        return [{**scalars_in(line), "fp8/step": float(line["step"] or 0)} for line in lines]

    def end(self) -> list[dict[str, float]]:
        """Detach, and return the scalars that are left."""
        if self._open is None:
            return []
        self._open.close()
        left = self.scalars()
        self._open = None
        return left

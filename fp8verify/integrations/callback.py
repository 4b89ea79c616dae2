"""What the callbacks of all training frameworks have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fp8verify.errors import UsageError
from fp8verify.integrations.own_loop import Recording, Watch
from fp8verify.record.settings import read_settings
from fp8verify.record.window_metrics import Destination, scalars_in
from fp8verify.verdict.policy import Policy

STEP = "fp8/step"


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
        settings = read_settings(**how, every=every, ranks=ranks, trace_dir=trace_dir)
        self._attach: Callable[[], Watch | Recording] = partial(Recording, settings)
        if every is not None:
            policy = Policy(min_share=min_share)
            self._attach = partial(
                Watch, every, **how, sinks=metrics, folder=trace_dir, policy=policy
            )
        elif trace_dir is None:
            raise UsageError("There is no folder for the capture.", "Give trace_dir.")
        self._open: Watch | Recording | None = None
        self._is_done = False

    def begin(self) -> None:
        """Attach: the run is about to begin.

        A further training with the same callback is watched too, but `steps` are recorded once.
        """
        if self._open is None and not self._is_done:
            self._open = self._attach()
            self._is_done = isinstance(self._open, Recording)

    def scalars(self) -> list[dict[str, float]]:
        """Return the scalars of windows that were judged since the last call."""
        judged = self._open.lines() if isinstance(self._open, Watch) else []
        return [{**scalars_in(one), STEP: float(one["step"] or 0)} for one in judged]

    def end(self) -> list[dict[str, float]]:
        """Detach, and return the scalars that are left."""
        if self._open is None:
            return []
        self._open.close()
        left = self.scalars()
        self._open = None
        return left

"""A callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from fp8verify.errors import requires
from fp8verify.integrations.own_loop import Attachment

with requires("lightning", "fp8verify.integrations.lightning"):
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class Fp8VerifyCallback(Callback):  # type: ignore[misc]
    """Record windows of a run, or watch all of it; the arguments are `Attachment`'s.

    Scalars of a watch go to the Trainer's loggers as fp8/share_of_gemm_time and so on.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._attachment = Attachment(**options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach."""
        self._attachment.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Log what was judged meanwhile."""
        _log(trainer, self._attachment.scalars())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Detach, and log what is left."""
        _log(trainer, self._attachment.end())

    def on_exception(
        self, trainer: Any, pl_module: Any, exception: BaseException
    ) -> None:
        """Detach: `on_train_end` does not come."""
        self._attachment.end()


def _log(trainer: Any, windows: list[dict[str, float]]) -> None:
    for scalars in windows:
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=trainer.global_step)

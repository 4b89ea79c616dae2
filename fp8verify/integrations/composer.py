"""A callback for MosaicML's Composer."""

from __future__ import annotations

from typing import Any

from fp8verify.integrations.callback import Attachment
from fp8verify.integrations.requires import requires

with requires("composer"):
    from composer import Callback


class Fp8VerifyCallback(Callback):  # type: ignore[misc]
    """Record windows of a training, or watch all of it; the arguments are `Attachment`'s.

    Scalars of a watch go to Composer's loggers as fp8/share_of_gemm_time and so on.
    """

    def __init__(self, **options: Any) -> None:
        self._attachment = Attachment(**options)

    def fit_start(self, state: Any, logger: Any) -> None:
        """Attach."""
        self._attachment.begin()

    def batch_end(self, state: Any, logger: Any) -> None:
        """Log what was judged meanwhile."""
        for scalars in self._attachment.scalars():
            logger.log_metrics(scalars)

    def fit_end(self, state: Any, logger: Any) -> None:
        """Detach, and log what is left."""
        for scalars in self._attachment.end():
            logger.log_metrics(scalars)

    def close(self, state: Any, logger: Any) -> None:
        """Detach: a training that failed has no end."""
        self._attachment.end()

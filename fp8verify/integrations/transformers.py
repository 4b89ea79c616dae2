"""A callback for Hugging Face's Trainer, and for those that derive from it (TRL, axolotl)."""

from __future__ import annotations

from typing import Any

from fp8verify.errors import requires
from fp8verify.integrations.own_loop import Attachment, agent

with requires("transformers", "fp8verify.integrations.transformers"):
    from transformers import Trainer, TrainerCallback


class Fp8VerifyCallback(TrainerCallback):  # type: ignore[misc]
    """Record windows of a run, or watch all of it; the arguments are `Attachment`'s.

    Scalars of a watch go to the Trainer's own logs as fp8/share_of_gemm_time and so on.
    """

    def __init__(self, **options: Any) -> None:
        self._attachment = Attachment(**options)
        self._trainer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Attach."""
        self._trainer = _trainer_of(self)
        self._attachment.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log what was judged meanwhile."""
        self._log(self._attachment.scalars())

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach, and log what is left."""
        self._log(self._attachment.end())
        self._trainer = None

    def _log(self, windows: list[dict[str, float]]) -> None:
        for scalars in windows:
            if self._trainer is not None:
                self._trainer.log(scalars)


def _trainer_of(callback: TrainerCallback) -> Any:
    """Return the Trainer of a callback, which transformers does not pass to it."""
    find_instances = agent("process").find_instances
    trainers = find_instances(lambda kind: issubclass(kind, Trainer), patient=True)
    for trainer in trainers:
        handler = getattr(trainer, "callback_handler", None)
        callbacks = getattr(handler, "callbacks", ())
        if any(one is callback for one in callbacks):
            return trainer
    return None

"""See the operands of `torch._scaled_mm` while a step is measured.

Classes of a script's own that call it say nowhere how they cast; the operands do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .formats import FORMATS
from .replay import ROWWISE, TENSORWISE, Cast

# Its first arguments, all of which may be given by name: native_functions.yaml, `_scaled_mm`.
NAMES = ("input", "mat2", "scale_a", "scale_b")


class Operand(NamedTuple):
    """One operand of a product, as torch was given it; few of them are asked for more.

    Attributes:
        values: the matrix.
        inverse: its scale.
    """

    values: Any
    inverse: Any

    def transposed(self) -> Operand:
        """Return the second operand as the first one lies: columns are summed over."""
        return self._replace(values=self.values.t())

    def cast(self) -> Cast | None:
        """Return how the operand was cast; None where its scale does not tell."""
        values, inverse = self
        if not isinstance(inverse, Tensor) or values.dtype not in FORMATS:
            return None
        if inverse.dtype != torch.float32 or inverse.numel() not in (1, values.shape[0]):
            return None
        if max(inverse.shape, default=1) != inverse.numel():
            return None  # a grid of blocks
        scale = inverse.detach().reciprocal()
        by_row = inverse.numel() > 1
        return Cast(
            FORMATS[values.dtype],
            ROWWISE if by_row else TENSORWISE,
            scale=scale.reshape(-1) if by_row else scale.reshape(()),
        )


Listener = Callable[[Operand, Operand], None]


class OwnProducts:
    """Tells `listener` of each call's two operands.

    The function is the original again after `remove`.
    """

    def __init__(self, listener: Listener) -> None:
        self._original: Any = torch._scaled_mm
        original = self._original

        def fp8verify_scaled_mm(*args: Any, **kwargs: Any) -> Any:
            given: list[Any] = [*args[:4], *map(kwargs.get, NAMES[len(args) :])]
            a, b, scale_a, scale_b = given
            listener(Operand(a, scale_a), Operand(b, scale_b))
            return original(*args, **kwargs)

        self._ours = fp8verify_scaled_mm
        torch._scaled_mm = fp8verify_scaled_mm

    def remove(self) -> None:
        """Put the original back, unless somebody else has replaced it since."""
        if torch._scaled_mm is self._ours:
            torch._scaled_mm = self._original

"""What operators were called with, kept as the undecoded JSON until a kernel asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fp8verify.text import clean

if TYPE_CHECKING:
    from fp8verify.terms import Shape

# Valid JSON holds no NUL byte, so this cannot occur inside a part.
SEPARATOR = b"\0"

_types = msgspec.json.Decoder(tuple[str, ...])
_dims = msgspec.json.Decoder(tuple[tuple[int, ...], ...])
_any = msgspec.json.Decoder()


class RawInputs:
    """The `Inputs` in the JSON of (types, dims, forward thread), joined by `SEPARATOR`."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the arguments, none if they are damaged."""
        raw = self._raw.split(SEPARATOR)[0]
        try:
            return tuple(map(clean, _types.decode(raw))) if raw else ()
        except (ValueError, RecursionError):
            return ()

    @property
    def dims(self) -> tuple[Shape, ...]:
        """The shapes; a list of tensors has shapes of its own, and counts as having none."""
        raw = self._raw.split(SEPARATOR)[1]
        try:
            return _dims.decode(raw) if raw else ()
        except (ValueError, RecursionError):
            pass
        try:
            return tuple(_shape(item) for item in _any.decode(raw))
        except (ValueError, TypeError, RecursionError):
            return ()

    @property
    def forward_thread(self) -> bytes | None:
        """The number of the forward pass's thread; None unless autograd ran the operator."""
        number = self._raw.rpartition(SEPARATOR)[2].strip(b'" ')
        return None if number in (b"", b"0", b"-1") else number


def _shape(item: Any) -> Shape:
    flat = isinstance(item, list) and all(isinstance(size, int) for size in item)
    return tuple(item) if flat else ()

"""All instruments of a process, called together; one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ..instruments import INSTRUMENTS
from ..record.debug import debug, describe
from .instrument import Instrument, InstrumentContext


class InstrumentSet:
    """The instruments that still work.

    Args:
        note: keeps a remark for the reader of the report.
        kinds: the classes of the instruments.
    """

    def __init__(
        self,
        context: InstrumentContext,
        note: Callable[[str], None],
        kinds: Iterable[type[Instrument]] = INSTRUMENTS,
    ) -> None:
        self._note = note
        self._instruments = [kind(context) for kind in kinds]

    def before_window(self) -> None:
        """Let all look at the training before a window begins."""
        self._call("before_window")

    def begin(self) -> None:
        """Let all get ready for a window."""
        self._call("begin")

    def after_step(self, step: int) -> None:
        """Tell all that `step` steps are complete."""
        self._call("after_step", step)

    def end(self) -> dict[str, Any]:
        """Return what all have to say of the window that has ended."""
        return self._call("end")

    def drop(self) -> None:
        """Let all undo what they did for a window that is lost."""
        self._call("drop")

    @property
    def measures(self) -> bool:
        """Whether an instrument slows the running step down."""
        return any(instrument.measures for instrument in self._instruments)

    def record(self) -> dict[str, Any]:
        """Return what all have to say of the rank."""
        return self._call("record")

    def _call(self, method: str, *args: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for instrument in tuple(self._instruments):
            fields.update(self._ask(instrument, method, *args))
        return fields

    def _ask(self, instrument: Instrument, method: str, *args: Any) -> dict[str, Any]:
        try:
            return getattr(instrument, method)(*args) or {}
        except Exception as error:
            self._put_away(instrument, f"{type(instrument).__name__}.{method}", error)
            return {}

    def _put_away(self, instrument: Instrument, what: str, error: Exception) -> None:
        debug.error(what)
        self._instruments.remove(instrument)
        self._note(f"{what} failed: {describe(error)}; {debug.how_to_see_more}")
        with suppress(Exception):
            instrument.drop()

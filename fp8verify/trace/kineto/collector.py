"""Turn decoded events into columns, block by block."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from fp8verify.text import lazy_pattern
from fp8verify.trace.columns import Columns, Interner
from fp8verify.trace.kineto import events as ev
from fp8verify.trace.kineto.event_rows import TIMED_ADDERS, Rows, add_events
from fp8verify.trace.kineto.inputs import RawInputs
from fp8verify.trace.kineto.times import EXACT_LIMIT, parse_micros, to_nanoseconds
from fp8verify.trace.steps import mark_profiler_steps

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGE_FRACTION = lazy_pattern(rb'"ts"\s*:\s*"?-?\d{13,}\.\d*[1-9]')


_FIELDS = ("cat", "name", "pid", "tid", "ts", "dur", "args")
_as_json = msgspec.json.Encoder(decimal_format="number").encode


class _NeedsTextError(Exception):
    """A time stamp that a double may not hold to the nanosecond."""


class Collector:
    """The sink of a document's events, which fills the columns.

    Args:
        sequences: keep autograd's sequence numbers too, which makes decoding slower.
    """

    def __init__(self, *, sequences: bool = False) -> None:
        self.columns = Columns()
        self.events = self.skipped = 0
        self.inputs = Interner()
        self._base_ns: int | None = None
        self._sequences = sequences
        self._exact = self._whole_micros = False
        self._decoders = ev.Decoders(ev.Micros, sequences=sequences)

    def finish(self) -> Columns:
        """Return the columns of all events."""
        columns = self.columns
        columns.base_ns = self._base_ns or 0
        columns.inputs = list(map(RawInputs, self.inputs))
        mark_profiler_steps(columns)
        return columns

    # -- decoding -------------------------------------------------------------------------------

    def block(self, data: bytes | memoryview) -> bool:
        """Take a JSON list of whole events; False if it does not decode as such."""
        try:
            self._add_exactly(data, lambda: self._decoders.block.decode(data))
        except (ValueError, RecursionError):
            return False
        return True

    def _add_exactly(self, data: bytes | memoryview, decode: Callable[[], list[Any]]) -> None:
        """Add what `decode` returns; keep the text of time stamps where a double loses digits."""
        try:
            self._add(decode())
        except _NeedsTextError:
            self._whole_micros = not _LARGE_FRACTION.search(data)
            if not self._whole_micros:
                self._exact = True
                self._decoders = ev.Decoders(Raw, sequences=self._sequences)
            self._add(decode())
            self._whole_micros = False

    def event(self, data: bytes, scanned: Any) -> None:
        """Take one event; what no decoder accepts is counted as skipped."""
        fields = scanned if isinstance(scanned, dict) else {}
        category = fields.get("cat")
        if fields.get("ph") in ("B", "E"):
            self.skip()  # Kineto writes whole events; halves would have to be paired
        elif category is None and fields.get("ph") not in ("X", None):
            # Metadata ("M") and instant events have no category; a complete event needs one.
            self.events += 1
        elif isinstance(category, str) and not self._decoders.knows(category):
            self._decoders.learn(category)
            self.events += 1
        elif not (self.block(b"[%b]" % data) or self._add_leniently(data)):
            self.skip()

    def skip(self) -> None:
        """Count something that is not an event."""
        self.skipped += 1

    def _add_leniently(self, data: bytes) -> bool:
        """Take what msgspec refuses: NaN, raw control characters, invalid UTF-8, text numbers."""
        try:
            repaired = _read_leniently(data)
            if repaired.get("cat") != ev.KERNEL:
                repaired.setdefault("dur", 0)
            data = _as_json(repaired)
            self._add_exactly(data, lambda: [self._decoders.lax_event.decode(data)])
        except (ValueError, RecursionError, ArithmeticError):
            return False
        return True

    def _add(self, decoded: list[Any]) -> None:
        groups = defaultdict[type, list[Any]](list)
        for event in decoded:
            groups[type(event)].append(event)
        stamps = {kind: [e.ts for e in groups[kind]] for kind in TIMED_ADDERS if kind in groups}
        # All time stamps first: a bad one must refuse the block before anything is added.
        starts = {kind: self._nanoseconds(group) for kind, group in stamps.items()}
        add_events(Rows(self.columns, self.inputs, self._sequences), groups, starts)
        self.events += len(decoded)

    # -- times ----------------------------------------------------------------------------------

    def _nanoseconds(self, stamps: list[Any]) -> list[int]:
        """Return the times since the whole microsecond of the first event.

        Raises:
            ValueError: not a time stamp.
            _NeedsTextError: the doubles lost nanoseconds.
        """
        if self._exact:
            exact = list(map(parse_micros, stamps))
            base_ns = self._base(exact[0] // 1000)
            return [ns - base_ns for ns in exact]
        if max(stamps) >= EXACT_LIMIT and not self._whole_micros:
            raise _NeedsTextError
        return to_nanoseconds(stamps, self._base(int(stamps[0])) // 1000)

    def _base(self, micros: int) -> int:
        if self._base_ns is None:
            self._base_ns = micros * 1000
        return self._base_ns


def _read_leniently(data: bytes) -> dict[str, Any]:
    """Return the fields of an event that are decoded, without those that are null or were NaN.

    Raises:
        ValueError: no event.
        RecursionError: it is nested too deep.
    """
    event = _loads(data)
    if not isinstance(event, dict):
        raise ValueError("not an event")
    kept = {key: event[key] for key in _FIELDS if event.get(key) is not None}
    if isinstance(kept.get("args"), dict):
        args = kept["args"]
        kept["args"] = {key: args[key] for key in ev.ARGS if args.get(key) is not None}
    return kept


def _loads(data: bytes) -> Any:
    return json.loads(
        data.decode("utf-8", "replace"),
        strict=False,
        parse_float=Decimal,
        parse_constant=lambda _: None,
    )

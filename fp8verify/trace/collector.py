"""Turn decoded events into columns, block by block."""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from fp8verify.model import Collective
from fp8verify.trace import events as ev
from fp8verify.trace.contexts import SHAPE_SEPARATOR
from fp8verify.trace.times import EXACT_LIMIT, parse_micros, to_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGE_FRACTION = re.compile(rb'"ts"\s*:\s*"?-?\d{13,}\.\d*[1-9]')
_AS_NUMBER = msgspec.json.Encoder(decimal_format="number")


class Interner(dict[Any, int]):
    """Numbers its keys in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _NeedsTextError(Exception):
    """A time stamp that a double may not hold to the nanosecond."""


class OpColumns:
    """CPU operators and annotations: 36 bytes each.

    `shape` indexes `Collector.shapes`; -1 marks an annotation.
    """

    def __init__(self) -> None:
        self.start, self.end, self.external_id = array("q"), array("q"), array("q")
        self.name, self.thread, self.shape = array("i"), array("i"), array("i")


class CallColumns:
    """Runtime and driver calls: 20 bytes each."""

    def __init__(self) -> None:
        self.correlation, self.start, self.thread = array("q"), array("q"), array("i")


class KernelColumns:
    """Kernels, before they are correlated; durations in microseconds, not yet judged."""

    def __init__(self) -> None:
        self.start, self.external_id, self.correlation = array("q"), array("q"), array("q")
        self.device, self.stream = array("q"), array("q")
        self.name, self.collective = array("i"), array("i")
        self.duration = array("d")


class Collector:
    """The sink of a document's events.

    Times are nanoseconds since `base_ns`, the whole microsecond of the first event.
    `shapes` numbers the undecoded JSON of (types, dims, forward thread), joined by
    `SHAPE_SEPARATOR`.
    """

    def __init__(self) -> None:
        self.ops, self.calls, self.kernels = OpColumns(), CallColumns(), KernelColumns()
        self.names, self.op_names, self.threads = Interner(), Interner(), Interner()
        self.shapes, self.collectives = Interner(), Interner()
        self.copies: dict[str, tuple[int, int, int]] = {}
        self.events = self.skipped = 0
        self.base_ns: int | None = None
        self.last_end = 0
        self._exact = self._whole_micros = False
        self._decoders = ev.Decoders(ev.Micros)

    # -- decoding -------------------------------------------------------------------------------

    def block(self, data: bytes | memoryview) -> bool:
        """Take whole events separated by commas; False if they do not decode as such."""
        try:
            self._add_exactly(
                data, lambda: self._decoders.block.decode(b"".join((b"[", data, b"]")))
            )
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
                self._exact, self._decoders = True, ev.Decoders(Raw)
            self._add(decode())
            self._whole_micros = False

    def event(self, data: bytes, scanned: Any) -> None:
        """Take one event; what no decoder accepts is counted as skipped."""
        fields = scanned if isinstance(scanned, dict) else {}
        category = fields.get("cat")
        if category is None and fields.get("ph") not in ("X", None):
            # Metadata ("M") and instant events have no category; a complete event needs one.
            self.events += 1
        elif isinstance(category, str) and not self._decoders.knows(category):
            self._decoders.learn(category)
            self.events += 1
        elif not (self.block(data) or self._add_loosely(data)):
            self.skip()

    def skip(self) -> None:
        """Count something that is no event."""
        self.skipped += 1

    def _add_loosely(self, data: bytes) -> bool:
        """Take what msgspec refuses: NaN, raw control characters, invalid UTF-8, text numbers."""
        try:
            loose = json.loads(
                data.decode("utf-8", "replace"),
                strict=False,
                parse_float=Decimal,
                parse_constant=lambda _: None,
            )
            repaired = _AS_NUMBER.encode(_needed(loose))
            self._add_exactly(repaired, lambda: [self._decoders.lax_event.decode(repaired)])
        except (ValueError, RecursionError, ArithmeticError):
            return False
        return True

    def _add(self, decoded: list[Any]) -> None:
        groups = defaultdict[type, list[Any]](list)
        for event in decoded:
            groups[type(event)].append(event)
        stamps = {kind: [e.ts for e in groups[kind]] for kind in _TIMED_ADDERS if kind in groups}
        # All time stamps first: a bad one must refuse the block before anything is added.
        starts = {kind: self._nanoseconds(group) for kind, group in stamps.items()}
        for kind, times in starts.items():
            _TIMED_ADDERS[kind](self, groups[kind], times)
        for kind, name in _COPIES.items():
            if kind in groups:
                self._add_copies(name, groups[kind])
        self.events += len(decoded)

    # -- times ----------------------------------------------------------------------------------

    def _nanoseconds(self, stamps: list[Any]) -> list[int]:
        """Return the times since `base_ns`.

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
        if self.base_ns is None:
            self.base_ns = micros * 1000
        return self.base_ns

    # -- columns --------------------------------------------------------------------------------

    def _add_ops(self, group: list[Any], starts: list[int]) -> None:
        args = [op.args for op in group]
        join = SHAPE_SEPARATOR.join
        shapes = [join((a.types, a.dims, a.forward_thread)) for a in args]
        self._add_ranges(group, starts, args, list(map(self.shapes.__getitem__, shapes)))

    def _add_annotations(self, group: list[Any], starts: list[int]) -> None:
        self._add_ranges(group, starts, [op.args for op in group], [-1] * len(group))

    def _add_ranges(
        self, group: list[Any], starts: list[int], args: list[Any], shapes: list[int]
    ) -> None:
        columns = self.ops
        ends = [
            start + round(1000 * (op.dur or 0)) for start, op in zip(starts, group, strict=True)
        ]
        columns.start.extend(starts)
        columns.end.extend(ends)
        columns.shape.extend(shapes)
        columns.external_id.extend([a.external_id for a in args])
        columns.name.extend(map(self.op_names.__getitem__, [op.name for op in group]))
        columns.thread.extend(map(self.threads.__getitem__, [(op.pid, op.tid) for op in group]))
        self.last_end = max(self.last_end, max(ends))

    def _add_calls(self, group: list[Any], starts: list[int]) -> None:
        columns = self.calls
        columns.start.extend(starts)
        columns.correlation.extend([call.args.correlation for call in group])
        columns.thread.extend(
            map(self.threads.__getitem__, [(call.pid, call.tid) for call in group])
        )
        ends = [start + 1000 * call.dur for start, call in zip(starts, group, strict=True)]
        self.last_end = max(self.last_end, round(max(ends)))

    def _add_kernels(self, group: list[Any], starts: list[int]) -> None:
        columns = self.kernels
        args = [kernel.args for kernel in group]
        columns.start.extend(starts)
        columns.duration.extend([kernel.dur for kernel in group])
        columns.external_id.extend([a.external_id for a in args])
        columns.correlation.extend([a.correlation for a in args])
        columns.device.extend([a.device for a in args])
        columns.stream.extend([a.stream for a in args])
        columns.name.extend(map(self.names.__getitem__, [kernel.name for kernel in group]))
        columns.collective.extend([self._collective(a) if a.collective else -1 for a in args])

    def _collective(self, args: ev.KernelArgs) -> int:
        return self.collectives[
            Collective(
                name=args.collective,
                dtype=args.dtype,
                in_elements=args.in_elements,
                out_elements=args.out_elements,
                group_size=args.group_size,
            )
        ]

    def _add_copies(self, kind: str, group: list[Any]) -> None:
        count, time, size = self.copies.get(kind, (0, 0, 0))
        time += sum(round(1000 * copy.dur) for copy in group if 0 <= copy.dur <= MAX_COPY_US)
        self.copies[kind] = (
            count + len(group),
            time,
            size + sum(copy.args.bytes for copy in group),
        )


# An hour: a copy beyond it is a broken counter.
MAX_COPY_US = 3.6e9

_TIMED_ADDERS: dict[type, Callable[[Collector, list[Any], list[int]], None]] = {
    **dict.fromkeys(ev.OPS, Collector._add_ops),
    ev.Annotation: Collector._add_annotations,
    **dict.fromkeys(ev.CALLS, Collector._add_calls),
    **dict.fromkeys(ev.KERNELS, Collector._add_kernels),
}
_COPIES: dict[type, str] = {
    **dict.fromkeys(ev.MEMCPYS, "memcpy"),
    **dict.fromkeys(ev.MEMSETS, "memset"),
}


def _needed(event: Any) -> Any:
    """Keep the fields that are decoded, without those that are null or were NaN."""
    if not isinstance(event, dict):
        return event
    kept = {key: event[key] for key in _FIELDS if event.get(key) is not None}
    if isinstance(kept.get("args"), dict):
        args = kept["args"]
        kept["args"] = {key: args[key] for key in ev.ARGS if args.get(key) is not None}
    return kept


_FIELDS = ("cat", "name", "pid", "tid", "ts", "dur", "args")

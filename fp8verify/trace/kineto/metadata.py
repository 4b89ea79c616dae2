"""The few metadata of a trace that are kept; everything else may be a secret and is dropped."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from fp8verify.text import clean
from fp8verify.trace.kineto.profiler_log import LEVELS, remarks

_MAX_NOTES = 20


class Metadata(Struct):
    """What the top level of the document says beside its events."""

    rank: int | None = None
    world_size: int | None = None
    base_ns: int = 0
    record_shapes: bool = False
    devices: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    records_lost: bool = False

    def take(self, key: str, value: Any, _: bytes) -> None:
        """Keep what matters of one top-level entry; values of an unexpected type are ignored."""
        if key == "distributedInfo" and isinstance(value, dict):
            self.rank = _count(value.get("rank"))
            self.world_size = _count(value.get("world_size"))
        elif key == "deviceProperties" and isinstance(value, list):
            self.devices = dict(filter(None, map(_device, value)))
        elif key == "baseTimeNanoseconds":
            self.base_ns = _count(value, 1 << 62) or 0
        elif key == "record_shapes":
            self.record_shapes = bool(value)
        elif key in LEVELS:
            self._take_log(value)

    def _take_log(self, lines: Any) -> None:
        for remark, number in remarks(lines):
            self.records_lost |= remark.loss
            if len(self.notes) < _MAX_NOTES:
                self.notes.append(remark.text.format(number))

    def device(self, number: int) -> tuple[str | None, str | None]:
        """Name and compute capability of a device, of the first one if `number` is unknown."""
        if not self.devices:
            return None, None
        return self.devices.get(number, next(iter(self.devices.values())))


def _device(value: Any) -> tuple[int, tuple[str, str | None]] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    major, minor = _count(value.get("computeMajor")), _count(value.get("computeMinor"))
    capability = None if major is None or minor is None else f"{major}.{minor}"
    return _count(value.get("id")) or 0, (clean(value["name"][:200]), capability)


def _count(value: Any, limit: int = 1 << 31) -> int | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    return value if ok else None

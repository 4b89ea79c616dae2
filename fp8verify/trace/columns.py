"""The growing columns that events are collected into."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import pack
from typing import Any


def append_all(column: array[Any], values: Sequence[float]) -> None:
    """Append numbers in half the time of `fromlist`, which parses each like an argument."""
    column.frombytes(pack(f"{len(values)}{column.typecode}", *values))


class Interner(dict[Any, int]):
    """Numbers its keys in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


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

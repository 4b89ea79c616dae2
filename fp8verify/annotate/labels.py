"""What each kernel of a trace is, in the order of the file."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from fp8verify.analysis.gemms import classify_kernels, label_gemms
from fp8verify.report.model import Leg, Precision
from fp8verify.trace import Kernels, Trace

# Points of the counter track.
BUCKETS = 500
# Kernels that the reader left out are fewer than this in a row.
_LOOK_AHEAD = 64


class Label(NamedTuple):
    """The precision and the leg of a GEMM."""

    precision: Precision
    leg: Leg


class Known(NamedTuple):
    """A kernel's label, None if it is not a GEMM, and its start."""

    label: Label | None
    start_ns: int


class Labels:
    """Labels of kernels, to be asked for in the order in which the file holds them."""

    def __init__(self, trace: Trace) -> None:
        self._names, self._kernels = trace.names, trace.kernels
        self._labels: list[Label] = []
        self._of_kernel = array("h", [-1]) * len(trace.kernels)
        self._place = 0
        self._label(trace)
        self.share = _Share(trace.kernels, self._fp8_gemms())

    def _label(self, trace: Trace) -> None:
        kinds = classify_kernels(trace)
        numbers: dict[Label, int] = {}
        for place, kind, leg, *_ in label_gemms(trace, kinds):
            label = Label(kinds.kinds[kind].classification.precision, leg)
            self._of_kernel[place] = numbers.setdefault(label, len(numbers))
        self._labels = list(numbers)

    def _fp8_gemms(self) -> list[tuple[int, bool]]:
        """Return the places of the GEMMs and whether they are FP8."""
        fp8 = [label.precision.is_low for label in self._labels]
        return [(place, fp8[n]) for place, n in enumerate(self._of_kernel) if n >= 0]

    def take(self, name: str, duration_ns: int) -> Known | None:
        """Return what is known of the next kernel of the file, None if it was not read."""
        for place in range(self._place, min(self._place + _LOOK_AHEAD, len(self._kernels))):
            if self._is(place, name, duration_ns):
                self._place = place + 1
                number = self._of_kernel[place]
                label = self._labels[number] if number >= 0 else None
                return Known(label, self._kernels.start_ns[place])
        return None

    def _is(self, place: int, name: str, duration_ns: int) -> bool:
        known = self._kernels.duration_ns[place]  # 0 where the file's could not be
        return known in (0, duration_ns) and self._names[self._kernels.name[place]] == name


class _Share:
    """The FP8 share of GEMM time in buckets of equal length."""

    def __init__(self, kernels: Kernels, gemms: list[tuple[int, bool]]) -> None:
        starts = kernels.start_ns
        self._begin = min((starts[place] for place, _ in gemms), default=0)
        last = max((starts[place] for place, _ in gemms), default=0)
        self._width = (last - self._begin) // BUCKETS + 1
        self._fp8, self._all = [0] * BUCKETS, [0] * BUCKETS
        for place, is_fp8 in gemms:
            bucket, duration = self.bucket(starts[place]), kernels.duration_ns[place]
            self._all[bucket] += duration
            self._fp8[bucket] += duration if is_fp8 else 0

    def bucket(self, start_ns: int) -> int:
        """Return the bucket of a GEMM that starts at `start_ns`."""
        return (start_ns - self._begin) // self._width

    def begin_ns(self, bucket: int) -> int:
        """Return when a bucket begins."""
        return self._begin + bucket * self._width

    def percent(self, bucket: int) -> float:
        """Return the FP8 share of a bucket's GEMM time in percent."""
        return round(100 * self._fp8[bucket] / self._all[bucket], 1) if self._all[bucket] else 0.0

"""The training steps of a rank: how they were counted, and what they took."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from fp8verify.model.kernels import GemmSummary


class _Read(Protocol):
    """A step, and whether all its kernels were read."""

    @property
    def whole(self) -> bool: ...


def are_whole(steps: Iterable[_Read]) -> bool:
    """Whether all kernels of steps were read: else sums over them are no multiple of a step's."""
    return all(step.whole for step in steps)


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One training step.

    Attributes:
        step: the profiler's number of it.
        duration_us: its µs on the CPU.
        gpu_us: from the end of the step before it on the GPU (of the first one, from its first
            kernel) to the end of its last kernel; null where it launched none.
        gemm: the model's GEMMs that it launched.
        trains: whether any of them is of a layer that trains.
        whole: whether all its kernels were read, as far as a damaged trace shows.
    """

    step: int
    duration_us: float
    gpu_us: float | None
    gemm: GemmSummary
    trains: bool = True
    whole: bool = True


class StepStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Step times as a mean with what its uncertainty follows from.

    Attributes:
        count: steps.
        left_out: further steps, which took more than 1.5 times the median.
        mean_us: mean step in microseconds.
        deviation_us: standard deviation of a step; null of a single one.
        effective: number of independent steps that would tell the mean as well.
        median_us: median step in microseconds.
        min_us: shortest step in microseconds.
        max_us: longest step in microseconds.
    """

    count: int
    left_out: int
    mean_us: float
    deviation_us: float | None
    effective: float
    median_us: float
    min_us: float
    max_us: float


class TimelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPU spent one trace, in buckets; the first begins with the first kernel.

    Kernels that overlap on several streams add up to more than a bucket is long.

    Attributes:
        bucket_us: length of a bucket.
        fp8_us: µs of GEMMs in FP8 by bucket.
        other_precision_us: µs of GEMMs in other known precisions.
        unknown_precision_us: µs of GEMMs of unknown precision.
        rest_us: µs of all other kernels.
        steps: (step, begin, end) in µs of the kernels that each step launched.
    """

    bucket_us: float
    fp8_us: tuple[float, ...]
    other_precision_us: tuple[float, ...]
    unknown_precision_us: tuple[float, ...]
    rest_us: tuple[float, ...]
    steps: tuple[tuple[int, float, float], ...]


class WindowReport(msgspec.Struct, frozen=True, kw_only=True):
    """A window that `fp8verify run` was to record, and what the framework calls its steps.

    Attributes:
        first: its first step, from 1.
        last: its last step, inclusive.
        state: complete, cut, dropped, skipped or never.
        framework: the training framework that numbers steps too, null if there is none.
        counter: what it calls its counter, such as "global_step".
        framework_first: its number of the first step.
        framework_last: its number of the last step.
    """

    first: int
    last: int
    state: str
    framework: str | None
    counter: str | None
    framework_first: int | None
    framework_last: int | None


class ClockReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `fp8verify run` counted as a training step of a rank.

    Attributes:
        source: optimizer or, where the script announced its steps, explicit.
        counts: the call that was counted, such as "AdamW.step".
        steps_seen: steps counted.
        steps_skipped: those without an update, by a GradScaler.
        updates: calls of `step` by optimizer class.
        windows: what became of the windows.
    """

    source: str
    counts: str | None
    steps_seen: int
    steps_skipped: int
    updates: dict[str, int]
    windows: tuple[WindowReport, ...]

"""What FP8 costs, moves and can gain."""

from __future__ import annotations

import msgspec

from fp8verify.terms import (
    Leg,
)
from fp8verify.thresholds import HALF


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives alike in kind, on this rank.

    Attributes:
        name: NCCL's name, or the kernel's.
        dtype: element type, null where not recorded.
        group_size: ranks that took part.
        calls: how many.
        bytes_in: bytes sent in all calls, null where not recorded.
        bytes_out: bytes received in all calls.
        time_us: µs of their kernels.
    """

    name: str
    dtype: str | None
    group_size: int | None
    calls: int
    bytes_in: int | None
    bytes_out: int | None
    time_us: float


class WeightGather(msgspec.Struct, frozen=True, kw_only=True):
    """What all-gathers of weights sent.

    Attributes:
        fp8: whether FP8 weights traveled, null where the bytes may be anything.
        eight_bit_bytes: bytes in 8-bit elements.
        wider_bytes: bytes in wider elements.
        bytes_per_parameter: 1 for FP8, 2 for BF16, null where not known.
    """

    fp8: bool | None
    eight_bit_bytes: int
    wider_bytes: int
    bytes_per_parameter: float | None


class CommunicationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank; overlaps count once.

    Attributes:
        time_us: µs in which communication ran.
        exposed_us: µs in which nothing but communication ran.
        collectives: the collectives by kind.
        weight_gather: what all-gathers of weights sent, null where there were none.
    """

    time_us: float
    exposed_us: float
    collectives: tuple[CollectiveRow, ...]
    weight_gather: WeightGather | None


class TaxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Casts, amax reductions, scale arithmetic or layout copies of one operator and pass.

    Attributes:
        purpose: cast, amax, scale or transpose.
        op: the operator, null where not known.
        leg: the one in which they ran.
        fused: whether a compiler or library made them one pass over the data.
        kernels: launches.
        time_us: µs of all of them.
    """

    purpose: str
    op: str | None
    leg: Leg
    fused: bool
    kernels: int
    time_us: float


class TaxReport(msgspec.Struct, frozen=True, kw_only=True):
    """What FP8 costs in addition to its GEMMs; fused kernels also do work that BF16 needs.

    Attributes:
        time_us: µs, the most that it can be.
        unfused_us: µs of kernels that each do one step of a cast.
        share_of_gpu_time: over the time of all kernels.
        saved_at_most_us: estimate of what FP8 GEMMs save over BF16 ones of their sizes, negative
            where they are slower; 0 if it is not known.
        share_of_saving: `time_us` over `saved_at_most_us`, null if nothing is saved.
        rows: by purpose, operator and pass.
    """

    time_us: float
    unfused_us: float
    share_of_gpu_time: float
    saved_at_most_us: float
    share_of_saving: float | None
    rows: tuple[TaxEntry, ...]


class PayoffReport(msgspec.Struct, frozen=True, kw_only=True):
    """What FP8 can gain, estimated by what BF16 takes at the sizes of its GEMMs.

    Attributes:
        gpu_busy_us: µs in which a kernel ran.
        idle_share: share of the window in which the GPU did nothing.
        fp8_gemm_share: share of busy time in FP8 GEMMs.
        sixteen_bit_gemm_share: share of busy time in BF16 and FP16 GEMMs.
        bandwidth_bound_share: share of busy time in kernels that memory bandwidth limits.
        small_gemm_share: share of FP8 GEMM time in GEMMs too small to gain, null without shapes.
        ceiling: the most that GPU time can be faster than in BF16, with every 16-bit GEMM in FP8
            and no casts (Amdahl's law).
        speedup_estimate: what the GPU time of the run as it is may be over BF16; null where it is
            not known, or the GPU waits for the CPU, which decides.
        step_us: median wall time of a step outside the window, null where not recorded.
        gpu_busy_in_step_us: µs that the GPU works in a step, null without steps.
        waits: whether the GPU waits in a step for more than FP8 saves, null where not known.
        step_speedup_estimate: what a step may be over BF16; null where the CPU decides it.
        no_estimate: why nothing is known of the gain, empty if it is or no GEMM ran in FP8.
    """

    gpu_busy_us: float
    idle_share: float
    fp8_gemm_share: float
    sixteen_bit_gemm_share: float
    bandwidth_bound_share: float
    small_gemm_share: float | None
    ceiling: float | None
    speedup_estimate: float | None
    step_us: float | None = None
    gpu_busy_in_step_us: float | None = None
    waits: bool | None = None
    step_speedup_estimate: float | None = None
    no_estimate: str = ""

    @property
    def idle_in_step_us(self) -> float:
        """The µs for which the GPU does nothing in a step; 0 where a step's time is not known."""
        if not self.step_us or not self.gpu_busy_in_step_us:
            return 0.0
        return max(0.0, self.step_us - self.gpu_busy_in_step_us)

    @property
    def cpu_limits(self) -> bool:
        """Whether the CPU limits the step: the GPU waits for longer than it works.

        Then no faster kernels could shorten the step by more than an end of the waiting does
        (Amdahl's law).
        """
        if not self.waits or not self.step_us:
            return False
        return self.idle_in_step_us >= HALF * self.step_us


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The most GPU memory that a rank had used by the end of its last window, in bytes.

    Attributes:
        allocated_peak: of tensors, by torch's own counter.
        reserved_peak: of what torch kept for tensors.
        total: of the GPU.
        why: what FP8 has to do with it, by the modules that were converted.
    """

    allocated_peak: int
    reserved_peak: int
    total: int
    why: tuple[str, ...]

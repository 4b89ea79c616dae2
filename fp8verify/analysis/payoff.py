"""The FP8 tax: the kernels that a run in BF16 would not need, to cast, scale and turn operands."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fp8verify.analysis.gemms import GemmRow, KindTotal
from fp8verify.analysis.gpus import SMALL_SIDE, peak_key
from fp8verify.analysis.purpose import LAYER_FUNCTIONS, purpose_of
from fp8verify.analysis.rank import RankEvidence
from fp8verify.terms import Leg, OpContext, Precision, Scaling


class TaxRow(NamedTuple):
    """Kernels of one purpose under one operator.

    Attributes:
        purpose: "cast", "amax", "scale" (arithmetic on scales) or "transpose" (copies of FP8 data
            to the layout that the GEMM needs).
        fused: whether a compiler or library made them one pass over the data. A fused kernel may
            also do work that BF16 needs, so that its time is the most that FP8 can have cost.
    """

    purpose: str
    op: str | None
    leg: Leg
    fused: bool
    calls: int
    time_ns: int


class Tax(NamedTuple):
    """The rows of a rank, and the part of the time that eager mode's unfused kernels took."""

    rows: tuple[TaxRow, ...] = ()

    @property
    def time_ns(self) -> int:
        """All of it, in ns."""
        return sum(row.time_ns for row in self.rows)

    @property
    def unfused_ns(self) -> int:
        """What kernels took that each do one step of a cast."""
        return sum(row.time_ns for row in self.rows if not row.fused)


def fp8_tax(others: Iterable[KindTotal]) -> Tax:
    """Add up what a rank that ran or cast FP8 spent on it in kernels that are no GEMMs."""
    totals: dict[tuple[str, str | None, Leg, bool], list[int]] = defaultdict(lambda: [0, 0])
    for total in others:
        purpose = purpose_of(total.kind)
        if purpose is not None:
            op = total.kind.op
            fused = total.kind.classification.library != "PyTorch"
            row = totals[purpose, op.name if op else None, _leg(op), fused]
            row[0] += total.calls
            row[1] += total.time_ns
    rows = [TaxRow(*key, calls, time_ns) for key, (calls, time_ns) in totals.items()]
    return Tax(tuple(sorted(rows, key=lambda row: -row.time_ns)))


def _leg(op: OpContext | None) -> Leg:
    """Say in which pass it ran: a gradient's cast serves dgrad and wgrad both."""
    if op is None or not op.backward:
        return Leg.FPROP if op is not None else Leg.UNKNOWN
    return Leg.RECOMPUTE if LAYER_FUNCTIONS.intersection(op.parents) else Leg.BACKWARD


_SIXTEEN_BIT = (Precision.BF16, Precision.FP16)
_BANDWIDTH_BOUND = ("elementwise", "reduction", "quantize", "transpose", "memory")
# GPUs with the matrix units of the one that was measured (GEMM rates, not bandwidth).
_HOPPER: Final = frozenset({"H100", "H200", "GH200", "H800"})
# How much faster than BF16 a GEMM runs by scaling, in classes of GFLOP: the rates of the kernels in
# traces/ and the GEMMs of compared runs (H200, torch 2.11.0+cu130, torchao 0.17.0, Transformer
# Engine 2.20.2, 2026-11-21 and 22; docs/payoff.md has them). The FP8 GEMMs of width 768 took 1.77x
# less than those of BF16, of width 2048 1.8x to 2.0x, of width 4096 1.99x.
_SIZES: Final = (4.0, 16.0, 64.0, 200.0, 600.0)
_FULL: Final = (1.0, 1.4, 1.78, 1.9, 1.93, 1.97)
_GAINS: Final[dict[Scaling, tuple[float, ...]]] = {
    Scaling.TENSORWISE: _FULL,
    Scaling.ROWWISE: _FULL,
    Scaling.BLOCKWISE: (0.9, 1.1, 1.2, 1.3, 1.5, 1.5),
}
# Kernels that Inductor fused also do what BF16 needs: of their time FP8 adds this part (the runs of
# width 768 to 4096: 0.60 to 0.70).
_ADDED_BY_FUSED: Final = 0.65
# GEMMs of formats without a measured rate up to this share of low-precision time are left out.
_FEW = 0.01


class Payoff(NamedTuple):
    """What FP8 can do for one rank, times in ns; estimates rest on measured rates of GEMMs.

    Attributes:
        busy: GPU time, overlaps counted once.
        fp8: GEMM time in FP8 or FP4.
        sixteen_bit: GEMM time in BF16 and FP16.
        tax: kernels that cast, scale and turn operands.
        cost: what they add to the time of BF16.
        saved: what the FP8 GEMMs would take longer in BF16; 0 where no rate is known.
        ceiling: speed-up over BF16 of the GPU time with every GEMM in FP8 and no tax (Amdahl).
        kernels: speed-up over BF16 of the GPU time as it is; None where no FP8 ran, or where no
            rates of the GPU are known.
        small: share of FP8 GEMM time with a side below `SMALL_SIDE`; None without shapes.
        idle: share of the GPU's time in which no kernel or copy ran, under the profiler.
        bandwidth_bound: share of `busy` in kernels that memory bandwidth limits.
        step: wall time of a step outside the window; None where not recorded.
        busy_in_step: GPU time of a step, copies included; None where the trace has no steps.
        steps: in the trace.
    """

    busy: int
    fp8: int
    sixteen_bit: int
    tax: Tax
    cost: int
    saved: int
    ceiling: float | None
    kernels: float | None
    small: float | None
    idle: float
    bandwidth_bound: float
    step: int | None = None
    busy_in_step: int | None = None
    steps: int = 0

    @property
    def waits(self) -> bool | None:
        """Whether the GPU waits in a step for more than FP8 saves; None where not known."""
        if self.step is None or self.busy_in_step is None:
            return None
        gained = max(0, self.saved - self.cost) / self.steps
        waiting = self.step - self.busy_in_step
        return waiting > max(gained, WAITING * self.step)

    @property
    def of_step(self) -> float | None:
        """Speed-up of a step over BF16; None where the CPU decides it, or it is not known."""
        if (
            self.kernels is None
            or self.waits is not False
            or not self.step
            or not self.busy_in_step
        ):
            return None
        gained = (self.saved - self.cost) / self.steps
        # What the GPU waits in a step is hidden behind the longer kernels of BF16, if these gain.
        return max(self.busy_in_step + gained, min(self.step, self.step + gained)) / self.step


# A GPU that works for nine tenths of a step is busy.
WAITING: Final = 0.1


def payoff(rank: RankEvidence, tax: Tax, gpu_time: Mapping[str, int]) -> Payoff | None:
    """Work out what FP8 can do for a rank; None where no GEMM ran.

    Args:
        rank: its evidence.
        tax: what FP8 costs it.
        gpu_time: its kernel time in ns by what it was for.
    """
    gemms, busy = rank.survey.linear, rank.timeline.busy
    if not gemms or not busy:
        return None
    time_ns = rank.linear.time_ns
    fp8 = sum(ns for precision, ns in time_ns.items() if precision.is_low)
    sixteen_bit = sum(time_ns[precision] for precision in _SIXTEEN_BIT)
    saved = _saved(rank, [row for row in gemms if row.precision.is_low])
    gain = _saved(rank, [row for row in gemms if row.precision in _SIXTEEN_BIT], in_sixteen=True)
    cost = sum(row.time_ns * (_ADDED_BY_FUSED if _is_generated(row) else 1) for row in tax.rows)
    copying = sum(time_ns for _, time_ns, _ in rank.copies.values())
    times = rank.meta.steps_outside if rank.meta is not None else None
    return Payoff(
        busy=busy,
        fp8=fp8,
        sixteen_bit=sixteen_bit,
        tax=tax,
        cost=round(cost),
        saved=saved or 0,
        ceiling=_ceiling(busy, round(cost), fp8 + sixteen_bit, saved, gain),
        kernels=max(0.0, busy - cost + saved) / busy if fp8 and saved is not None else None,
        small=_small_share(gemms),
        idle=idle_share(rank),
        bandwidth_bound=min(1.0, sum(gpu_time[key] for key in _BANDWIDTH_BOUND) / busy),
        step=times.median_ns if times is not None else None,
        busy_in_step=(busy + copying) // len(rank.steps) if rank.steps else None,
        steps=len(rank.steps),
    )


def _is_generated(row: TaxRow) -> bool:
    return row.fused and (row.op or "").startswith("triton_")


def idle_share(rank: RankEvidence) -> float:
    """Share of the time between its first and last kernel in which the GPU did nothing."""
    copying = sum(time_ns for _, time_ns, _ in rank.copies.values())
    span = rank.timeline.span
    return max(0.0, span - rank.timeline.busy - copying) / span if span else 0.0


def _saved(rank: RankEvidence, rows: list[GemmRow], *, in_sixteen: bool = False) -> int | None:
    """Return what GEMMs take longer in BF16, or less in FP8; None where no rates are known."""
    if peak_key(rank.gpu) not in _HOPPER:
        return None
    saved, unknown = 0.0, 0
    for row in rows:
        gain = _gain(row, in_sixteen=in_sixteen)
        if gain is None:
            unknown += row.time_ns
        else:
            saved += row.time_ns * (1 - 1 / gain if in_sixteen else gain - 1)
    return None if unknown > _FEW * sum(row.time_ns for row in rows) else round(saved)


def _gain(row: GemmRow, *, in_sixteen: bool) -> float | None:
    """Return how much faster a GEMM is in FP8 than in BF16; the middle of sizes without shapes."""
    if not (in_sixteen or row.precision is Precision.FP8):
        return None
    gains = _GAINS[Scaling.TENSORWISE if in_sixteen else row.scaling or Scaling.TENSORWISE]
    if row.flops is None or not row.calls:
        return gains[-2]
    return gains[bisect_right(_SIZES, row.flops / row.calls / 1e9)]


def _ceiling(busy: int, tax: int, gemms: int, saved: int | None, gain: int | None) -> float | None:
    """Amdahl's law: other kernels take as long, 16-bit GEMMs as little as FP8 ones."""
    if saved is None or gain is None or not gemms:
        return None
    return (busy - tax + saved) / max(1, busy - tax - gain)


def _small_share(gemms: list[GemmRow]) -> float | None:
    """Share of FP8 GEMM time of which a side is too short to pay for the casts."""
    small = known = 0
    for row in gemms:
        shape = row.shape if row.precision.is_low else None
        if shape is not None:
            known += row.time_ns
            small += row.time_ns if min(shape.m, shape.n, shape.k) < SMALL_SIDE else 0
    return small / known if known else None

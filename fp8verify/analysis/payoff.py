"""Whether FP8 can pay: what its GEMMs save, what it costs, and whether the GPU waits for the CPU.

The kernels alone: GEMMs in FP8 are held against what BF16 takes at their size, and casts and
scales are the cost. The step: a profiler makes the CPU slower, so only the wall time of steps
outside the window shows whether the GPU is busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import NamedTuple

from fp8verify.analysis.bf16_times import SIXTEEN_BIT, Bf16Times, Saving, by_size
from fp8verify.analysis.gather import TraceEvidence
from fp8verify.analysis.gemms import GemmRow, micros, rounded
from fp8verify.analysis.kinds import KindTotal
from fp8verify.analysis.purpose import LAYER_FUNCTIONS, purpose_of
from fp8verify.analysis.rates import TENSORWISE, RateTable, rates_of
from fp8verify.model.costs import PayoffReport, TaxEntry, TaxReport
from fp8verify.terms import Leg, OpContext
from fp8verify.thresholds import (
    ADDED_BY_FUSED,
    EVEN,
    HALF,
    SMALL_SIDE,
    USUAL_WAIT,
    WAITING,
)

_BANDWIDTH_BOUND = ("elementwise", "reduction", "quantize", "transpose", "memory")


class Gain(NamedTuple):
    """What FP8 gains on a rank.

    Attributes:
        payoff: the figures; None if no GEMM ran.
        tax: the kernels that FP8 needs in addition to its GEMMs; None if there are none.
        saving: what its GEMMs saved.
    """

    payoff: PayoffReport | None = None
    tax: TaxReport | None = None
    saving: Saving = Saving(None, "")


class _Step(NamedTuple):
    """A step outside of windows: its time, and how much of it the GPU works; in ns, if known."""

    @property
    def is_known(self) -> bool:
        """Whether both are known, and can be of one step: no step is shorter than its GPU work."""
        if not self.whole or self.busy is None:
            return False
        return self.busy <= (1 + EVEN) * self.whole

    whole: int | None
    busy: int | None

    def waits_beyond(self, gained: float, share: float) -> bool:
        """Whether the GPU waits for longer than was gained, and for more than a share."""
        if not self.whole or self.busy is None:
            return False
        waiting = self.whole - self.busy
        return waiting > max(gained, share * self.whole)


def payoff(
    trace: TraceEvidence,
    gpu_time: Mapping[str, int],
    step_ns: int | None,
    *,
    casts: bool,
) -> Gain:
    """Return what FP8 can gain on a rank, and what it costs.

    Args:
        trace: what its traces show.
        gpu_time: its kernel time in ns by purpose.
        step_ns: the usual time of a step outside the window, if it is known.
        casts: whether it ran or cast low precision, so kernels can be overhead of FP8.

    Raises:
        InputError: the table of rates that the user named cannot be read.
    """
    busy = trace.timeline.busy
    if not trace.trained or not busy:
        return Gain()
    low = [row for row in trace.trained if row.precision.is_low]
    high = [row for row in trace.trained if row.precision in SIXTEEN_BIT]
    table = rates_of(trace.gpu)
    in_bf16 = Bf16Times(
        trace.gemms,
        table,
        trace.largest_gradient,
        trace.beside,
    )
    saving = in_bf16.saving(low, trace.gpu)
    rows = _overhead(trace.others) if casts else ()
    cost = 1000 * added_us(rows)
    steps = len(trace.steps)
    copying = trace.copies.total()
    gained = 0.0
    step = _Step(step_ns, None)
    if steps:
        gained = ((saving.saved_ns or 0.0) - cost) / steps
        step = _Step(step_ns, (busy + copying) // steps)
    waits = step.waits_beyond(gained, WAITING) if step.is_known else None
    idle_share = _idle_share(trace)
    is_idle = bool(waits) or (not step.is_known and idle_share >= HALF)
    estimate = None
    if low and saving.saved_ns is not None:
        estimate = max(0.0, busy - cost + saving.saved_ns) / busy
    # A GPU that waits for the CPU gains nothing by faster kernels, but can lose by slower ones.
    if estimate is not None and is_idle and estimate > 1 - EVEN:
        estimate = None
    of_step = None
    if estimate is not None:
        of_step = _speedup_of_step(step, gained)
    bandwidth_bound = sum(gpu_time[key] for key in _BANDWIDTH_BOUND)
    report = PayoffReport(
        gpu_busy_us=micros(busy),
        idle_share=round(idle_share, 6),
        fp8_gemm_share=round(_time_ns(low) / busy, 6),
        sixteen_bit_gemm_share=round(_time_ns(high) / busy, 6),
        bandwidth_bound_share=round(min(1.0, bandwidth_bound / busy), 6),
        small_gemm_share=rounded(_small_share(low)),
        ceiling=rounded(_ceiling(busy - cost, saving.saved_ns, high, table)),
        speedup_estimate=rounded(estimate),
        step_us=None if step_ns is None else micros(step_ns),
        gpu_busy_in_step_us=None if step.busy is None else micros(step.busy),
        waits=waits,
        step_speedup_estimate=rounded(of_step),
        no_estimate=saving.unknown if low else "",
    )
    return Gain(report, _tax(rows, saving, report.gpu_busy_us), saving)


def _idle_share(trace: TraceEvidence) -> float:
    """Return the share of the window in which the GPU neither computed nor copied."""
    span = trace.timeline.span
    if not span:
        return 0.0
    idle = span - trace.timeline.busy - trace.copies.total()
    return max(0.0, idle) / span


def _time_ns(rows: Iterable[GemmRow]) -> int:
    return sum(row.amount for row in rows)


def _speedup_of_step(step: _Step, gained: float) -> float | None:
    """Return how much faster a step is than in BF16; None unless the GPU limits it."""
    if not step.whole or not step.is_known:
        return None
    if step.waits_beyond(gained, USUAL_WAIT):
        return None
    return max(0.0, step.whole + gained) / step.whole


def _small_share(low: Iterable[GemmRow]) -> float | None:
    """Return the share of the time of GEMMs in those that are small; None without shapes."""
    known = 0
    small = 0
    for row in low:
        if row.shape is None:
            continue
        known += row.amount
        if min(row.shape[1:]) < SMALL_SIDE:
            small += row.amount
    return small / known if known else None


def _ceiling(
    others: float,
    saved: float | None,
    high: Sequence[GemmRow],
    table: RateTable | None,
) -> float | None:
    """Return how much faster the GPU can be with every 16-bit GEMM in FP8 and no casts.

    It is Amdahl's law: other kernels take as long.

    Args:
        others: ns of the kernels that BF16 needs too.
        saved: ns that GEMMs in FP8 save already.
        high: the GEMMs in 16 bits.
        table: the rates of the GPU.
    """
    if table is None or saved is None:
        return None
    if any(row.shape is None for row in high):
        return None
    gain = 0.0
    for total in by_size(high):
        bf16 = table.time_ns(total.shape)
        fp8 = table.time_ns(total.shape, TENSORWISE)
        if bf16 and fp8:
            gain += total.time_ns * max(0.0, 1 - fp8 / bf16)
    return (others + saved) / max(1.0, others - gain)


def _tax(
    rows: tuple[TaxEntry, ...],
    saving: Saving,
    busy_us: float,
) -> TaxReport | None:
    if not rows:
        return None
    time_us = round(fsum(row.time_us for row in rows), 3)
    unfused_us = fsum(row.time_us for row in rows if not row.fused)
    saved_ns = round(saving.saved_ns or 0)
    saved_us = micros(saved_ns)
    return TaxReport(
        time_us=time_us,
        unfused_us=round(unfused_us, 3),
        share_of_gpu_time=round(time_us / busy_us, 6),
        saved_at_most_us=saved_us,
        share_of_saving=rounded(time_us / saved_us) if saved_us > 0 else None,
        rows=rows,
    )


class _Cost(NamedTuple):
    """What kernels of one row of FP8's overhead have in common."""

    purpose: str
    op: str | None
    leg: Leg
    fused: bool


def _overhead(others: Iterable[KindTotal]) -> tuple[TaxEntry, ...]:
    """Add up the kernels that a run in BF16 would not need, by purpose, operator and leg."""
    calls = Counter[_Cost]()
    times = Counter[_Cost]()
    for total in others:
        purpose = purpose_of(total.kind)
        if purpose is not None:
            op = total.kind.op
            cost = _Cost(
                purpose=purpose,
                op=op.name or None,
                leg=_leg_of(op),
                fused=total.kind.classification.library != "PyTorch",
            )
            calls[cost] += total.kernels
            times[cost] += total.amount
    rows = []
    for cost, time_ns in times.items():
        row = TaxEntry(
            purpose=cost.purpose,
            op=cost.op,
            leg=cost.leg,
            fused=cost.fused,
            kernels=calls[cost],
            time_us=micros(time_ns),
        )
        rows.append(row)
    rows.sort(key=lambda row: -row.time_us)
    return tuple(rows)


def _leg_of(op: OpContext) -> Leg:
    """Say for which leg it ran: a gradient's cast serves dgrad and wgrad both."""
    if not op.backward:
        return Leg.FPROP if op.name else Leg.UNKNOWN
    if LAYER_FUNCTIONS.intersection(op.parents):
        return Leg.RECOMPUTE
    return Leg.BACKWARD


def added_us(rows: Iterable[TaxEntry]) -> float:
    """Return the µs that kernels of FP8's overhead add to what BF16 takes."""
    added = 0.0
    for row in rows:
        is_generated = row.fused and (row.op or "").startswith("triton_")
        added += row.time_us * (ADDED_BY_FUSED if is_generated else 1.0)
    return added

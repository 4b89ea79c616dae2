"""The sentences of a report: whether FP8 pays, which steps were recorded, and the notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fp8verify.report.model.diagnosis import CommunicationReport, PayoffReport
from fp8verify.report.model.numerics import MemoryReport, NumericsReport
from fp8verify.report.model.parts import ClockReport
from fp8verify.report.model.report import RankReport, Report
from fp8verify.report.page import FAIR, GOOD, Note
from fp8verify.report.sources import deciding_claim, quoted
from fp8verify.report.tables import figure, millis, rank_label
from fp8verify.terms import low_precision_count, low_precision_name
from fp8verify.text import counted, gib, label_of_ranks, show_steps, show_window

# Labels and texts of notes.
_Lines = Iterator[tuple[str, str]]
# Estimates from peak rates are no better than this.
_EVEN = 0.05
# Less 16-bit GEMM time than this share of GPU time is nothing more to gain.
_LITTLE = 0.01
# From this share on, what the GPU waits for the CPU is more than FP8 can save.
_MOSTLY_IDLE = 0.5
_WINDOWS = 3
_RECORDED = frozenset({"complete", "cut"})


class Payoff(NamedTuple):
    """What FP8 gains, as estimated for one rank.

    Attributes:
        tone: good, fair, or empty where FP8 did not run.
        speedup: of the GPU time over BF16; None if no FP8 GEMM ran.
        text: the answer in a line.
        detail: what the answer rests on.
    """

    tone: str
    speedup: float | None
    text: str
    detail: str


def payoff(report: Report) -> Payoff | None:
    """Say whether FP8 pays on the rank that gains least; None if that cannot be estimated."""
    alone = len(report.ranks) == 1
    found = [one for rank in report.ranks if (one := payoff_of(rank, alone=alone)) is not None]
    measured = [one for one in found if one.speedup is not None]
    return (
        min(measured, key=lambda one: one.speedup or 0.0) if measured else next(iter(found), None)
    )


def payoff_of(rank: RankReport, *, alone: bool = True) -> Payoff | None:
    """Say whether FP8 pays on one rank; None if that cannot be estimated.

    Args:
        rank: the rank.
        alone: whether the run has no other rank.
    """
    figures = rank.payoff
    if figures is None or figures.ceiling is None:
        return None
    kernels, step = figures.speedup_estimate, figures.step_speedup_estimate
    if kernels is None:
        if low_precision_count(rank.gemm.kernels):
            return None  # FP8 ran, and what it gained is not known
        text = f"FP8 could speed up GPU work by at most {figures.ceiling:.2f}x (estimate)"
        return Payoff(
            "", None, text, f"16-bit GEMMs are {figures.sixteen_bit_gemm_share:.0%} of it"
        )
    speedup = kernels if step is None else step
    estimate = "estimate" if alone else f"estimate, worst: {rank_label(rank)}"
    ratio = f"GPU kernels about {kernels:.2f}x BF16 ({estimate})"
    tone, detail = FAIR, _what_limits(rank, figures, figures.ceiling)
    if figures.waits and figures.step_us and figures.gpu_busy_in_step_us:
        busy, whole = _paired(figures.gpu_busy_in_step_us / 1000, figures.step_us / 1000)
        text = f"no gain: the CPU limits the step (GPU busy {busy} of {whole} ms)"
        detail = f"{ratio}; {detail}"
    elif step is None and figures.idle_share >= _MOSTLY_IDLE:
        text = f"no gain: the GPU is idle for {figures.idle_share:.0%} of the window"
        detail = f"{ratio}; {detail}"
    else:
        tone = GOOD if speedup > 1 + _EVEN else FAIR
        how = ratio if step is None else f"a step about {step:.2f}x BF16 ({estimate})"
        cost = f"; casts take {rank.tax.share_of_gpu_time:.0%} of GPU time" if rank.tax else ""
        text = f"{_word(speedup)}: {how}{cost}"
    return Payoff(tone, speedup, text, detail)


def _paired(part: float, whole: float) -> tuple[str, str]:
    """Write two times with as many decimals as the smaller needs."""
    decimals = 1 if part < 10 else 0
    return f"{part:.{decimals}f}", f"{whole:.{decimals}f}"


def _word(speedup: float) -> str:
    if abs(speedup - 1) <= _EVEN:
        return "about even"
    return "probably faster" if speedup > 1 else "probably slower"


def _what_limits(rank: RankReport, figures: PayoffReport, ceiling: float) -> str:
    cost = f", casts and scales {rank.tax.share_of_gpu_time:.0%}" if rank.tax else ""
    name = low_precision_name(rank.gemm.kernels)
    shares = f"{name} GEMMs are {figures.fp8_gemm_share:.0%} of GPU time{cost}"
    if rank.tax and rank.tax.share_of_gpu_time > figures.fp8_gemm_share:
        return shares  # the cost of the casts says enough
    if figures.sixteen_bit_gemm_share < _LITTLE:
        return f"{shares}; without casts: {ceiling:.2f}x"
    return f"{shares}; with all 16-bit GEMMs in FP8 and no casts: {ceiling:.2f}x"


def steps_shown(report: Report) -> str:
    """Return the steps that the ranks' traces hold: "steps 10-12", or nothing."""
    return show_steps(
        step.step
        for rank in report.ranks
        for step in rank.steps
        # A window that the run's end cut short holds the begin of a step that never came.
        if rank.clock is None or (step.step or 0) <= rank.clock.steps_seen
    )


def _steps_line(clock: ClockReport) -> str:
    call = f" ({clock.counts})" if clock.counts else ""
    parts = ["fp8verify.step()" if clock.source == "explicit" else f"optimizer steps{call}"]
    windows = [window for window in clock.windows if window.state in _RECORDED]
    for window in windows[:_WINDOWS]:
        shown = f"window {show_window((window.first, window.last))}"
        if window.framework_first is not None and window.framework_last is not None:
            own = show_window((window.framework_first, window.framework_last))
            shown += f" = {window.framework} {window.counter} {own}"
        parts.append(shown)
    if len(windows) > _WINDOWS:
        parts.append(f"{len(windows) - _WINDOWS} more windows")
    line = ", ".join(parts)
    if clock.steps_skipped:
        line += f"; {counted(clock.steps_skipped, 'step')} skipped by GradScaler"
    return line


def report_notes(report: Report) -> Iterator[Note]:
    """Yield what the tables and the first screen do not say, once for ranks alike."""
    alone = len(report.ranks) == 1
    decides = deciding_claim(report)
    for claim in report.claims:
        if claim is not decides:
            by = "a setting" if claim.strength != "claim" else f"{claim.framework}'s wording"
            by += ", taken back later" if claim.says == "revoked" else ""
            yield Note("log", f"{quoted(claim)} ({by})")
    yield from _by_ranks(((rank, _of_rank(rank)) for rank in report.ranks), alone)
    yield from (Note("note", note) for note in report.notes)


def _by_ranks(found: Iterable[tuple[RankReport, _Lines]], alone: bool) -> Iterator[Note]:
    """Yield notes once each, with the ranks that they are about if there are several."""
    ranks: dict[tuple[str, str], list[RankReport]] = defaultdict(list)
    for rank, lines in found:
        for line in lines:
            ranks[line].append(rank)
    for (label, text), same in ranks.items():
        numbers = [rank.rank for rank in same if rank.rank is not None]
        where = label_of_ranks(numbers) if len(numbers) == len(same) else rank_label(same[0])
        yield Note(label, text if alone else f"{where}: {text}")


def _of_rank(rank: RankReport) -> _Lines:
    if rank.clock is not None:
        yield "steps", _steps_line(rank.clock)
    found = payoff_of(rank)
    if found is not None:
        yield "speed", found.detail
    if rank.payoff is not None:
        limits = (
            f"the GPU is idle for {rank.payoff.idle_share:.0%} of the window; "
            f"{rank.payoff.bandwidth_bound_share:.0%} of its busy time is in memory-bound kernels"
        )
        if rank.payoff.small_gemm_share is not None:
            limits += f"; {rank.payoff.small_gemm_share:.0%} of FP8 GEMM time in small GEMMs"
        yield "limits", limits
    if rank.communication is not None:
        yield "network", _network(rank.communication)
    yield from _numerics(rank)


def _network(found: CommunicationReport) -> str:
    line = f"{millis(found.time_us)} ms in collectives, {millis(found.exposed_us)} ms exposed"
    gather = found.weight_gather
    if gather is None:
        return line
    total = (gather.eight_bit_bytes + gather.wider_bytes) / 1e6
    if not gather.fp8:
        doubt = "perhaps " if gather.fp8 is None else "not "
        return f"{line}; {total:.0f} MB all-gathered, {doubt}in FP8"
    each = gather.bytes_per_parameter
    proof = f" ({each:.2f} bytes a parameter)" if each else ""
    fp8 = gather.eight_bit_bytes / 1e6
    return f"{line}; {fp8:.0f} of {total:.0f} MB all-gathered in FP8{proof}"


def _numerics(rank: RankReport) -> _Lines:
    """Yield what there is on scales, gradients and memory."""
    numbers = rank.numerics
    if numbers is not None and numbers.recipes:
        yield "scales", _scales(numbers)
    if numbers is not None and numbers.loss_scales:
        yield "loss scale", ", ".join(figure(scale, ".6g") for scale in numbers.loss_scales)
    if numbers is not None and numbers.gradients:
        norms = [f"{figure(norm.norm, '.4g')} in step {norm.step}" for norm in numbers.gradients]
        part = " (of this rank's part)" if numbers.gradients[0].sharded else ""
        yield "gradient", f"norm {', '.join(norms[:6])}{part}"
    if rank.memory is not None:
        yield "memory", _memory(rank.memory)
        yield from (("", line) for line in rank.memory.why)


def _scales(found: NumericsReport) -> str:
    recipe = found.recipes[0]
    settings = {"margin": recipe.margin, "history": recipe.history_length, "by": recipe.algorithm}
    how = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    free = [row.headroom_octaves for row in found.scales if row.headroom_octaves is not None]
    headroom = f"; headroom {min(free):.1f} to {max(free):.1f} octaves" if free else ""
    return f"{recipe.name}{how and f' ({how})'}{headroom}"


def _memory(found: MemoryReport) -> str:
    """Say how much memory was used at most, of tensors and by torch's allocator."""
    held, total = gib(found.reserved_peak), gib(found.total)
    return f"peak {gib(found.allocated_peak)} of tensors, {held} reserved, of {total}"

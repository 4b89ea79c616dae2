"""The sentences of a report: whether FP8 pays, which steps were counted, and the notes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fp8verify.report.model.diagnosis import CommunicationReport, PayoffReport
from fp8verify.report.model.numerics import MemoryReport, NumericsReport
from fp8verify.report.model.parts import ClockReport, ModulesReport, WindowReport
from fp8verify.report.model.report import RankReport, Report
from fp8verify.report.page import Note
from fp8verify.report.tables import figure, millis, rank_label
from fp8verify.terms import low_precision_count, low_precision_name
from fp8verify.text import gib, label_of_ranks, listed, show_steps, show_window

# Labels and texts of notes.
_Lines = Iterator[tuple[str, str]]
# Estimates from peak rates are no better than this.
_EVEN = 0.05
# Less 16-bit GEMM time than this share of GPU time is nothing more to gain.
_LITTLE = 0.01
# From this share on, what the GPU waits for the CPU is more than FP8 can save.
_MOSTLY_IDLE = 0.5
_CLAIMS = 4
_WINDOWS = 3
_RECORDED = frozenset({"complete", "cut"})
# Log lines that are not sentences, by what they mean.
_MEANINGS = {
    "PYTORCH_API_USAGE torchao.float8.convert_to_float8_training": (
        "torchao's convert_to_float8_training was called"
    )
}


class Payoff(NamedTuple):
    """What FP8 gains, as estimated for one rank.

    Attributes:
        word: "likely yes", "about even", "likely not", "no" where the CPU decides, or
            "not yet" where no FP8 GEMM ran.
        speedup: of the GPU time over BF16; None if no FP8 GEMM ran.
        head: the answer.
        text: the answer and what it rests on.
    """

    word: str
    speedup: float | None
    head: str
    text: str


def payoff(report: Report) -> Payoff | None:
    """Say whether FP8 pays on the rank that gains least; None if that cannot be estimated."""
    found = [(one, rank) for rank in report.ranks if (one := payoff_of(rank)) is not None]
    if not found:
        return None
    measured = [pair for pair in found if pair[0].speedup is not None]
    one, rank = min(measured, key=lambda pair: pair[0].speedup or 0.0) if measured else found[0]
    if len(report.ranks) == 1:
        return one
    where = f"{rank_label(rank)}{', which gains least' if measured else ''}: "
    return one._replace(head=where + one.head, text=where + one.text)


def payoff_of(rank: RankReport) -> Payoff | None:
    """Say whether FP8 pays on one rank; None if that cannot be estimated."""
    figures = rank.payoff
    if figures is None or figures.ceiling is None:
        return None
    kernels, step = figures.speedup_estimate, figures.step_speedup_estimate
    if kernels is None:
        if low_precision_count(rank.gemm.kernels):
            return None  # FP8 ran, and what it gained is not known
        head = "not yet: no FP8 GEMM ran"
        possible = (
            f"FP8 could make GPU time at most {figures.ceiling:.2f}x as fast, by estimate: 16-bit "
            f"GEMMs are {figures.sixteen_bit_gemm_share:.0%} of it"
        )
        return Payoff("not yet", None, head, f"{head}. {possible}")
    alone = f"kernels alone would be about {kernels:.2f}x as fast as BF16"
    if figures.waits and figures.step_us and figures.gpu_busy_in_step_us:
        word = "no"
        why = (
            f"the CPU is the bottleneck (unprofiled, the GPU is busy for "
            f"{figures.gpu_busy_in_step_us / 1000:.1f} ms of each {figures.step_us / 1000:.1f} ms "
            f"step); {alone}"
        )
    elif step is not None:
        word, why = _word(step), f"a step is about {step:.2f}x as fast as BF16"
    elif figures.idle_share >= _MOSTLY_IDLE:
        word = "likely not"
        why = f"the GPU is idle for {figures.idle_share:.0%} of the window; {alone}"
    else:
        word, why = _word(kernels), f"kernels alone about {kernels:.2f}x as fast as BF16"
    head = f"{word}: {why}, by estimate"
    text = f"{head}. {_what_limits(rank, figures, figures.ceiling)}"
    return Payoff(word, kernels if step is None else step, head, text)


def _word(speedup: float) -> str:
    if abs(speedup - 1) <= _EVEN:
        return "about even"
    return "likely yes" if speedup > 1 else "likely not"


def _what_limits(rank: RankReport, figures: PayoffReport, ceiling: float) -> str:
    cost = f", casts and scales {rank.tax.share_of_gpu_time:.0%}" if rank.tax else ""
    name = low_precision_name(rank.gemm.kernels)
    shares = f"{name} GEMMs are {figures.fp8_gemm_share:.0%} of GPU time{cost}"
    if rank.tax and rank.tax.share_of_gpu_time > figures.fp8_gemm_share:
        return shares  # the cost of the casts says enough
    if figures.sixteen_bit_gemm_share < _LITTLE:
        return f"{shares}; without casts it would be {ceiling:.2f}x"
    return f"{shares}; with all 16-bit GEMMs in FP8 and no casts it would be {ceiling:.2f}x"


def steps_shown(report: Report) -> str:
    """Return the steps that the ranks' traces hold: "steps 10-12", or nothing."""
    return show_steps(
        step.step
        for rank in report.ranks
        for step in rank.steps
        # A window that the run's end cut short holds the begin of a step that never came.
        if rank.clock is None or (step.step or 0) <= rank.clock.steps_seen
    )


def counted_by(report: Report) -> str:
    """Return " (AdamW.step)" where all ranks counted the same call, else nothing."""
    calls = {rank.clock.counts if rank.clock else None for rank in report.ranks}
    call = calls.pop() if len(calls) == 1 else None
    return f" ({call})" if call else ""


def _clock(clock: ClockReport) -> str:
    counted = "optimizer steps" + (f" ({clock.counts})" if clock.counts else "")
    parts = ["fp8verify.step()" if clock.source == "explicit" else counted]
    windows = _recorded(clock)
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
        steps = "step" if clock.steps_skipped == 1 else "steps"
        line += f"; {clock.steps_skipped} {steps} skipped by GradScaler"
    return line


def _recorded(clock: ClockReport) -> list[WindowReport]:
    return [window for window in clock.windows if window.state in _RECORDED]


def report_notes(report: Report, *, verbose: bool) -> Iterator[Note]:
    """Yield the notes in their order; without `verbose` those of the first rank."""
    alone = len(report.ranks) == 1
    for claim in report.claims if verbose else report.claims[:_CLAIMS]:
        words = re.sub(r"\.{4,}", "…", claim.text)  # Megatron-LM fills its lines with dots
        by = "a setting" if claim.strength != "claim" else f"{claim.framework}'s wording"
        by += ", taken back later" if claim.says == "revoked" else ""
        meaning = _MEANINGS.get(claim.text) or f"{words} ({by})"
        yield Note("log", f"{claim.place}: {meaning}")
    if report.mention is not None and not any(claim.says == "fp8" for claim in report.claims):
        mention = f"line {report.mention.line} mentions it: “{report.mention.text}”"
        yield Note("log", f"no line claims FP8 ({mention})")
    yield from (Note("clock", line) for line in _clock_notes(report, verbose))
    shown = [rank.modules for rank in (report.ranks if verbose else report.ranks[:1])]
    lines = dict.fromkeys(_modules(modules) for modules in shown if modules is not None)
    yield from (Note("modules", line) for line in lines)
    if scaling := _scaling(report):
        yield Note("scaling", scaling)
    count = None if verbose else 1
    known = [rank for rank in report.ranks if rank.payoff is not None][:count]
    yield from _by_ranks(((rank, _costs(rank, alone, verbose)) for rank in known), alone)
    yield from _by_ranks(((rank, _numerics(rank, verbose)) for rank in report.ranks[:count]), alone)
    used = [(rank, rank.memory) for rank in report.ranks if rank.memory is not None]
    if used and not verbose:  # the rank that used most is the one that runs out
        rank, memory = max(used, key=lambda pair: pair[1].reserved_peak)
        most = f"{rank_label(rank)}, the fullest of {len(used)}: " if len(used) > 1 else ""
        yield Note("memory", most + _memory(memory))
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


def _clock_notes(report: Report, verbose: bool) -> Iterator[str]:
    """Yield the line of each clock; of ranks alike, that of the first."""
    clocks: dict[str, tuple[RankReport, ClockReport]] = {}
    for rank in report.ranks:
        if rank.clock is not None:
            clocks.setdefault(_clock(rank.clock), (rank, rank.clock))
    alone = len(clocks) == 1
    for line, (rank, clock) in list(clocks.items())[: None if verbose else 1]:
        framework = any(window.framework is not None for window in clock.windows)
        plain = clock.source == "optimizer" and clock.counts and not clock.steps_skipped
        # The steps and `counted_by` in the head may be all that there is to say.
        is_said = alone and plain and not framework and len(_recorded(clock)) == 1
        if verbose or not is_said:
            yield line if alone else f"{rank_label(rank)}: {line}"


def _modules(modules: ModulesReport) -> str:
    """Count the modules by state; those of unknown classes with the names of the classes."""
    counts = [
        f"{count} unknown ({listed(modules.unknown_classes, 2)}: the GEMMs decide)"
        if state == "unknown" and modules.unknown_classes
        else f"{count} {state.replace('_', ' ')}"
        for state, count in modules.counts.items()
    ]
    linear = f"{', '.join(counts) or 'none'} (linear layers)"
    return "; ".join([linear, *modules.storage])


def _scaling(report: Report) -> str:
    """Say how the operands are scaled: as configured, else as the kernels show."""
    seen = report.recipe.time_us
    modules = [rank.modules for rank in report.ranks if rank.modules is not None]
    configured = {scaling for found in modules for scaling in found.scalings}
    if not seen:
        return ""
    return ", ".join(sorted(configured)) or f"{', '.join(seen)} (as the kernels show)"


def _costs(rank: RankReport, alone: bool, verbose: bool) -> _Lines:
    found = payoff_of(rank)
    if found is not None and verbose and not alone:
        yield "pays", found.text
    if rank.payoff is not None and verbose:
        limits = (
            f"the GPU is idle for {rank.payoff.idle_share:.0%} of the window; "
            f"{rank.payoff.bandwidth_bound_share:.0%} of its busy time is in memory-bound kernels"
        )
        if rank.payoff.small_gemm_share is not None:
            limits += f"; {rank.payoff.small_gemm_share:.0%} of FP8 GEMM time in small GEMMs"
        yield "limits", limits
    if rank.communication is not None:
        yield "network", _network(rank.communication)


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


def _numerics(rank: RankReport, verbose: bool) -> _Lines:
    """Yield what there is on scales, gradients and memory."""
    numbers = rank.numerics
    if numbers is not None and numbers.recipes:
        yield "scales", _scales(numbers)
    if numbers is not None and verbose and numbers.loss_scales:
        yield "loss scale", ", ".join(figure(scale, ".6g") for scale in numbers.loss_scales)
    if numbers is not None and verbose and numbers.gradients:
        norms = [f"{figure(norm.norm, '.4g')} in step {norm.step}" for norm in numbers.gradients]
        part = " (of this rank's part)" if numbers.gradients[0].sharded else ""
        yield "gradient", f"norm {', '.join(norms[:6])}{part}"
    if rank.memory is not None and verbose:
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
    return f"peak {gib(found.allocated_peak)} of tensors, {held} held by torch, of {total}"

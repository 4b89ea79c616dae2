"""Whether FP8 pays, in a sentence that every form shows."""

from __future__ import annotations

from typing import NamedTuple

from fp8verify.report.model import RankReport, Report, low_precision_count, low_precision_name
from fp8verify.report.model.diagnosis import PayoffReport
from fp8verify.report.tables import rank_label

# Estimates from peak rates are no better than this.
_EVEN = 0.05
# Less 16-bit GEMM time than this share of GPU time is nothing more to gain.
_LITTLE = 0.01
# From this share on, what the GPU waits for the CPU is more than FP8 can save.
_MOSTLY_IDLE = 0.5


class Payoff(NamedTuple):
    """What FP8 gains, as estimated for one rank.

    Attributes:
        word: "likely yes", "about even", "likely not", "no" where the CPU decides, or
            "not yet" where no FP8 GEMM ran.
        speedup: of the GPU time over BF16; None where no FP8 GEMM ran.
        head: the answer, without the rank.
        text: the answer and what it rests on.
        rank: the rank that it is about.
    """

    word: str
    speedup: float | None
    head: str
    text: str
    rank: RankReport


def payoff(report: Report) -> Payoff | None:
    """Say whether FP8 pays on the rank that gains least; None where that cannot be estimated."""
    found = list(filter(None, map(payoff_of, report.ranks)))
    measured = [one for one in found if one.speedup is not None]
    if measured:
        return min(measured, key=lambda one: one.speedup or 0.0)
    return found[0] if found else None


def payoff_text(report: Report, found: Payoff, *, short: bool = False) -> str:
    """Return the sentence; of several ranks with the one that it is about."""
    text = found.head if short else found.text
    if len(report.ranks) == 1:
        return text
    least = ", which gains least" if found.speedup is not None else ""
    return f"{rank_label(found.rank)}{least}: {text}"


def payoff_of(rank: RankReport) -> Payoff | None:
    """Say whether FP8 pays on one rank."""
    figures = rank.payoff
    if figures is None or figures.ceiling is None:
        return None
    if figures.speedup_estimate is None:
        if low_precision_count(rank.gemm.kernels):
            return None  # FP8 ran, and what it gained is not known
        head = "not yet: no FP8 GEMM ran"
        return Payoff("not yet", None, head, f"{head}. {_possible(figures, figures.ceiling)}", rank)
    kernels, step = figures.speedup_estimate, figures.step_speedup_estimate
    alone = f"kernels alone would be about {kernels:.2f}x as fast as BF16"
    if figures.waits and figures.step_us and figures.gpu_busy_in_step_us:
        word = "no"
        head = (
            f"no: the CPU is the bottleneck (of {figures.step_us / 1000:.1f} ms a step the GPU "
            f"works {figures.gpu_busy_in_step_us / 1000:.1f}); its {alone}, by estimate"
        )
    elif step is not None:
        word = _word(step)
        head = f"{word}: a step is about {step:.2f}x as fast as BF16, by estimate"
    elif figures.idle_share >= _MOSTLY_IDLE:
        word = "likely not"
        head = (
            f"likely not: the GPU is idle for {figures.idle_share:.0%} of the window; its {alone}, "
            "by estimate"
        )
    else:
        word = _word(kernels)
        head = f"{word}: kernels alone about {kernels:.2f}x as fast as BF16, by estimate"
    speedup = kernels if step is None else step
    text = f"{head}. {_limits(rank, figures, figures.ceiling)}"
    return Payoff(word, speedup, head, text, rank)


def _word(speedup: float) -> str:
    if abs(speedup - 1) <= _EVEN:
        return "about even"
    return "likely yes" if speedup > 1 else "likely not"


def _limits(rank: RankReport, payoff: PayoffReport, ceiling: float) -> str:
    cost = f", casts and scales {rank.tax.share_of_gpu_time:.0%}" if rank.tax else ""
    name = low_precision_name(rank.gemm.kernels)
    shares = f"{name} GEMMs are {payoff.fp8_gemm_share:.0%} of GPU time{cost}"
    if rank.tax and rank.tax.share_of_gpu_time > payoff.fp8_gemm_share:
        return shares  # what the casts cost is what there is to say
    if payoff.sixteen_bit_gemm_share < _LITTLE:
        return f"{shares}; without casts it would be {ceiling:.2f}x"
    return f"{shares}; with all 16-bit GEMMs in FP8 and no casts it would be {ceiling:.2f}x"


def _possible(payoff: PayoffReport, ceiling: float) -> str:
    return (
        f"FP8 could make GPU time at most {ceiling:.2f}x as fast, by estimate: 16-bit GEMMs are "
        f"{payoff.sixteen_bit_gemm_share:.0%} of it"
    )

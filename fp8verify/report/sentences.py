"""The sentences of a report: its three sources, whether FP8 pays, and the notes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from fp8verify.model.claims import Claim
from fp8verify.model.costs import CommunicationReport, PayoffReport
from fp8verify.model.layers import ModulesReport
from fp8verify.model.numerics import NumericsReport
from fp8verify.model.report import RankReport, Report
from fp8verify.model.steps import ClockReport
from fp8verify.report.page import FAIR, GOOD, Note
from fp8verify.report.tables import figure, millis
from fp8verify.terms import (
    Precision,
    Role,
    low_precision_count,
    low_precision_name,
    low_precision_share,
)
from fp8verify.text import (
    about,
    counted,
    cut_middle,
    gib,
    label_of_ranks,
    listed,
    show_steps,
    show_window,
)
from fp8verify.thresholds import EVEN, HALF

_Line = TypeVar("_Line", str, Note)
# Two lines at 80 columns hold as much of a log line.
_QUOTED = 130
_MENTIONED = 90
_RANKS = 3
# Log lines that are not sentences, by what they mean.
_MEANINGS = {
    "PYTORCH_API_USAGE torchao.float8.convert_to_float8_training": (
        "torchao's convert_to_float8_training was called"
    )
}
# How a state of linear layers that are not plainly converted is named.
_STATES = {
    "fp8_emulated": "emulate FP8",
    "fp4_emulated": "emulate FP4",
    "fp8_module_off": "are Transformer Engine's, whose FP8 autocast was off",
    "high_precision": "not converted",
}
_CONVERTED = ("fp8", "fp4")


def sources(report: Report) -> tuple[Note, Note, Note]:
    """Return what log, model and kernels say, in this order."""
    return (
        Note("log", _log(report)),
        Note("model", _model(report)),
        Note("kernels", _kernels(report)),
    )


def quoted(claim: Claim) -> str:
    """Return a claim with its place; lines that are no sentence by what they mean."""
    words = re.sub(r"\.{4,}", "…", claim.text)  # Megatron-LM fills its lines with dots
    meaning = _MEANINGS.get(claim.text, f'"{words}"')
    return f"{claim.place}: {meaning}"


_FORMAT = re.compile(r"(?:mx|nv)?(?:fp|float)[48]", re.IGNORECASE)


def _cut_around(text: str, width: int) -> str:
    """Cut a line to a width around the first format that it names; its begin stays if it can."""
    named = _FORMAT.search(text)
    if len(text) <= width:
        return text
    if named is None or named.end() < width * 2 // 3:
        return cut_middle(text, width)
    head = ""
    if text.startswith("line "):
        head = text[: text.find(":") + 1]
    room = width - len(head) - 3
    begin = max(len(head), min(named.start() - room // 2, len(text) - room))
    end = min(len(text), begin + room)
    return f"{head} …{text[begin:end].strip()}{'…' if end < len(text) else ''}".strip()


def deciding_claim(report: Report) -> Claim | None:
    """Return the claim that counts: the first line that turns FP8 on, else off, else a call."""
    on = [claim for claim in report.claims if claim.says == "fp8"]
    lines = [claim for claim in on if claim.line and claim.text not in _MEANINGS]
    lines.sort(key=lambda claim: claim.strength != "claim")  # a dump of settings last
    off = [claim for claim in report.claims if claim.says == "not_fp8"]
    return next(iter([*lines, *off, *on]), None)


def _log(report: Report) -> str:
    claim = deciding_claim(report)
    if claim is not None:
        return _cut_around(quoted(claim), _QUOTED)
    if not report.logs:
        return "none was read"
    if report.mention is not None and "deprecated" not in report.mention.text:
        text = _cut_around(report.mention.text, _MENTIONED)
        return f'no line claims FP8 (line {report.mention.line} mentions it: "{text}")'
    return "no line claims FP8"


def _model(report: Report) -> str:
    """Say what the modules are, once for ranks alike."""
    lines = [
        (rank, "not recorded" if rank.modules is None else _modules(rank, rank.modules))
        for rank in report.ranks
    ]
    found = _by_ranks(lines)
    models = [f"{where}: {line}" if len(found) > 1 else line for line, where in found]
    scaling = _scaling(report)
    return listed(models, _RANKS, between="; ") + (f", {scaling}" if scaling else "")


def _by_ranks(lines: Iterable[tuple[RankReport, _Line]]) -> list[tuple[_Line, str]]:
    """Return each line once, with the ranks that it is about."""
    ranks: dict[_Line, list[RankReport]] = defaultdict(list)
    for rank, line in lines:
        ranks[line].append(rank)
    return [(line, _label_of(same)) for line, same in ranks.items()]


def _label_of(ranks: Sequence[RankReport]) -> str:
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    if len(numbers) == len(ranks):
        return label_of_ranks(numbers)
    return ranks[0].label


def _modules(rank: RankReport, modules: ModulesReport) -> str:
    """Count the linear layers by state."""
    counts = dict(modules.counts)
    total = sum(counts.values())
    if not total:
        experts = rank.layers is not None and rank.layers.experts
        return f"no linear layers{' (expert weights only)' if experts else ''}"
    states = list(_states(counts, modules, rank.gemm.kernels))
    if not states:
        layers = f"none of {counted(total, 'linear layer')} converted"
        return "; ".join([layers, *modules.storage])
    left = counts.get("high_precision", 0)
    if left and len(states) > 1:  # so that the counts add up to the total
        states.append((left, _STATES["high_precision"]))
    (first, what), *others = states
    also = "".join(f", {count} {state}" for count, state in others)
    return "; ".join(
        [f"{first} of {total} linear layers {what}{also}", *modules.storage]
    )


def _states(
    counts: dict[str, int], modules: ModulesReport, ran: dict[str, int]
) -> Iterator[tuple[int, str]]:
    """Yield how many are in each state that is not plain high precision, converted ones first.

    Modules are listed when the window ends; what ran earlier shows whether that held throughout.
    """
    converted = sum(counts.get(state, 0) for state in _CONVERTED)
    if converted:
        yield converted, "converted"
    for state, count in counts.items():
        if state == "unknown":
            if modules.unknown_classes:
                classes = f" ({listed(modules.unknown_classes, 2)})"
            else:
                classes = ""
            yield count, f"of unknown class{classes}, judged by their GEMMs"
        elif state == "fp8_module_off" and low_precision_count(ran):
            yield count, f"{_STATES[state]} when the window ended"
        elif state not in (*_CONVERTED, "high_precision"):
            yield count, _STATES.get(state, state.replace("_", " "))


def _scaling(report: Report) -> str:
    """Say how operands are scaled: as configured, else inferred from kernels."""
    if not report.recipe.time_us:
        return ""
    configured = configured_scalings(report)
    if configured:
        return f"scaling: {'; '.join(configured)}"
    return f"{', '.join(report.recipe.time_us)} (inferred from kernels)"


def configured_scalings(report: Report) -> tuple[str, ...]:
    """Return how the modules' recipes scale, as they were recorded."""
    modules = [rank.modules for rank in report.ranks if rank.modules is not None]
    return tuple(sorted({scaling for one in modules for scaling in one.scalings}))


def _kernels(report: Report) -> str:
    gemms = report.layer_gemm
    kernels = sum(rank.health.kernels for rank in report.ranks)
    if not gemms.launches:
        if kernels:
            return f"no linear-layer GEMM among {kernels} kernels"
        return "none in the trace"
    shares = low_precision_share(gemms.time_us) or 0.0
    formats = low_precision_name(gemms.kernels)
    unit = "GEMM FLOPs"
    if report.measure == "time":
        unit = "GEMM time"
    if report.attention_gemm.launches:
        unit = f"the layers' {unit}"
    return (
        f"{_counts(gemms.kernels)}: {formats} is {about(shares)} of {unit}"
        + "".join(_more(report))
    )


def _counts(kernels: dict[str, int]) -> str:
    """Count GEMMs by precision: FP8, what ran in high precision, unknown."""
    shown = [
        precision
        for precision in Precision
        if kernels.get(precision.value) and precision is not Precision.UNKNOWN
    ]
    if not any(precision.is_low for precision in shown):
        shown.insert(0, Precision.FP8)
    if all(precision.is_low for precision in shown):
        shown.append(Precision.BF16)
    counts = [(one.value.upper(), kernels.get(one.value, 0)) for one in shown]
    counts.append(("unknown", kernels.get("unknown", 0)))
    return ", ".join(f"{name} {count}" for name, count in counts)


def _more(report: Report) -> Iterator[str]:
    known = [
        one
        for one in (rank.expected for rank in report.ranks)
        if one and one.share_of_flops
    ]
    if known:
        least = min(
            known, key=lambda one: one.measured_share_of_flops - one.share_of_flops
        )
        share = about(least.share_of_flops)
        measured = about(least.measured_share_of_flops)
        if (share, measured) != ("100%", "100%"):
            yield f", {measured} of FLOPs ({share} expected)"
    attention = [
        r for rank in report.ranks for r in rank.kernels if r.role is Role.ATTENTION
    ]
    if any(row.precision.is_fp8 for row in attention):
        yield "; attention in FP8"
    logged = [rank.library_log for rank in report.ranks if rank.library_log is not None]
    if gemms := sum(one.gemms for one in logged if one.note is None):
        vouched = sum(one.vouched for one in logged if one.note is None)
        yield f"; the BLAS library's own log agrees on {vouched} of {gemms}"
    compiled = [
        rank.compiled_code for rank in report.ranks if rank.compiled_code is not None
    ]
    if gemms := sum(one.gemms for one in compiled):
        vouched = sum(one.vouched for one in compiled)
        yield f"; the compiled code agrees on {vouched} of {gemms} Triton GEMMs"


# ---- whether FP8 pays, and the notes

_WINDOWS = 3
_RECORDED = frozenset({"complete", "cut"})


class Payoff(NamedTuple):
    """What FP8 gains, as estimated for one rank.

    Attributes:
        tone: good, fair, or empty where FP8 did not run.
        speedup: of a step, or else of the GPU time, over BF16; None if no FP8 GEMM ran, the CPU
            decides, or it is not known.
        text: the answer in a line.
    """

    tone: str
    speedup: float | None
    text: str


def payoff(report: Report) -> Payoff | None:
    """Say whether FP8 pays on the rank that gains least; None if nothing can be said.

    Every form of a report has its answer from here. A rank that gains nothing counts before those
    that are estimated: where ranks wait for each other, the slowest decides.
    """
    alone = len(report.ranks) == 1
    found = [_payoff_of(rank, alone=alone) for rank in report.ranks]
    answers = [one for one in found if one is not None]
    estimated = [one for one in answers if one.speedup is not None]
    without = [one for one in answers if one.speedup is None and one.tone]
    if without:
        return without[0]
    return min(
        estimated, key=lambda one: one.speedup or 0.0, default=next(iter(answers), None)
    )


def _payoff_of(rank: RankReport, *, alone: bool) -> Payoff | None:
    figures = rank.payoff
    if figures is None:
        return None
    if not low_precision_count(rank.gemm.kernels):
        return _possible(figures)
    limit = _limit(figures)
    speedup = figures.step_speedup_estimate or figures.speedup_estimate
    if limit and speedup is None:
        return Payoff(FAIR, None, f"no gain: {limit}")
    if figures.no_estimate:
        return Payoff("", None, f"no estimate: {figures.no_estimate}")
    if speedup is None:
        return None
    what = "a step"
    if figures.step_speedup_estimate is None:
        what = "GPU kernels"
    if alone:
        estimate = "estimate"
    else:
        estimate = f"estimate, worst: {rank.label}"
    text = f"{_word(speedup)}: {what} about {speedup:.2f}x BF16 ({estimate})"
    if rank.tax:
        text += f"; casts take {rank.tax.share_of_gpu_time:.0%} of GPU time"
    if limit:
        text += f"; {limit}"
    return Payoff(GOOD if speedup > 1 + EVEN else FAIR, speedup, text)


def _limit(figures: PayoffReport) -> str:
    """Say why faster kernels shorten no step; nothing if they do, or it is not known."""
    if figures.waits and figures.step_us and figures.gpu_busy_in_step_us:
        busy = figures.gpu_busy_in_step_us / 1000
        whole = figures.step_us / 1000
        form = ".1f" if busy < 10 else ".0f"  # as many decimals as the smaller needs
        times = f"GPU busy {busy:{form}} of {whole:{form}} ms, without the profiler"
        return f"the CPU limits the step ({times})"
    if figures.waits is None and figures.idle_share >= HALF:  # as the finding says it
        return f"the GPU is idle for {figures.idle_share:.0%} of the window"
    return ""


def _possible(figures: PayoffReport) -> Payoff | None:
    """Say what FP8 could bring to a run without it."""
    if figures.ceiling is None or figures.ceiling <= 1 + EVEN:
        return None
    most = f"FP8 could speed up GPU work by at most {figures.ceiling:.2f}x (estimate)"
    return Payoff("", None, most)


def _word(speedup: float) -> str:
    if abs(speedup - 1) <= EVEN:
        return "about even"
    if speedup > 1:
        return "probably faster"
    return "probably slower"


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
    said = [
        "fp8verify.step()" if clock.source == "explicit" else f"optimizer steps{call}"
    ]
    windows = [window for window in clock.windows if window.state in _RECORDED]
    for window in windows[:_WINDOWS]:
        shown = f"window {show_window((window.first, window.last))}"
        if window.framework_first is not None and window.framework_last is not None:
            own = show_window((window.framework_first, window.framework_last))
            shown += f" = {window.framework} {window.counter} {own}"
        said.append(shown)
    if len(windows) > _WINDOWS:
        said.append(f"{len(windows) - _WINDOWS} more windows")
    line = ", ".join(said)
    if clock.steps_skipped:
        line += f"; {counted(clock.steps_skipped, 'step')} skipped by GradScaler"
    return line


def report_notes(report: Report) -> Iterator[Note]:
    """Yield what the tables and the first screen do not say, once for ranks alike."""
    decides = deciding_claim(report)
    for claim in report.claims:
        if claim is not decides:
            if claim.strength != "claim":
                by = "a setting"
            else:
                by = f"{claim.framework}'s wording"
            by += ", taken back later" if claim.says == "revoked" else ""
            yield Note("log", f"{quoted(claim)} ({by})")
    notes = _by_ranks((rank, note) for rank in report.ranks for note in _of_rank(rank))
    for note, where in notes:
        yield (
            note
            if len(report.ranks) == 1
            else note._replace(text=f"{where}: {note.text}")
        )
    yield from (Note("note", note) for note in report.notes)


def _of_rank(rank: RankReport) -> Iterator[Note]:
    if rank.clock is not None:
        yield Note("steps", _steps_line(rank.clock))
    named = rank.named_layers
    if named is not None and named.note and not named.rows:
        yield Note("layers", f"not recorded: {named.note}")
    if rank.communication is not None:
        yield Note("network", _network(rank.communication))
    numbers = rank.numerics
    if numbers is not None and numbers.recipes:
        yield Note("scales", _scales(numbers))
    if numbers is not None and numbers.loss_scales:
        yield Note(
            "loss scale",
            ", ".join(figure(scale, ".6g") for scale in numbers.loss_scales),
        )
    if numbers is not None and numbers.gradients:
        norms = [
            f"{figure(norm.norm, '.4g')} in step {norm.step}"
            for norm in numbers.gradients
        ]
        part = ""
        if numbers.gradients[0].sharded:
            part = " (of this rank's part)"
        yield Note("gradient", f"norm {', '.join(norms[:6])}{part}")
    if (peak := rank.memory) is not None:
        held = gib(peak.reserved_peak)
        total = gib(peak.total)
        used = (
            f"peak {gib(peak.allocated_peak)} of tensors, {held} reserved, of {total}"
        )
        yield Note("memory", used)
        yield from (Note("", line) for line in peak.why)


def _network(moved: CommunicationReport) -> str:
    line = f"{millis(moved.time_us)} ms in collectives, {millis(moved.exposed_us)} ms exposed"
    gather = moved.weight_gather
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


def _scales(numerics: NumericsReport) -> str:
    recipe = numerics.recipes[0]
    settings = {
        "margin": recipe.margin,
        "history": recipe.history_length,
        "by": recipe.algorithm,
    }
    how = ", ".join(
        f"{name} {value}" for name, value in settings.items() if value is not None
    )
    free = [
        row.headroom_octaves
        for row in numerics.scales
        if row.headroom_octaves is not None
    ]
    headroom = ""
    if free:
        headroom = f"; headroom {min(free):.1f} to {max(free):.1f} octaves"
    return f"{recipe.name}{how and f' ({how})'}{headroom}"

"""A report as a page: which tables and notes it has, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.report.clock import clock_lines, counted_by, head_says_all, steps_shown
from fp8verify.report.escape import shorten
from fp8verify.report.model import (
    Claim,
    ModulesReport,
    RankReport,
    Report,
    Severity,
    Verdict,
    low_precision_name,
)
from fp8verify.report.model.diagnosis import CommunicationReport, PayoffReport, WeightGather
from fp8verify.report.numerics_text import numerics_grids, numerics_notes
from fp8verify.report.page import BAD, FAIR, GOOD, Grid, Note, Page
from fp8verify.report.payoff import payoff, payoff_of, payoff_text
from fp8verify.report.rank_grids import breakdown_grid, named_layer_grids, rank_grids, step_grid
from fp8verify.report.tables import (
    by_severity,
    gemm_kernels,
    layer_share,
    millis,
    other_gemms,
    percent,
    precision_rows,
    rank_label,
    shown_findings,
    software,
)
from fp8verify.text import listed
from fp8verify.verdict.policy import USUAL_SHARE

TONES = {Verdict.ACTIVE: GOOD, Verdict.PARTIAL: FAIR, Verdict.INCONCLUSIVE: FAIR}
PAYS_TONES = {"likely yes": GOOD, "likely not": FAIR}
# What to do where no error and no warning says it.
_TO_DO = {
    Verdict.ACTIVE: "nothing: no error and no warning",
    Verdict.PARTIAL: "See below which layers and passes ran in high precision, and whether they "
    "were meant to.",
    Verdict.INACTIVE: "If FP8 was meant, convert the model before the first step (torchao's "
    "convert_to_float8_training, or Transformer Engine's layers inside its autocast); "
    "`fp8verify doctor` checks the configuration beforehand.",
    Verdict.INCONCLUSIVE: "Record a window of whole training steps with `fp8verify run`: it "
    "includes operators, shapes and the modules.",
}
_TOP = 5
_TOP_OF_RANKS = 3
_CLAIMS = 4
_RANKS = 8
_OP_WIDTH = 16
# Log lines that are not sentences, by what they mean.
_MEANINGS = {
    "PYTORCH_API_USAGE torchao.float8.convert_to_float8_training": (
        "torchao's convert_to_float8_training was called"
    ),
}


def report_page(report: Report, *, verbose: bool = False) -> Page:
    """Lay out a report.

    Args:
        report: the finished report.
        verbose: whether to add the tables of steps, costs, collectives and layers.
    """
    found = payoff(report)
    return Page(
        head=_head(report),
        verdict=report.verdict.value,
        tone=TONES.get(report.verdict, BAD),
        reason=report.reason,
        fails=report.fails,
        name=report.name,
        pays=found and Note("pays", payoff_text(report, found), PAYS_TONES.get(found.word, "")),
        pays_briefly=payoff_text(report, found, short=True) if found else "",
        findings=tuple(by_severity(shown_findings(report))),
        to_do=tuple(_to_do(report)),
        body=tuple(_body(report, verbose)),
        notes=tuple(_notes(report, verbose)),
        software=software(report),
    )


def _head(report: Report) -> str:
    parts = [f"fp8verify {report.fp8verify_version}", report.name]
    if report.environment.gpu:
        parts.append(report.environment.gpu)
    left_out = [one.message for one in report.findings if one.code == "ranks-not-observed"]
    if left_out or len(report.ranks) > 1:
        parts.append((left_out or [f"{len(report.ranks)} ranks"])[0])
    if shown := steps_shown(report):
        parts.append(shown + counted_by(report))
    return " · ".join(dict.fromkeys(parts))


def _to_do(report: Report) -> Iterator[str]:
    grave = [one for one in report.findings if one.severity is not Severity.INFO]
    if not grave and report.verdict in _TO_DO:
        cause = next((one for one in report.findings if one.code == "layer-not-fp8"), None)
        yield (
            cause.hint
            if cause and report.verdict is not Verdict.ACTIVE
            else (_TO_DO[report.verdict])
        )
    if report.verdict is Verdict.PARTIAL and not report.fails:
        short = any((layer_share(rank) or 0.0) < USUAL_SHARE for rank in report.ranks)
        gate = f"--min-share {USUAL_SHARE:.0%}" if short else "--strict"
        yield f"Exit code 0: add {gate} to make such a run fail."


def _body(report: Report, verbose: bool) -> Iterator[Grid | str]:
    if any(report.gemm.kernels.values()):
        yield _gemm_grid(report)
        if len(report.legs) > 1:
            yield _leg_grid(report)
        yield _gpu_time(report)
        yield _kernel_grid(report, verbose)
    if len(report.ranks) > 1:
        yield _rank_grid(report)
    if report.breakdown is not None:
        yield breakdown_grid(report.breakdown)
    yield from named_layer_grids(report, verbose=verbose)
    yield from numerics_grids(report, verbose=verbose)
    if verbose:
        yield from (step_grid(rank) for rank in report.ranks if len(rank.steps) > 1)
        yield from (grid for rank in report.ranks for grid in rank_grids(rank))


def _gemm_grid(report: Report) -> Grid:
    """GEMMs of layers, whose shares the verdict is about, then those of other work."""
    others = other_gemms(report)
    names = (
        f"GEMM{' of layers' if others else ' time'}",
        "kernels",
        "ms",
        "of layers" if others else "share",
        "TFLOP/s",
    )
    rows = [
        (
            row.precision,
            str(row.kernels),
            millis(row.time_us),
            percent(row.share),
            "-" if row.tflops is None else _rate(row.tflops),
        )
        for row in precision_rows(report)
    ]
    rows += [
        (f"({row.precision}, {what})", str(row.kernels), millis(row.time_us), "-", "-")
        for what, row in others
    ]
    return Grid("GEMM time", names, names[:1], tuple(rows))


def _rate(tflops: float) -> str:
    return f"{tflops:.0f}" if tflops >= 9.5 else f"{tflops:.2g}"


def _leg_grid(report: Report) -> Grid:
    kinds = [
        name for name in report.gemm.kernels if any(leg.time_us.get(name) for leg in report.legs)
    ]
    rows = tuple(
        (leg.leg.value, *(millis(us) if (us := leg.time_us.get(name)) else "-" for name in kinds))
        for leg in report.legs
    )
    return Grid("GEMM time by pass", ("pass (ms)", *kinds), ("pass (ms)",), rows)


def _gpu_time(report: Report) -> str:
    total = sum(report.gpu_time_us.values())
    shares = sorted(report.gpu_time_us.items(), key=lambda item: -item[1])
    parts = [f"{name} {percent(us / total)}" for name, us in shares if us / total >= 0.005]
    return f"GPU time {total / 1000:.2f} ms: {', '.join(parts)}"


def _kernel_grid(report: Report, verbose: bool) -> Grid:
    names = ("ms", "precision", "pass", "op", "TFLOP/s", "of peak", "longest GEMM kernels")
    kernels = gemm_kernels(report)
    top = _TOP if len(report.ranks) == 1 else _TOP_OF_RANKS
    rows = tuple(
        (
            millis(row.time_us),
            row.precision.value,
            row.leg.value if row.leg else "-",
            _operator(row.op, verbose),
            "-" if row.tflops is None else _rate(row.tflops),
            "-" if row.percent_of_peak is None else f"{row.percent_of_peak:.0f}%",
            row.name,
        )
        for row in (kernels if verbose else kernels[:top])
    )
    words = ("precision", "pass", "op", "longest GEMM kernels")
    return Grid("Longest GEMM kernels", names, words, rows, stretch=True, folded=True)


def _operator(name: str | None, verbose: bool) -> str:
    short = (name or "-").removeprefix("aten::")
    return short if verbose else shorten(short, _OP_WIDTH)


def _rank_grid(report: Report) -> Grid:
    """The ranks whose verdict differs from the run's first, then the others."""
    share = f"{low_precision_name(report.gemm.kernels)} share"
    names = ("rank", "verdict", share, "GEMM ms", "source")
    ranks = sorted(report.ranks, key=lambda rank: rank.verdict is report.verdict)
    rows = tuple(
        (
            "-" if rank.rank is None else str(rank.rank),
            rank.verdict.value,
            percent(layer_share(rank)),
            millis(sum(rank.gemm.time_us.values())),
            rank.source,
        )
        for rank in ranks
    )
    return Grid("Ranks", names, ("rank", "verdict", "source"), rows, stretch=True, shown=_RANKS)


def _notes(report: Report, verbose: bool) -> Iterator[Note]:
    alone = len(report.ranks) == 1
    for claim in report.claims if verbose else report.claims[:_CLAIMS]:
        yield Note("log", claim_text(claim))
    yield from (Note("clock", line) for line in _clocks(report, verbose))
    for rank in report.ranks if verbose else report.ranks[:1]:
        if rank.modules is not None:
            yield Note("modules", modules_text(rank.modules))
    if scaling := _scaling(report):
        yield Note("scaling", scaling)
    known = [rank for rank in report.ranks if rank.payoff is not None]
    for rank in known if verbose else known[:1]:
        of_rank = "" if alone else f"{rank_label(rank)}: "
        yield from (Note(label, of_rank + text) for label, text in _costs(rank, alone, verbose))
    yield from numerics_notes(report, verbose=verbose)
    yield from (Note("note", note) for note in report.notes)


def claim_text(claim: Claim) -> str:
    """Return what a log line claims; the framework is the one whose wording it is."""
    meaning = _MEANINGS.get(claim.text)
    return (
        f"{claim.place}: {meaning or f'{claim.text} ({claim.framework}' + chr(39) + 's wording)'}"
    )


def _clocks(report: Report, verbose: bool) -> Iterator[str]:
    clocks = clock_lines(report)
    alone = len(clocks) == 1
    for rank, line in clocks if verbose else clocks[:1]:
        if verbose or not (alone and rank.clock is not None and head_says_all(rank.clock)):
            yield line if alone else f"{rank_label(rank)}: {line}"


def modules_text(modules: ModulesReport) -> str:
    """Count the modules by state; those of unknown classes with the names of the classes."""
    counts = [
        f"{count} unknown ({listed(modules.unknown_classes, 2)}: the GEMMs decide)"
        if state == "unknown" and modules.unknown_classes
        else f"{count} {state.replace('_', ' ')}"
        for state, count in modules.counts.items()
    ]
    return f"{', '.join(counts) or 'none'} (linear layers)"


def _scaling(report: Report) -> str:
    """Say how the operands are scaled: as configured, else as the kernels show."""
    configured = {
        scaling
        for rank in report.ranks
        if rank.modules is not None
        for scaling in rank.modules.scalings
    }
    if configured and report.recipe.time_us:
        return ", ".join(sorted(configured))
    return f"{', '.join(report.recipe.time_us)} (as the kernels show)" * bool(report.recipe.time_us)


def _costs(rank: RankReport, alone: bool, verbose: bool) -> Iterator[tuple[str, str]]:
    found = payoff_of(rank)
    if found is not None and verbose and not alone:
        yield "pays", found.text
    if rank.payoff is not None and verbose:
        yield "limits", _limits(rank.payoff)
    if rank.communication is not None:
        yield "network", _network(rank.communication)


def _limits(found: PayoffReport) -> str:
    small = found.small_gemm_share
    return (
        f"the GPU idles {found.idle_share:.0%} of the window; of its busy time "
        f"{found.bandwidth_bound_share:.0%} is in kernels that memory bandwidth limits"
        + (f"; {small:.0%} of FP8 GEMM time in small GEMMs" if small is not None else "")
    )


def _network(found: CommunicationReport) -> str:
    line = f"{millis(found.time_us)} ms in collectives, {millis(found.exposed_us)} of them exposed"
    return line if found.weight_gather is None else f"{line}; {_gathered(found.weight_gather)}"


def _gathered(gather: WeightGather) -> str:
    total = (gather.eight_bit_bytes + gather.wider_bytes) / 1e6
    if not gather.fp8:
        doubt = "perhaps " if gather.fp8 is None else "not "
        return f"{total:.0f} MB all-gathered, {doubt}in FP8"
    each = gather.bytes_per_parameter
    proof = f" ({each:.2f} bytes a parameter)" if each else ""
    return f"{gather.eight_bit_bytes / 1e6:.0f} of {total:.0f} MB all-gathered in FP8{proof}"

"""The report at a glance: one screen of text, 80 columns wide where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fp8verify.report.breakdown_text import breakdown_table
from fp8verify.report.clock import clock_lines, head_says_all
from fp8verify.report.diagnosis_text import glance, tables
from fp8verify.report.escape import printable, shorten
from fp8verify.report.first_lines import first_lines, head, verdict_line
from fp8verify.report.layers_text import named_layers
from fp8verify.report.layout import PlainTable, plain_table, render
from fp8verify.report.log_words import said
from fp8verify.report.model import (
    Finding,
    Precision,
    RankReport,
    Report,
    Severity,
)
from fp8verify.report.modules_text import modules_told, scaling_told
from fp8verify.report.numerics_text import glance as numerics_glance
from fp8verify.report.numerics_text import numerics
from fp8verify.report.tables import (
    gemm_kernels,
    millis,
    percent,
    precision_rows,
    rank_label,
    software,
    told_findings,
)

_TOP = 5
_TOP_OF_RANKS = 3
_CLAIMS = 4
_RANKS = 8
_INFOS = 4
_OP_WIDTH = 16
_INFO_STYLE = "cyan"


def to_text(
    report: Report, *, terminal: bool = False, verbose: bool = False, width: int | None = None
) -> str:
    """Render the report; colour only on a terminal, and not where NO_COLOR is set."""
    return render(list(_sections(report, verbose)), terminal=terminal, width=width)


def _sections(report: Report, verbose: bool) -> Iterator[RenderableType]:
    findings = told_findings(report)
    yield head(report)
    yield Padding(verdict_line(report), (1, 0))
    yield first_lines(report, findings)
    if any(report.gemm.kernels.values()):
        yield _below(_gemm_table(report))
        if len(report.legs) > 1:
            yield _below(_leg_table(report))
        yield Padding(_gpu_time(report), (1, 0))
        yield _kernel_table(report, verbose)
    if len(report.ranks) > 1:
        yield _rank_table(report, verbose)
    if report.breakdown is not None:
        yield breakdown_table(report.breakdown)
    yield from named_layers(report, verbose=verbose)
    yield from numerics(report, verbose=verbose)
    if verbose:
        yield from (_step_table(rank) for rank in report.ranks if len(rank.steps) > 1)
        yield from (table for rank in report.ranks for table in tables(rank))
    yield from _sources(report, verbose)
    yield from _infos(findings, verbose)


def _below(what: RenderableType) -> Padding:
    return Padding(what, (1, 0, 0, 0))


def _gemm_table(report: Report) -> PlainTable:
    table = _table("GEMM time", "kernels", "ms", "share", "TFLOP/s")
    for row in precision_rows(report.gemm):
        table.add_row(
            Text(row.precision, style="green" if Precision(row.precision).is_low else ""),
            str(row.kernels),
            millis(row.time_us),
            percent(row.share),
            "-" if row.tflops is None else f"{row.tflops:.0f}",
        )
    return table


def _leg_table(report: Report) -> PlainTable:
    names = [name for name in report.gemm.kernels if report.gemm.kernels[name]]
    table = _table("leg (ms)", *names)
    for leg in report.legs:
        cells = (leg.time_us.get(name) for name in names)
        table.add_row(leg.leg.value, *(millis(us) if us is not None else "-" for us in cells))
    return table


def _gpu_time(report: Report) -> Text:
    total = sum(report.gpu_time_us.values())
    shares = sorted(report.gpu_time_us.items(), key=lambda item: -item[1])
    parts = [f"{name} {percent(us / total)}" for name, us in shares if us / total >= 0.005]
    return Text(f"GPU time {total / 1000:.2f} ms: {', '.join(parts)}")


def _kernel_table(report: Report, verbose: bool) -> PlainTable:
    rows = gemm_kernels(report)
    names = ("ms", "precision", "leg", "op", "TFLOP/s", "of peak", "longest GEMM kernels")
    table = _table(*names, uncut=verbose)
    for row in rows if verbose else rows[: _TOP if len(report.ranks) == 1 else _TOP_OF_RANKS]:
        table.add_row(
            millis(row.time_us),
            row.precision.value,
            row.leg.value if row.leg else "-",
            _operator(row.op, verbose),
            "-" if row.tflops is None else f"{row.tflops:.0f}",
            "-" if row.percent_of_peak is None else f"{row.percent_of_peak:.0f}%",
            printable(row.name),
        )
    return table


def _operator(name: str | None, verbose: bool) -> str:
    short = printable((name or "-").removeprefix("aten::"))
    return short if verbose else shorten(short, _OP_WIDTH)


def _rank_table(report: Report, verbose: bool) -> RenderableType:
    table = _table("rank", "verdict", "FP8 share", "GEMM ms", "source", uncut=verbose)
    shown = report.ranks if verbose else _telling_ranks(report)
    for rank in shown:
        share = rank.gemm.fp8_share_of_time
        table.add_row(
            "-" if rank.rank is None else str(rank.rank),
            rank.verdict.value,
            "-" if share is None else percent(share),
            millis(sum(rank.gemm.time_us.values())),
            printable(rank.source),
        )
    hidden = len(report.ranks) - len(shown)
    rest = [Text(f"… and {hidden} more ranks like the run's verdict")] if hidden else []
    return Padding(Group(table, *rest), (1, 0, 0, 0))


def _telling_ranks(report: Report) -> list[RankReport]:
    """The ranks whose verdict differs from the run's first, then the others."""
    return sorted(report.ranks, key=lambda rank: rank.verdict is report.verdict)[:_RANKS]


def _step_table(rank: RankReport) -> RenderableType:
    table = _table("step", "CPU ms", "GPU ms", "FP8 share", "GEMM ms")
    for step in rank.steps:
        share = step.gemm.fp8_share_of_time
        table.add_row(
            str(step.step),
            millis(step.duration_us),
            "-" if step.gpu_us is None else millis(step.gpu_us),
            "-" if share is None else percent(share),
            millis(sum(step.gemm.time_us.values())),
        )
    return Padding(table, (1, 0, 0, 0))


def _sources(report: Report, verbose: bool) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for claim in report.claims if verbose else report.claims[:_CLAIMS]:
        grid.add_row("log", Text(said(claim)))
    for line in _clocks(report, verbose):
        grid.add_row("clock", Text(printable(line)))
    for rank in report.ranks if verbose else report.ranks[:1]:
        if rank.modules is not None:
            grid.add_row("modules", printable(modules_told(rank.modules)))
    if report.recipe.time_us:
        grid.add_row("scaling", printable(scaling_told(report)))
    gains = [rank for rank in report.ranks if rank.payoff is not None]
    for rank in gains if verbose else gains[:1]:
        for label, line in glance(rank, alone=len(report.ranks) == 1, verbose=verbose):
            grid.add_row(label, Text(line))
    for label, line in (*numerics_glance(report, verbose=verbose), *_remarks(report, verbose)):
        grid.add_row(label, Text(printable(line)))
    if grid.row_count:
        yield Padding(grid, (1, 0, 0, 0))


def _remarks(report: Report, verbose: bool) -> Iterator[tuple[str, str]]:
    if verbose and report.environment.versions:
        yield "software", software(report)
    for note in report.notes:
        yield "note", note


def _clocks(report: Report, verbose: bool) -> Iterator[str]:
    clocks = clock_lines(report)
    alone = len(clocks) == 1
    for rank, line in clocks if verbose else clocks[:1]:
        if verbose or not (alone and rank.clock is not None and head_says_all(rank.clock)):
            yield line if alone else f"{rank_label(rank)}: {line}"


def _infos(findings: Sequence[Finding], verbose: bool) -> Iterator[RenderableType]:
    """What explains and needs no action: as much as the screen holds, hints for those who ask."""
    infos = [finding for finding in findings if finding.severity is Severity.INFO]
    grave = len(findings) - len(infos)
    shown = infos if verbose else infos[: max(1, _INFOS - grave)]
    lines: list[RenderableType] = []
    hints: set[str] = set()
    for finding in shown:
        label = (finding.severity.value, _INFO_STYLE)
        lines.append(Text.assemble(label, f" [{finding.code}] ", printable(finding.message)))
        if verbose and finding.hint not in {*hints, ""}:
            lines.append(Padding(Text(printable(finding.hint), style="dim"), (0, 0, 0, 4)))
        hints.add(finding.hint)
    if len(shown) < len(infos):
        lines.append(Text(f"… and {len(infos) - len(shown)} more with --verbose"))
    if lines:
        yield _below(Group(*lines))


_TEXT_COLUMNS = ("precision", "leg", "op", "verdict", "source", "longest GEMM kernels")


def _table(*names: str, uncut: bool = False) -> PlainTable:
    """A table of the report; a last column of words is cut unless it is to be whole."""
    first = names[:1] if names[0] != "ms" else ()
    stretch = names[-1] in _TEXT_COLUMNS
    return plain_table(*names, words=(*_TEXT_COLUMNS, *first), stretch=stretch, uncut=uncut)

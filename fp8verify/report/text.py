"""The report at a glance: one screen of text, 80 columns wide where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fp8verify.model import (
    Claim,
    Finding,
    GemmSummary,
    KernelRow,
    Precision,
    RankReport,
    Report,
    Role,
    Severity,
    Verdict,
)

PLAIN_WIDTH = 80
MAX_WIDTH = 120
_TOP = 5
_CLAIMS = 4
_RANKS = 8
_VERDICT_STYLES = {
    Verdict.ACTIVE: "bold green",
    Verdict.PARTIAL: "bold yellow",
    Verdict.INCONCLUSIVE: "bold yellow",
}
_SEVERITY_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def to_text(report: Report, *, terminal: bool = False, verbose: bool = False) -> str:
    """Render the report; colour only on a terminal, and not where NO_COLOR is set."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=min(Console().width, MAX_WIDTH) if terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,  # names and log lines may hold brackets
        emoji=False,
    )
    console.print(Group(*_sections(report, verbose)))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _sections(report: Report, verbose: bool) -> Iterator[RenderableType]:
    yield _head(report)
    yield _verdict(report)
    if any(report.gemm.kernels.values()):
        yield _gemm_table(report)
        if len(report.legs) > 1:
            yield _leg_table(report)
        yield _gpu_time(report)
        yield _kernel_table(report, verbose)
    if len(report.ranks) > 1:
        yield _rank_table(report, verbose)
    if verbose:
        yield from (_step_table(rank) for rank in report.ranks if len(rank.steps) > 1)
    yield from _sources(report, verbose)
    yield from _findings(report.findings)


def _head(report: Report) -> Text:
    count = len(report.ranks)
    parts = [f"fp8verify {report.fp8verify_version}"]
    if report.environment.gpu:
        parts.append(report.environment.gpu)
    if count > 1:
        parts.append(f"{count} ranks")
    steps = sorted({step.step for rank in report.ranks for step in rank.steps})
    if steps:
        parts.append(f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}-{steps[-1]}")
    if count == 1:
        parts.append(report.ranks[0].source)
    return Text(clean(" · ".join(parts)), style="dim", no_wrap=True, overflow="ellipsis")


def _verdict(report: Report) -> RenderableType:
    style = _VERDICT_STYLES.get(report.verdict, "bold red")
    line = Text.assemble((report.verdict.value, style), "  ", clean(report.reason), ".")
    return Padding(line, (1, 0))


def _gemm_table(report: Report) -> Table:
    table = _table("GEMM time", "kernels", "ms", "share", "TFLOP/s")
    total = sum(report.gemm.time_us.values())
    for name, time_us in sorted(report.gemm.time_us.items(), key=lambda item: -item[1]):
        count = report.gemm.kernels[name]
        if count:
            style = "green" if Precision(name).is_fp8 else ""
            table.add_row(
                Text(name, style=style),
                str(count),
                f"{time_us / 1000:.2f}",
                _percent(time_us / total if total else 0.0),
                _rate(report.gemm, name),
            )
    return table


def _rate(gemm: GemmSummary, name: str) -> str:
    """TFLOP/s over the class, where shapes cover its GEMMs."""
    if gemm.flops is None or gemm.flops_coverage < 1 or not gemm.time_us[name]:
        return "-"
    return f"{gemm.flops[name] / gemm.time_us[name] / 1e6:.0f}"


def _leg_table(report: Report) -> RenderableType:
    names = [name for name in report.gemm.kernels if report.gemm.kernels[name]]
    table = _table("leg (ms)", *names)
    for leg in report.legs:
        cells = (leg.time_us.get(name) for name in names)
        table.add_row(leg.leg, *(f"{us / 1000:.2f}" if us is not None else "-" for us in cells))
    return Padding(table, (1, 0, 0, 0))


def _gpu_time(report: Report) -> RenderableType:
    total = sum(report.gpu_time_us.values())
    shares = sorted(report.gpu_time_us.items(), key=lambda item: -item[1])
    parts = [f"{name} {_percent(us / total)}" for name, us in shares if us / total >= 0.005]
    return Padding(Text(f"GPU time {total / 1000:.2f} ms: {', '.join(parts)}"), (1, 0))


def _kernel_table(report: Report, verbose: bool) -> Table:
    rows = _top_kernels(report)
    table = _table("ms", "precision", "leg", "op", "TFLOP/s", "of peak", "longest GEMM kernels")
    for row in rows if verbose else rows[:_TOP]:
        table.add_row(
            f"{row.time_us / 1000:.2f}",
            row.precision,
            row.leg or "-",
            clean((row.op or "-").removeprefix("aten::"))[:16],
            "-" if row.tflops is None else f"{row.tflops:.0f}",
            "-" if row.percent_of_peak is None else f"{row.percent_of_peak:.0f}%",
            clean(row.name),
        )
    return table


def _top_kernels(report: Report) -> list[KernelRow]:
    """The GEMM kernels of all ranks by time, alike ones added up."""
    merged: dict[tuple[str, str, str | None, str | None], KernelRow] = {}
    for row in (row for rank in report.ranks for row in rank.kernels if Role(row.role).is_gemm):
        key = (row.name, row.precision, row.leg, row.op)
        known = merged.get(key)
        merged[key] = row if known is None else _added(known, row)
    return sorted(merged.values(), key=lambda row: -row.time_us)


def _added(first: KernelRow, second: KernelRow) -> KernelRow:
    return replace(
        first, time_us=first.time_us + second.time_us, kernels=first.kernels + second.kernels
    )


def _rank_table(report: Report, verbose: bool) -> RenderableType:
    table = _table("rank", "verdict", "FP8 share", "GEMM ms", "source")
    shown = report.ranks if verbose else _telling_ranks(report)
    for rank in shown:
        share = rank.gemm.fp8_share_of_time
        table.add_row(
            "-" if rank.rank is None else str(rank.rank),
            rank.verdict.value,
            "-" if share is None else _percent(share),
            f"{sum(rank.gemm.time_us.values()) / 1000:.2f}",
            clean(rank.source),
        )
    hidden = len(report.ranks) - len(shown)
    rest = [Text(f"… and {hidden} more ranks like the run's verdict")] if hidden else []
    return Padding(Group(table, *rest), (1, 0, 0, 0))


def _telling_ranks(report: Report) -> list[RankReport]:
    """The ranks whose verdict differs from the run's first, then the others."""
    return sorted(report.ranks, key=lambda rank: rank.verdict is report.verdict)[:_RANKS]


def _step_table(rank: RankReport) -> RenderableType:
    table = _table("step", "CPU ms", "FP8 share", "GEMM ms")
    for step in rank.steps:
        share = step.gemm.fp8_share_of_time
        table.add_row(
            str(step.step),
            f"{step.duration_us / 1000:.2f}",
            "-" if share is None else _percent(share),
            f"{sum(step.gemm.time_us.values()) / 1000:.2f}",
        )
    return Padding(table, (1, 0, 0, 0))


def _sources(report: Report, verbose: bool) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for claim in report.claims if verbose else report.claims[:_CLAIMS]:
        grid.add_row("log", Text(_claim(claim)))
    for rank in report.ranks if verbose else report.ranks[:1]:
        if rank.modules is not None:
            counts = ", ".join(f"{n} {state}" for state, n in rank.modules.counts.items())
            grid.add_row("modules", f"{counts or 'none'} (linear layers)")
    if report.recipe.time_us:
        grid.add_row("scaling", f"{', '.join(report.recipe.time_us)} (as the FP8 kernels show)")
    for note in report.notes:
        grid.add_row("note", Text(clean(note)))
    if grid.row_count:
        yield Padding(grid, (1, 0, 0, 0))


def _claim(claim: Claim) -> str:
    return f"line {claim.line} ({claim.framework}): {clean(claim.text)}"


def _findings(findings: Iterable[Finding]) -> Iterator[RenderableType]:
    for finding in findings:
        style = _SEVERITY_STYLES[finding.severity]
        head = Text.assemble(
            (finding.severity.value, style), f" [{finding.code}] ", clean(finding.message)
        )
        hint = [Padding(Text(clean(finding.hint), style="dim"), (0, 0, 0, 4))]
        yield Padding(Group(head, *(hint if finding.hint else [])), (1, 0, 0, 0))


_TEXT_COLUMNS = ("precision", "leg", "op", "verdict", "source", "longest GEMM kernels")


def _table(*names: str) -> Table:
    """A plain table: figures to the right, words to the left; a last column of words is cut."""
    cut = names[-1] in _TEXT_COLUMNS
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=cut)
    for place, name in enumerate(names):
        words = name in _TEXT_COLUMNS or (place == 0 and name != "ms")
        table.add_column(
            name,
            justify="left" if words else "right",
            no_wrap=True,
            ratio=1 if cut and place == len(names) - 1 else None,
        )
    return table


def _percent(share: float) -> str:
    return f"{share:.1%}"


def clean(text: str) -> str:
    """Replace what could steer a terminal: names and logs come from outside."""
    return "".join(char if char.isprintable() else "�" for char in text)

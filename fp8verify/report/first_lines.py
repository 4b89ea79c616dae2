"""What a person needs in five seconds: the verdict, why, whether FP8 pays, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from fp8verify.report.clock import counted_by, steps_shown
from fp8verify.report.escape import printable
from fp8verify.report.model import Finding, Report, Severity, Verdict, low_precision_name
from fp8verify.report.naming import run_name
from fp8verify.report.tables import gravest_first, percent, told_findings
from fp8verify.report.worth import told_worth, worth

VERDICT_STYLES = {
    Verdict.ACTIVE: "bold green",
    Verdict.PARTIAL: "bold yellow",
    Verdict.INCONCLUSIVE: "bold yellow",
}
OTHER_STYLE = "bold red"
SEVERITY_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_WORTH_STYLES = {"likely yes": "green", "likely not": "yellow"}
# What to do where nothing is wrong.
_NOTHING = {
    Verdict.ACTIVE: "nothing: no error and no warning",
    Verdict.INACTIVE: "nothing if this run was meant to be without FP8: nothing promised it",
}
_LABEL_WIDTH = 9
_RAN = (Verdict.ACTIVE, Verdict.PARTIAL)


def head(report: Report) -> Text:
    """Return the first line: the run, the GPU, the ranks and the steps."""
    parts = [f"fp8verify {report.fp8verify_version}", run_name(report)]
    if report.environment.gpu:
        parts.append(report.environment.gpu)
    if len(report.ranks) > 1:
        parts.append(f"{len(report.ranks)} ranks")
    if shown := steps_shown(report):
        parts.append(shown + counted_by(report))
    return Text(printable(" · ".join(dict.fromkeys(parts))), style="dim")


def verdict_line(report: Report) -> Text:
    """Return the verdict and its reason."""
    style = VERDICT_STYLES.get(report.verdict, OTHER_STYLE)
    return Text.assemble((report.verdict.value, style), "  ", printable(report.reason), ".")


def first_lines(report: Report, findings: Sequence[Finding]) -> Table:
    """Lay out whether FP8 pays, each error and warning, and what to do about it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL_WIDTH - 1, no_wrap=True)
    grid.add_column()
    for label, style, line in (*_pays(report), *_wrongs(report, findings)):
        grid.add_row(Text(label, style=style), Text(printable(line)))
    return grid


def _pays(report: Report) -> Iterator[tuple[str, str, str]]:
    found = worth(report)
    if found is not None:
        yield "pays", _WORTH_STYLES.get(found.word, ""), told_worth(report, found)


def _wrongs(report: Report, findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    grave = [one for one in gravest_first(findings) if one.severity is not Severity.INFO]
    hints: set[str] = set()
    for finding in grave:
        style = SEVERITY_STYLES[finding.severity]
        yield finding.severity.value, style, f"[{finding.code}] {finding.message}"
        if finding.hint not in {*hints, ""}:
            yield "to do", "bold", finding.hint
        hints.add(finding.hint)
    if not grave and report.verdict in _NOTHING:
        yield "to do", "bold", _NOTHING[report.verdict]


def brief(report: Report, whole: str) -> str:
    """Return at most four lines: the verdict, the share, whether FP8 pays, where the rest is.

    Args:
        report: the finished report.
        whole: the file of the whole report, or the command that prints it; empty if none can.
    """
    lines = [f"{report.verdict.value}  {report.reason}.{_but(report)}"]
    if (share := report.gemm.low_precision_share_of_time) is not None:
        name = low_precision_name(report.gemm.kernels)
        lines.append(f"share    {percent(share)} of GEMM time in {name}{_steps(report)}")
    found = worth(report)
    if found is not None:
        lines.append(f"pays     {told_worth(report, found, short=True)}")
    if whole:
        lines.append(f"report   {whole}")
    return "".join(f"{printable(line)}\n" for line in lines)


def _but(report: Report) -> str:
    """Return what makes a run fail in which FP8 GEMMs ran: its verdict alone does not tell."""
    if report.verdict not in _RAN:
        return ""
    found = gravest_first(told_findings(report))
    wrong = (one for one in found if one.severity is Severity.ERROR)
    first = next(wrong, None)
    return f" It fails: [{first.code}] {first.message}." if first is not None else ""


def _steps(report: Report) -> str:
    steps = steps_shown(report)
    return f", {steps} of {run_name(report)}" if steps else f", {run_name(report)}"

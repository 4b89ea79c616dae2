"""The report as GitHub-flavoured Markdown: for job summaries, pull requests and notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fp8verify.report.clock import clock_lines
from fp8verify.report.escape import code, markdown, shorten
from fp8verify.report.log_words import said
from fp8verify.report.model import Claim, Finding, KernelRow, RankReport, Report, Verdict, fp8_share
from fp8verify.report.naming import run_name
from fp8verify.report.tables import (
    gemm_kernels,
    gravest_first,
    millis,
    percent,
    precision_rows,
    rank_label,
    software,
    told_findings,
)
from fp8verify.report.worth import told_worth, worth

_KERNELS = 10
_RANKS = 64
_CLAIMS = 4
_NAME_WIDTH = 160
_SIGNS = {Verdict.ACTIVE: "✅", Verdict.PARTIAL: "⚠️", Verdict.INCONCLUSIVE: "❔"}


def to_markdown(report: Report) -> str:
    """Render the report; names and log lines are escaped, so that they stay text."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: Report) -> Iterator[str]:
    yield f"## {_SIGNS.get(report.verdict, '❌')} FP8 {report.verdict.value}"
    yield f"{markdown(report.reason)}."
    paid = worth(report)
    if paid is not None:
        yield f"**Does it pay?** {markdown(told_worth(report, paid))}."
    if report.findings:
        yield "\n".join(map(_finding, gravest_first(told_findings(report))))
    if any(report.gemm.kernels.values()):
        yield from _gemms(report)
    if len(report.ranks) > 1:
        yield _rank_table(report.ranks)
    if report.claims:
        yield "\n".join(map(_claim, report.claims[:_CLAIMS]))
    yield _foot(report)


def _finding(finding: Finding) -> str:
    head = f"- **{finding.severity.value}** {code(finding.code)}: {markdown(finding.message)}"
    return f"{head}  \n  {markdown(finding.hint)}" if finding.hint else head


def _gemms(report: Report) -> Iterator[str]:
    yield _table(
        ("GEMM time", "kernels", "ms", "share", "TFLOP/s"),
        (
            (
                row.precision,
                str(row.kernels),
                millis(row.time_us),
                percent(row.share),
                "-" if row.tflops is None else f"{row.tflops:.0f}",
            )
            for row in precision_rows(report.gemm)
        ),
    )
    if len(report.legs) > 1:
        yield _table(
            ("leg", "ms", "FP8 share"),
            (
                (leg.leg.value, millis(sum(leg.time_us.values())), percent(fp8_share(leg.time_us)))
                for leg in report.legs
            ),
        )
    yield "<details><summary>Longest GEMM kernels</summary>\n\n" + _kernel_table(report)


def _kernel_table(report: Report) -> str:
    table = _table(
        ("kernel", "precision", "leg", "ms"),
        (
            (code(shorten(row.name, _NAME_WIDTH)), *_terms(row), millis(us))
            for row in gemm_kernels(report)[:_KERNELS]
            for us in (row.time_us,)
        ),
        words=3,
    )
    return f"{table}\n\n</details>"


def _terms(row: KernelRow) -> tuple[str, str]:
    return row.precision.value, row.leg.value if row.leg else "-"


def _rank_table(ranks: tuple[RankReport, ...]) -> str:
    table = _table(
        ("rank", "verdict", "FP8 share", "GEMM ms"),
        (
            (
                markdown(rank_label(rank)),
                rank.verdict.value,
                percent(rank.gemm.fp8_share_of_time),
                millis(sum(rank.gemm.time_us.values())),
            )
            for rank in ranks[:_RANKS]
        ),
        words=2,
    )
    hidden = len(ranks) - _RANKS
    return f"{table}\n\n… and {hidden} more ranks" if hidden > 0 else table


def _claim(claim: Claim) -> str:
    return f"- {markdown(claim.source)}, {markdown(said(claim))}"


def _foot(report: Report) -> str:
    head = (run_name(report), f"fp8verify {report.fp8verify_version}")
    parts = [*head, *filter(None, [report.environment.gpu])]
    parts += [line for _, line in clock_lines(report)[:1]]
    parts += filter(None, [software(report)])
    return f"<sub>{' · '.join(map(markdown, parts))}</sub>"


def _table(names: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, words: int = 1) -> str:
    """Return a table whose first `words` columns hold words and are set to the left."""
    rule = ["---"] * words + ["---:"] * (len(names) - words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rule, *rows))

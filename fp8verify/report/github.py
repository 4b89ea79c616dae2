"""The report as GitHub Actions annotations: one workflow command a line.

Source: "Workflow commands for GitHub Actions", docs.github.com; actions/runner 2.x escapes data
and properties as `annotation` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fp8verify.report.escape import printable
from fp8verify.report.model import Finding, Report, Severity, Verdict
from fp8verify.report.naming import run_name
from fp8verify.report.tables import told_findings
from fp8verify.report.worth import told_worth, worth

# GitHub shows ten annotations of each kind for a step; one is the verdict's.
_SHOWN = 9
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def to_github(report: Report) -> str:
    """Render the verdict and the findings as annotations."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield annotation(_level(report), f"FP8 {report.verdict.value}", _verdict(report))
    by_severity: dict[Severity, list[Finding]] = defaultdict(list)
    for finding in told_findings(report):
        by_severity[finding.severity].append(finding)
    for severity, level in _LEVELS.items():
        found = by_severity[severity]
        for finding in found[:_SHOWN]:
            yield annotation(level, f"FP8 {finding.code}", _text(finding))
        if len(found) > _SHOWN:
            yield f"{len(found) - _SHOWN} more findings of severity {severity.value}"


def _verdict(report: Report) -> str:
    paid = worth(report)
    gain = f"\nDoes it pay? {told_worth(report, paid, short=True)}." if paid else ""
    return f"{report.reason} ({run_name(report)}).{gain}"


def _text(finding: Finding) -> str:
    return f"{finding.message}\n{finding.hint}" if finding.hint else finding.message


def _level(report: Report) -> str:
    """An error is what fails, also with --exit-zero; another verdict may still deserve a look."""
    if report.fails:
        return "error"
    return "notice" if report.verdict is Verdict.ACTIVE else "warning"


def annotation(level: str, title: str, message: str) -> str:
    """Return one workflow command: error, warning or notice."""
    level = "notice" if level == "info" else level
    name = _escape(printable(title)).replace(":", "%3A").replace(",", "%2C")
    lines = "\n".join(map(printable, message.split("\n")))
    return f"::{level} title={name}::{_escape(lines)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

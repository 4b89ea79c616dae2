"""The report as SARIF, which code scanning and editors show: the verdict and each finding.

Source: SARIF 2.1.0 (OASIS Standard, 2020-03-27); GitHub asks for a location of every result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from fp8verify.report.escape import printable
from fp8verify.report.model import Finding, RankReport, Report, Severity, Verdict
from fp8verify.report.tables import gravest_first
from fp8verify.text import told

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_VERDICT = "verdict"


def to_sarif(report: Report) -> str:
    """Render the report; what fails is an error in it, also with --exit-zero."""
    findings = gravest_first(report.findings)
    run = {
        "tool": {"driver": _driver(report, findings)},
        "automationDetails": {"id": f"fp8verify/{printable(report.name)}"},
        "results": [_verdict(report), *(_result(found, report) for found in findings)],
        "properties": {"name": printable(report.name), "verdict": report.verdict.value},
    }
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _driver(report: Report, findings: Iterable[Finding]) -> dict[str, Any]:
    verdict = {"id": _VERDICT, "shortDescription": {"text": "Whether the training ran in FP8"}}
    hints = {found.code: found.hint for found in reversed(list(findings))}
    return {
        "name": "fp8verify",
        "version": report.fp8verify_version,
        "rules": [verdict, *(_rule(code, hint) for code, hint in sorted(hints.items()))],
    }


def _rule(code: str, hint: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": code, "shortDescription": {"text": code.replace("-", " ")}}
    return {**rule, "help": {"text": printable(hint)}} if hint else rule


def _verdict(report: Report) -> dict[str, Any]:
    text = f"FP8 {report.verdict.value}: {printable(report.reason)}."
    found = {"ruleId": _VERDICT, "message": {"text": text}, "locations": _places(report.ranks)}
    if report.fails:
        return {**found, "level": "error"}
    if report.verdict is Verdict.ACTIVE:
        return {**found, "kind": "pass", "level": "none"}
    return {**found, "level": "warning"}


def _result(finding: Finding, report: Report) -> dict[str, Any]:
    message = printable(told(finding, alone=len(report.ranks) == 1))
    hint = f"\n{printable(finding.hint)}" if finding.hint else ""
    about = [rank for rank in report.ranks if rank.rank in finding.ranks]
    return {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{message}{hint}"},
        "locations": _places(about or report.ranks),
    }


def _places(ranks: Iterable[RankReport]) -> list[dict[str, Any]]:
    """Return the first trace of the first rank: results that are one have one place."""
    return [_place(source) for source in _sources(ranks)][:1]


def _sources(ranks: Iterable[RankReport]) -> Iterator[str]:
    return (rank.source.partition(", ")[0] for rank in ranks)


def _place(source: str) -> dict[str, Any]:
    uri = {"uri": quote(printable(source))}
    return {"physicalLocation": {"artifactLocation": uri, "region": {"startLine": 1}}}

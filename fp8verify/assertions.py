"""Assertions on a report, for tests and for scripts that gate a training."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.model import Report, Severity, Verdict

# Findings that keep a run with FP8 GEMMs from being ACTIVE, whatever share is asked for.
_SHORTFALLS = ("rank-without-fp8", "step-without-fp8", "leg-not-fp8", "all-gather-not-fp8")


def assert_fp8_active(report: Report, *, min_share: float = 0.5) -> None:
    """Assert that FP8 GEMMs ran on every rank and step and took `min_share` of GEMM time.

    Args:
        report: what `fp8verify.inspect` returned.
        min_share: the FP8 share of GEMM time, from 0 to 1, that every rank must reach.

    Raises:
        AssertionError: with the reason, the share and the findings.
    """
    __tracebackhide__ = True
    share = lowest_share(report)
    if not _ran_throughout(report) or share is None or share < min_share:
        raise AssertionError("\n".join(_message(report, share, min_share)))


def lowest_share(report: Report) -> float | None:
    """Return the smallest FP8 share of GEMM time among the ranks, None where no GEMM ran."""
    shares = [rank.gemm.fp8_share_of_time for rank in report.ranks]
    known = [share for share in shares if share is not None]
    return min(known) if known and len(known) == len(shares) else None


def _ran_throughout(report: Report) -> bool:
    """ACTIVE, or PARTIAL for no other reason than the share that the report was asked for."""
    if report.verdict is Verdict.PARTIAL:
        return not any(
            finding.code in _SHORTFALLS and finding.severity is not Severity.INFO
            for finding in report.findings
        )
    return report.verdict is Verdict.ACTIVE


def _message(report: Report, share: float | None, min_share: float) -> Iterator[str]:
    yield f"FP8 is {report.verdict.value}: {report.reason}"
    found = "no GEMM ran" if share is None else f"{share:.1%} of GEMM time ran in FP8"
    yield f"share: {found}, {min_share:.1%} asked for"
    for finding in report.findings:
        yield f"{finding.severity.value} [{finding.code}] {finding.message}"
        yield f"    {finding.hint}"

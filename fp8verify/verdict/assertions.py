"""Assertions on a report, for tests and for scripts that gate a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fp8verify.report.model.parts import KernelRow
from fp8verify.report.model.report import Report
from fp8verify.report.tables import format_finding, lowest_share
from fp8verify.terms import Leg, Precision, Verdict
from fp8verify.verdict.judge import judge
from fp8verify.verdict.policy import USUAL_SHARE, Policy

if TYPE_CHECKING:
    from fp8verify.verdict.gates import Baseline

_ROWS = 5


def assert_fp8_active(report: Report, *, min_share: float | str = USUAL_SHARE) -> None:
    """Assert that FP8 GEMMs ran on every rank and step and took `min_share` of GEMM time.

    Args:
        report: what `fp8verify.inspect` returned.
        min_share: the FP8 share of GEMM time, 0.8 or "80%", that every rank must reach.

    Raises:
        AssertionError: with the reason, the share and the findings.
        ValueError: `min_share` is not a share.
    """
    __tracebackhide__ = True
    policy = Policy(min_share=min_share)
    found = judge(report, policy)
    if found.verdict is not Verdict.ACTIVE:
        raise AssertionError("\n".join(_message(found, policy.share)))


def assert_gemm_precision(
    report: Report,
    precision: str | Iterable[str] = "fp8",
    *,
    leg: str | None = None,
    op: str | None = None,
) -> None:
    """Assert that every GEMM of a leg or of an operator ran in the given precision.

    Args:
        report: what `fp8verify.inspect` returned.
        precision: one class of `fp8verify.terms.Precision`, or several that are all right.
        leg: only these GEMMs: fprop, dgrad, wgrad or recompute.
        op: only those of this operator, such as "aten::_grouped_mm".

    Raises:
        AssertionError: with the longest kernels that ran otherwise; or no such GEMM ran.
        ValueError: no such precision class, or no such leg; the message lists them.
    """
    __tracebackhide__ = True
    names = [precision] if isinstance(precision, str) else list(precision)
    _check_words("precision", names, Precision)
    _check_words("leg", [leg] if leg is not None else [], Leg)
    wanted = set(map(Precision, names))
    what = " ".join(filter(None, [leg, "GEMM", op and f"of {op}"]))
    gemms = [row for rank in report.ranks for row in rank.kernels if row.role.is_gemm]
    rows = [row for row in gemms if leg in (None, row.leg) and op in (None, row.op)]
    if not rows:
        raise AssertionError(f"no {what} ran: {report.reason}")
    others = [row for row in rows if row.precision not in wanted]
    if others:
        share = sum(row.time_us for row in others) / (sum(row.time_us for row in rows) or 1)
        head = f"{share:.1%} of {what} time ran in something other than {' or '.join(names)}:"
        longest = sorted(others, key=lambda row: -row.time_us)[:_ROWS]
        raise AssertionError("\n".join([head, *map(_line, longest)]))


def assert_no_regression(
    report: Report, baseline: str | Path | Baseline, *, tolerance: float = 0.02
) -> None:
    """Assert that FP8 share, legs and layers are no worse than in a baseline.

    Args:
        report: what `fp8verify.inspect` returned.
        baseline: a file of `fp8verify inspect --save-baseline`, or what `read_baseline` made of it.
        tolerance: how far a share may fall, in points: 0.02 allows 93% where 95% was.

    Raises:
        AssertionError: with each difference, or why the two cannot be compared.
        InputError: the file is no baseline.
    """
    __tracebackhide__ = True
    from fp8verify.verdict.gates import read_baseline, regressions

    known = read_baseline(Path(baseline)) if isinstance(baseline, (str, Path)) else baseline
    found = list(regressions(report, known, tolerance))
    if found:
        raise AssertionError("\n".join(finding.message for finding in found))


def _check_words(what: str, words: Iterable[str], kind: type[Precision | Leg]) -> None:
    known = [one.value for one in kind]
    for word in words:
        if word not in known:
            raise ValueError(f"unknown {what} {word!r}: one of {', '.join(known)}")


def _message(report: Report, min_share: float) -> Iterator[str]:
    share, alone = lowest_share(report), len(report.ranks) == 1
    yield f"FP8 is {report.verdict.value}: {report.reason}"
    found = "no GEMM ran" if share is None else f"{share:.1%} of GEMM time ran in FP8"
    yield f"share: {found}, {min_share:.1%} required"
    for finding in report.findings:
        yield f"{finding.severity.value} [{finding.code}] {format_finding(finding, alone=alone)}"
        yield f"    {finding.hint}"


def _line(row: KernelRow) -> str:
    where = f"{row.leg.value if row.leg else '-'} {row.op or 'no operator'}"
    return f"    {row.time_us / 1000:.2f} ms in {row.precision.value}, {where}: {row.name[:100]}"

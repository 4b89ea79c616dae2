"""The gate of --require-format: a finished report held against a number format."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fp8verify.report.model import Finding, RankReport, Report, Scaling
from fp8verify.text import label_of_rank, listed
from fp8verify.verdict.findings_table import finding


def hold_format(report: Report, name: str, min_share: float, *, gate: bool = True) -> Report:
    """Add a finding where a rank's GEMMs did not run in a format; then the exit code is 1.

    Args:
        report: the run to judge; its verdict stays.
        name: one of `fp8verify.verdict.policy.FORMATS`.
        min_share: of each rank's GEMM time that has to be in it.
        gate: whether the exit code is to change.
    """
    found = tuple(_unmet(report, name, min_share))
    return replace(
        report,
        findings=(*found, *report.findings),
        exit_code=report.exit_code or int(bool(found) and gate),
        fails=report.fails or bool(found),
    )


def _unmet(report: Report, name: str, min_share: float) -> Iterator[Finding]:
    short = [(rank, share) for rank in report.ranks if (share := _share(rank, name)) < min_share]
    if short:
        took = [f"{share:.1%} on {label_of_rank(of.rank, of.source)}" for of, share in short]
        yield finding(
            "required-format",
            format=name,
            share=min_share,
            took=listed(took),
            ranks=[rank.rank for rank, _ in short if rank.rank is not None],
        )


def _share(rank: RankReport, name: str) -> float:
    """Return the share of the time of layers' GEMMs; block scales are told by the kernels."""
    apart = (rank.attention_gemm.time_us, rank.untrained_gemm.time_us)
    total = sum(rank.gemm.time_us.values()) - sum(sum(part.values()) for part in apart)
    if name == "fp8_block":
        part = rank.recipe.time_us.get(Scaling.BLOCKWISE.value, 0.0)
    else:
        part = rank.gemm.time_us[name] - sum(times[name] for times in apart)
    return part / total if total else 0.0

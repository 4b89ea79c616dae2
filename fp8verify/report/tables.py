"""The figures of a report in the order in which every form shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from fp8verify.report.model import (
    Finding,
    GemmSummary,
    KernelRow,
    RankReport,
    Report,
    Severity,
    low_precision_share,
)
from fp8verify.text import format_finding, label_of_rank


class PrecisionRow(NamedTuple):
    """GEMM time in µs of one precision class; `tflops` is None unless shapes cover all of it."""

    precision: str
    kernels: int
    time_us: float
    share: float
    tflops: float | None


def precision_rows(of: Report | RankReport) -> list[PrecisionRow]:
    """Return the precision classes of the GEMMs of linear layers, the most time first.

    Products of attention and the optimizer's GEMMs are `other_gemms`.
    """
    apart = (of.attention_gemm, of.untrained_gemm)
    flops = of.gemm.flops if of.gemm.flops_coverage >= 1 else None
    layers = replace(
        of.gemm,
        time_us=layer_times(of),
        kernels=_less(of.gemm.kernels, *(gemm.kernels for gemm in apart)),
        flops=flops and _less(flops, *(gemm.flops or {} for gemm in apart)),
    )
    return _rows(layers, sum(layers.time_us.values()))


def other_gemms(of: Report | RankReport) -> list[tuple[str, PrecisionRow]]:
    """Return the GEMMs that the verdict is not about, by what they are for."""
    return [
        (what, row)
        for what, gemm in (
            ("attention", of.attention_gemm),
            ("forward only", of.untrained_gemm),
            ("optimizer", of.optimizer_gemm),
        )
        for row in _rows(gemm, 0.0)
    ]


def layer_times(of: Report | RankReport) -> dict[str, float]:
    """Return the µs of the GEMMs of linear layers, by precision class."""
    return _less(of.gemm.time_us, of.attention_gemm.time_us, of.untrained_gemm.time_us)


def layer_share(of: Report | RankReport) -> float | None:
    """Return the share of layers' GEMM time in FP8 or FP4, as verdicts count; None without any."""
    return low_precision_share(layer_times(of))


_Number = TypeVar("_Number", int, float)


def _less(whole: Mapping[str, _Number], *parts: Mapping[str, _Number]) -> dict[str, _Number]:
    return {name: value - sum(part.get(name, 0) for part in parts) for name, value in whole.items()}


def _rows(gemm: GemmSummary, total: float) -> list[PrecisionRow]:
    rows = [
        PrecisionRow(name, count, us, us / total if total else 0.0, _tflops(gemm, name))
        for name, us in gemm.time_us.items()
        if (count := gemm.kernels.get(name, 0))
    ]
    return sorted(rows, key=lambda row: -row.time_us)


def _tflops(gemm: GemmSummary, name: str) -> float | None:
    if gemm.flops is None or gemm.flops_coverage < 1 or not gemm.time_us[name]:
        return None
    return gemm.flops.get(name, 0.0) / gemm.time_us[name] / 1e6


def merge_kernels(report: Report) -> list[KernelRow]:
    """Return the kernels of all ranks by time, those alike in name, operator and leg added up."""
    merged: dict[tuple[str, str, str | None, str | None], KernelRow] = {}
    for row in (row for rank in report.ranks for row in rank.kernels):
        key = (row.name, row.precision, row.leg, row.op)
        known = merged.get(key)
        merged[key] = row if known is None else _added(known, row)
    return sorted(merged.values(), key=lambda row: -row.time_us)


def _added(first: KernelRow, second: KernelRow) -> KernelRow:
    """Add launches of perhaps other shapes: rates are weighted by time, which is exact."""
    return replace(
        first,
        time_us=first.time_us + second.time_us,
        kernels=first.kernels + second.kernels,
        dims=first.dims if first.dims == second.dims else None,
        shape=first.shape if first.shape == second.shape else None,
        tflops=_weighted(first, second, first.tflops, second.tflops),
        percent_of_peak=_weighted(first, second, first.percent_of_peak, second.percent_of_peak),
    )


def _weighted(
    first: KernelRow, second: KernelRow, rate: float | None, other: float | None
) -> float | None:
    """Average two rates over the times of their rows; None unless both are known."""
    time_us = first.time_us + second.time_us
    if rate is None or other is None or not time_us:
        return None
    return round((rate * first.time_us + other * second.time_us) / time_us, 1)


def gemm_kernels(report: Report) -> list[KernelRow]:
    """Return the GEMM kernels of `merge_kernels`."""
    return [row for row in merge_kernels(report) if row.role.is_gemm]


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by severity, in their order otherwise."""
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def shown_findings(report: Report) -> list[Finding]:
    """Return the findings with messages that say which ranks they are about."""
    alone = len(report.ranks) == 1
    return [replace(found, message=format_finding(found, alone=alone)) for found in report.findings]


def rank_label(rank: RankReport) -> str:
    """How a rank is called: by its number, else by its file."""
    return label_of_rank(rank.rank, rank.source)


def percent(share: float | None) -> str:
    """Return a share as "93.1%", or "-" for None."""
    return "-" if share is None else f"{share:.1%}"


def millis(time_us: float) -> str:
    """Return microseconds as milliseconds with two decimals."""
    return f"{time_us / 1000:.2f}"


def software(report: Report) -> str:
    """Return the recorded versions, as "torch 2.11.0, torchao 0.17.0"; nothing where none are."""
    return ", ".join(f"{name} {known}" for name, known in report.environment.versions.items())

"""Lay out when the GPU did what: steps, and buckets for a picture."""

from __future__ import annotations

from fp8verify.analysis.assembly.gemms import gemm_summary
from fp8verify.analysis.assembly.units import micros
from fp8verify.analysis.buckets import Buckets
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model import StepReport, TimelineReport


def step_reports(rank: RankEvidence) -> tuple[StepReport, ...]:
    """Lay out the steps of a rank."""
    training = {row.step for row in rank.survey.linear}
    return tuple(
        StepReport(
            step=step.number,
            duration_us=micros(step.end_ns - step.start_ns),
            gpu_us=None if gpu_ns is None else micros(gpu_ns),
            gemm=gemm_summary(gemm),
            trains=place in training,
        )
        for place, ((step, gemm), gpu_ns) in enumerate(
            zip(rank.steps, rank.timeline.steps, strict=True)
        )
    )


def timeline_report(buckets: Buckets) -> TimelineReport:
    """Lay out the buckets of one trace."""
    return TimelineReport(
        bucket_us=buckets.width / 1000,
        fp8_us=_tenths(buckets.fp8),
        other_precision_us=_tenths(buckets.other_precision),
        unknown_precision_us=_tenths(buckets.unknown_precision),
        rest_us=_tenths(buckets.rest),
        steps=tuple((step, begin / 1000, end / 1000) for step, begin, end in buckets.steps),
        names=buckets.names,
        longest=tuple(
            tuple((place, round(ns / 1000, 1)) for place, ns in row) for row in buckets.longest
        ),
    )


def _tenths(times: tuple[int, ...]) -> tuple[float, ...]:
    """Return ns as µs with the one decimal that a picture needs."""
    return tuple(round(ns / 1000, 1) for ns in times)

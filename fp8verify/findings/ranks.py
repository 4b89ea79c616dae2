"""Findings that show only when all ranks are looked at together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.evidence.promises import Promises
from fp8verify.evidence.rank import RankEvidence
from fp8verify.model import Finding, Severity


def run_findings(ranks: Sequence[RankEvidence], promises: Promises) -> list[Finding]:
    """Return what shows only when all ranks are looked at together."""
    return [*_ranks_without_fp8(ranks), *_ranks_not_observed(ranks), *_excluded(promises, ranks)]


def _ranks_without_fp8(ranks: Sequence[RankEvidence]) -> Iterator[Finding]:
    if not any(rank.ran_fp8 for rank in ranks):
        return
    for rank in ranks:
        if rank.survey.gemms and not rank.ran_fp8:
            yield Finding(
                code="rank-without-fp8",
                severity=Severity.ERROR,
                message=f"{rank.label} ran no FP8 GEMM, {len(ranks) - 1} other rank(s) did "
                f"({rank.main_precision().value.upper()} here)",
                hint="Compare the ranks' environment, GPU and pipeline stage: the conversion did "
                "not reach this one.",
            )


def _ranks_not_observed(ranks: Sequence[RankEvidence]) -> Iterator[Finding]:
    world = max((rank.world_size or 1 for rank in ranks), default=1)
    if world > len(ranks):
        yield Finding(
            code="ranks-not-observed",
            severity=Severity.INFO,
            message=f"{len(ranks)} of {world} ranks observed",
            hint="The verdict covers these ranks; pass the folder with every rank's trace.",
        )


def _excluded(promises: Promises, ranks: Sequence[RankEvidence]) -> Iterator[Finding]:
    """Linears left alone beside converted ones: by design more often than not, so information."""
    if not promises.converted:
        return
    left = {
        module.fqn: module.reason
        for rank in ranks
        if rank.meta
        for module in rank.meta.modules
        if module.state == "high_precision"
    }
    if left:
        names = ", ".join(list(left)[:4]) + (" …" if len(left) > 4 else "")
        yield Finding(
            code="layer-not-fp8",
            severity=Severity.INFO,
            message=f"{len(left)} linear module(s) left in high precision: {names}",
            hint="Fine for an output head, a router or small layers; else check the filter.",
        )

"""From the evidence of one rank's windows to that of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp8verify.analysis import communication, timeline
from fp8verify.analysis.gemms import GemmRow, KindTotal, Survey
from fp8verify.analysis.kinds import Kind
from fp8verify.analysis.layers_by_name import join_named
from fp8verify.analysis.rank import RankEvidence
from fp8verify.analysis.totals import gemm_totals
from fp8verify.trace import Health


def merge_windows(parts: Sequence[RankEvidence]) -> RankEvidence:
    """Join the evidence of one rank's traces, in order: windows of a run, or runs after another."""
    if len(parts) == 1:
        return parts[0]
    survey = _joined_survey(parts)
    return parts[0]._replace(
        source=", ".join(part.source for part in parts),
        health=_joined_health(parts),
        copies=_joined_copies(part.copies for part in parts),
        bounds=_joined_bounds([part.bounds for part in parts if part.bounds is not None]),
        collectives=communication.join(part.collectives for part in parts),
        timeline=timeline.join([part.timeline for part in parts]),
        buckets=tuple(one for part in parts for one in part.buckets),
        survey=survey,
        gemm=gemm_totals(survey.gemms),
        steps=tuple(step for part in parts for step in part.steps),
        named=join_named(part.named for part in parts),
        fed=sum(part.fed for part in parts),
        backward=any(part.backward for part in parts),
        updates=any(part.updates for part in parts),
        trains=any(part.trains for part in parts),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
    )


def _joined_survey(parts: Sequence[RankEvidence]) -> Survey:
    gemms: list[GemmRow] = []
    optimizer: list[GemmRow] = []
    steps = 0
    for part in parts:
        gemms += _moved(part.survey.gemms, steps)
        optimizer += _moved(part.survey.optimizer, steps)
        steps += len(part.steps)
    return Survey(gemms, _joined_totals(parts), optimizer)


def _joined_health(parts: Iterable[RankEvidence]) -> Health:
    health = Health()
    for part in parts:
        health.add(part.health)
    return health


def _joined_bounds(bounds: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    if not bounds:
        return None
    return min(begin for begin, _ in bounds), max(end for _, end in bounds)


def _moved(rows: Iterable[GemmRow], steps: int) -> list[GemmRow]:
    """Number the steps of a window after those of the windows before it."""
    return [row._replace(step=row.step + steps if row.step >= 0 else -1) for row in rows]


def _joined_copies(
    parts: Iterable[dict[str, tuple[int, int, int]]],
) -> dict[str, tuple[int, int, int]]:
    total: dict[str, tuple[int, int, int]] = {}
    for part in parts:
        for name, (count, time_ns, size) in part.items():
            known = total.get(name, (0, 0, 0))
            total[name] = (known[0] + count, known[1] + time_ns, known[2] + size)
    return total


def _joined_totals(parts: Iterable[RankEvidence]) -> list[KindTotal]:
    total: dict[Kind, KindTotal] = {}
    for found in (found for part in parts for found in part.survey.others):
        known = total.get(found.kind)
        total[found.kind] = (
            found
            if known is None
            else KindTotal(found.kind, known.calls + found.calls, known.time_ns + found.time_ns)
        )
    return list(total.values())

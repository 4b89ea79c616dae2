"""The table that decides a verdict: the GEMMs of layers that train along one coordinate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fp8verify.analysis.gemms import GemmRow, micros
from fp8verify.analysis.rank import RankEvidence
from fp8verify.report.model.parts import Finding, Proof, ProofRow
from fp8verify.terms import Precision, Role

_SHOWN = 12
# What each finding compares; of none, ranks are compared, else steps, else legs.
_COMPARES = {
    "rank-without-fp8": "rank",
    "step-without-fp8": "step",
    "pass-without-fp8": "micro-batch",
    "leg-not-fp8": "leg",
    "recompute-not-fp8": "leg",
    "layer-not-fp8": "layer",
    "higher-than-promised": "format",
}


def prove(ranks: Sequence[RankEvidence], findings: Iterable[Finding]) -> Proof | None:
    """Return the table along the coordinate of the first finding that decides, None of no GEMM."""
    coordinates = (_COMPARES.get(found.code) for found in findings if found.verdict is not None)
    coordinate = next(filter(None, coordinates), None)
    if coordinate is None:
        steps = {row.step for rank in ranks for row in rank.survey.linear}
        coordinate = "rank" if len(ranks) > 1 else "step" if len(steps) > 1 else "leg"
    rows: dict[str, list[GemmRow]] = defaultdict(list)
    for rank in ranks:
        for row in rank.survey.linear:
            rows[_value(coordinate, rank, row)].append(row)
    shown = [_row(value, found) for value, found in rows.items()]
    if not shown:
        return None
    numbers = tuple(number for rank in ranks for number in rank.numbers)
    left_out = max(0, len(shown) - _SHOWN)
    return Proof(
        coordinate=coordinate, rows=tuple(shown[:_SHOWN]), left_out=left_out, ranks=numbers
    )


def _value(coordinate: str, rank: RankEvidence, row: GemmRow) -> str:
    if coordinate == "rank":
        return rank.label
    if coordinate in ("step", "micro-batch"):
        step = f"step {rank.steps[row.step].number}" if row.step >= 0 else "no step"
        return step if coordinate == "step" else f"{step}, micro-batch {row.number + 1}"
    if coordinate == "leg":
        return row.leg.value
    if coordinate == "format":
        return row.precision.value
    if row.layer or row.kind.classification.role is Role.GROUPED_GEMM:
        return row.layer or "experts"
    return "x".join(map(str, row.layer_sizes[0])) if row.layer_sizes else "unknown size"


def _row(value: str, rows: Sequence[GemmRow]) -> ProofRow:
    low = sum(row.calls for row in rows if row.precision.is_low)
    unknown = sum(row.calls for row in rows if row.precision is Precision.UNKNOWN)
    flops = None if any(row.flops is None for row in rows) else sum(row.flops or 0 for row in rows)
    return ProofRow(
        value=value,
        low=low,
        high=sum(row.calls for row in rows) - low - unknown,
        unknown=unknown,
        time_us=micros(sum(row.time_ns for row in rows)),
        flops=None if flops is None else float(flops),
        short=low == 0 and unknown == 0,
    )

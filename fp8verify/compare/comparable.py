"""Why the steps of two runs cannot be compared."""

from __future__ import annotations

from fp8verify.compare.gemms import sizes
from fp8verify.compare.measure import Measured
from fp8verify.compare.speed import differs


def obstacle(before: Measured | None, after: Measured | None) -> str | None:
    """Say why the runs cannot be compared, or None where they can."""
    for name, side in (("baseline", before), ("candidate", after)):
        if side is None:
            return f"no GEMM ran in the {name}"
        if not side.times.median_us:
            return f"no time is known of the {name}"
    return _obstacle_of_work(before, after) if before is not None and after is not None else None


def differ(before: Measured, after: Measured) -> bool:
    """Whether two runs train different models, whose losses say nothing of each other."""
    ours, theirs = sizes(before.rank), sizes(after.rank)
    return bool(ours and theirs and not ours & theirs)


def _obstacle_of_work(before: Measured, after: Measured) -> str | None:
    """Say why the work of two runs is not the same, or not known to be."""
    if differ(before, after):
        return "the runs have no layer size in common: they train different models"
    if before.work and after.work:
        return None
    if "window" in (before.times.measured, after.times.measured):
        return "no steps were recorded, and no shapes that would tell the work of the windows"
    if differs(after.gemms / before.gemms):
        return (
            f"a step runs {before.gemms:.0f} GEMMs in the baseline and {after.gemms:.0f} in the "
            "candidate, and no shapes tell their work"
        )
    return None

"""Count the products for which their compiled code vouches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import asdict

from fp8verify.analysis.code_word import TRITONS, Words
from fp8verify.analysis.kinds import Kinds
from fp8verify.model.kernels import CompiledCodeReport
from fp8verify.terms import Precision


def code_report(kinds: Kinds, words: Words) -> CompiledCodeReport | None:
    """Count the products of Triton for which their compiled code vouches.

    Args:
        kinds: the kernels, each with what its code says.
        words: what the code says.

    Returns:
        None if no code is of any of them.
    """
    gemms = vouched = settled = disputed = 0
    launches = Counter(kinds.ids)
    for number, kind in enumerate(kinds.rows):
        count = launches[number]
        found = kind.classification
        before = kinds.without_code.get(number)
        if not kind.multiplies or found.library not in TRITONS:
            continue
        gemms += count
        if found.source == "code" and before is not None:
            vouched += count
            settled += count * (before.precision is Precision.UNKNOWN)
            disputed += count * (found.conflict is not None)
    if not words.words:
        return None
    return CompiledCodeReport(
        gemms=gemms,
        vouched=vouched,
        settled=settled,
        disputed=disputed,
        differing=sum(word.code is None for word in words.words),
    )


def joined_reports(
    reports: Sequence[CompiledCodeReport | None],
) -> CompiledCodeReport | None:
    """Add up what the code says of several windows."""
    totals = Counter[str]()
    for report in reports:
        if report is not None:
            totals.update(asdict(report))
    return CompiledCodeReport(**totals) if totals else None

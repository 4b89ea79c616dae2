"""Findings that many ranks share, told once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fp8verify.report.model import Finding, Severity

# Beyond this many ranks, a finding that they share is told once.
_TOLD_SINGLY = 2

_Kind = tuple[str, Severity, str]


def fold(found: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Join the findings of each rank to one list.

    Of findings that differ in figures alone the first stays and takes the ranks and layers of all.
    """
    alike: dict[tuple[_Kind, int], list[Finding]] = defaultdict(list)
    for findings in found:
        seen: Counter[_Kind] = Counter()
        for finding in findings:
            kind = (finding.code, finding.severity, finding.hint)
            alike[kind, seen[kind]].append(finding)
            seen[kind] += 1
    return [finding for group in alike.values() for finding in _joined(group)]


def _joined(group: Sequence[Finding]) -> Iterator[Finding]:
    if len(group) <= _TOLD_SINGLY:
        yield from group
        return
    yield replace(
        group[0],
        ranks=tuple(rank for finding in group for rank in finding.ranks),
        layers=tuple(dict.fromkeys(layer for finding in group for layer in finding.layers)),
    )

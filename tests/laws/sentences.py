"""The numbers of a report's sentences, recomputed from the entries of its ledger by a second path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fp8verify import Report
from fp8verify.model.ledger import LedgerEntry, LedgerReport

LEGS = {
    "fprop": ("fprop",), "forward": ("fprop", "recompute"), "recomputed forward": ("recompute",),
    "dgrad": ("dgrad",), "wgrad": ("wgrad",), "gradient": ("dgrad", "wgrad", "backward"),
}  # fmt: skip
_ALL = re.compile(r"(\d+) of (\d+) linear-layer (?:and expert )?GEMMs")
_EXPECTED = re.compile(r"[Aa]ll (\d+) GEMMs that should have run in FP8 did")
_SHORT = re.compile(r"(\d+) of (\d+) GEMMs that should have run in FP8 did")
_OF_LEGS = re.compile(
    r"(\d+) of (\d+) (fprop|forward|recomputed forward|dgrad|wgrad|gradient) GEMMs"
    r" (?:of [^:;]{1,200} )?ran in BF16"
)
_RANK = re.compile(r"[Rr]ank (\d+): ")
Chosen = Callable[[LedgerEntry], bool]


class Ledger:
    """Sums of the entries of a report, of all ranks or of one."""

    def __init__(self, ledger: LedgerReport, rank: int | None = None) -> None:
        self.ledger = ledger
        self.columns = {
            number
            for number, execution in enumerate(ledger.executions)
            if rank is None or execution.rank == rank
        }

    def launches(self, legs: tuple[str, ...] = ()) -> int:
        """Return how many GEMMs there are, of some legs."""
        return sum(e.launches * times for e, times in self._entries(legs))

    def low(self, legs: tuple[str, ...] = ()) -> int:
        """Return how many of them ran in FP8."""
        return sum(e.low * times for e, times in self._entries(legs))

    def expected(self) -> int:
        """Return how many GEMMs were expected in FP8."""
        return sum((e.least or 0) * times for e, times in self._entries(()))

    def lacking(self) -> int:
        """Return how many of these did not run in it."""
        return sum(
            max(0, (e.least or 0) - e.low) * times for e, times in self._entries(())
        )

    def _entries(self, legs: tuple[str, ...]) -> Iterator[tuple[LedgerEntry, int]]:
        for entry in self.ledger.entries:
            if legs and entry.leg.value not in legs:
                continue
            columns = [
                column
                for first, last in entry.executions
                for column in range(first, last + 1)
            ]
            yield entry, len(self.columns.intersection(columns))


def untrue(report: Report) -> list[str]:
    """Return the sentences whose numbers are not those of the entries."""
    if report.ledger is None or report.ledger.left_out:
        return []
    found = [*_untrue_headline(report.reason, report.ledger)]
    for finding in report.findings:
        found += _untrue_finding(finding.message, report.ledger)
    return found


def _untrue_headline(text: str, ledger: LedgerReport) -> Iterator[str]:
    rank = _RANK.match(text)
    sums = Ledger(ledger, int(rank[1]) if rank else None)
    for pattern, wanted in (
        (_ALL, (sums.low(), sums.launches())),
        (_EXPECTED, (sums.expected(),)),
        (_SHORT, (sums.expected() - sums.lacking(), sums.expected())),
    ):
        said = pattern.search(text)
        if said is not None and tuple(map(int, said.groups())) != wanted:
            yield f"{said[0]!r}, by the entries {wanted}"
    if _EXPECTED.search(text) and sums.lacking():
        yield f"{text[:60]!r}, and {sums.lacking()} lack it"


def _untrue_finding(text: str, ledger: LedgerReport) -> Iterator[str]:
    """Say where a finding names more GEMMs of some legs than there are."""
    sums = Ledger(ledger)
    for said in _OF_LEGS.finditer(text):
        legs = LEGS[said[3]]
        launches, high = sums.launches(legs), sums.launches(legs) - sums.low(legs)
        if int(said[1]) > high or int(said[2]) > launches:
            yield f"{said[0]!r}, by the entries at most {high} of {launches}"

"""Keep one copy of each kernel name, operator and classification that several ranks have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp8verify.analysis.gemms import Kind
    from fp8verify.analysis.rank import RankEvidence


class SharedKinds:
    """The kinds of kernels of all ranks; each is kept once, however many ranks ran it."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, Kind] = {}

    def share(self, evidence: RankEvidence) -> RankEvidence:
        """Return equal evidence that refers to the kinds already kept."""
        keep = self._kinds.setdefault
        found = evidence.survey
        return evidence._replace(
            survey=found._replace(
                gemms=[row._replace(kind=keep(row.kind, row.kind)) for row in found.gemms],
                others=[row._replace(kind=keep(row.kind, row.kind)) for row in found.others],
                optimizer=[row._replace(kind=keep(row.kind, row.kind)) for row in found.optimizer],
            )
        )

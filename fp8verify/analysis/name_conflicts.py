"""Kernels whose names cannot be those that their operators launched, as in a trace that was edited.

A record that joins names with the wrong launches proves nothing, whatever the names say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fp8verify.report.model import Precision
from fp8verify.text import lazy_pattern

if TYPE_CHECKING:
    from fp8verify.analysis.gemms import Survey
    from fp8verify.analysis.kinds import Kind

# TorchInductor records the launch of each Triton kernel that it generates under the kernel's own
# name (torch/_inductor/runtime/triton_heuristics.py); ATen's operators launch none of these.
_GENERATED: Final = lazy_pattern(r"triton_(?:poi|red|per|tem|for|spl|split_scan)_fused_")


class NameConflicts(NamedTuple):
    """Launches whose names dispute their operators, of all that were held against each other."""

    disputed: int
    compared: int

    @property
    def share(self) -> float:
        """The share of disputed launches."""
        return self.disputed / self.compared if self.compared else 0.0


def name_conflicts(survey: Survey) -> NameConflicts:
    """Count the GEMMs of a trace, and the operators whose GEMM has the name of another kernel."""
    gemms = [row for row in (*survey.gemms, *survey.optimizer) if row.kind.op is not None]
    lost = sum(total.calls for total in survey.others if _is_lost(total.kind))
    disputed = sum(row.calls for row in gemms if _is_disputed(row.kind))
    return NameConflicts(disputed + lost, sum(row.calls for row in gemms) + lost)


def _is_disputed(kind: Kind) -> bool:
    found = kind.classification
    return found.conflict is not None and found.precision is Precision.UNKNOWN


def _is_lost(kind: Kind) -> bool:
    """Whether an operator of ATen launched what only the code of a compiler launches."""
    op = kind.op.name if kind.op is not None else ""
    return op.startswith("aten::") and _GENERATED.match(kind.name) is not None

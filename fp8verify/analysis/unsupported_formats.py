"""Low-precision GEMMs that the GPU of a trace cannot have run as their names say.

Formats that it cannot multiply are converted before the product; kernels that were compiled for
other GPUs do not run on it at all.

Triton and hand-written kernels load FP8 on any GPU. An A100 multiplies the operands in FP16 or
BF16; an MI300 multiplies FP8 of the FNUZ encodings alone, and Triton converts the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from fp8verify.analysis.units import fp8_encoding, multiplies, runs_elsewhere
from fp8verify.report.model import OpContext, Precision
from fp8verify.text import lazy_pattern

if TYPE_CHECKING:
    from fp8verify.analysis.kinds import Kind, Kinds
    from fp8verify.trace import Trace

_OCP: Final = lazy_pattern(r"Float8_e(?:4m3fn|5m2)$")
# Libraries of AMD's that name the encoding that their instructions read.
_OWN_ENCODING: Final = frozenset({"hipBLASLt", "Composable Kernel", "aiter"})


def settle_unsupported_formats(trace: Trace, kinds: Kinds) -> None:
    """Make the precision unknown of GEMMs in formats that the GPU of a trace cannot multiply."""
    if trace.gpu is None:
        return
    lacks: dict[Precision, bool] = {}
    for number, kind in enumerate(kinds.kinds):
        found = kind.classification
        if not (found.role.is_gemm and found.precision.is_low):
            continue
        if found.precision not in lacks:
            has = multiplies(trace.gpu, trace.compute_capability, found.precision)
            lacks[found.precision] = has is False
        if lacks[found.precision] or _is_other_encoding(trace, kind):
            kinds.kinds[number] = _upcast(
                kind, f"{trace.gpu} cannot multiply it, so the operands are converted"
            )
        elif runs_elsewhere(kind.name, trace.gpu, trace.compute_capability):
            kinds.kinds[number] = _upcast(kind, f"it was not compiled for {trace.gpu}")


def _is_other_encoding(trace: Trace, kind: Kind) -> bool:
    if kind.op is None or kind.classification.library in _OWN_ENCODING:
        return False
    if fp8_encoding(trace.gpu, trace.compute_capability) != "fnuz":
        return False
    return _takes_ocp(kind.op)


def _takes_ocp(op: OpContext) -> bool:
    return any(_OCP.search(text) for text in op.types)


def _upcast(kind: Kind, why: str) -> Kind:
    found = kind.classification
    return kind._replace(
        classification=replace(
            found,
            precision=Precision.UNKNOWN,
            upcast_from=found.precision,
            reason=f"{found.reason}; {why}",
        )
    )

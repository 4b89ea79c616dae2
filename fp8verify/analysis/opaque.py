"""Kernels that no grammar knows: what their operator makes of them, and which stay opaque.

A product need not say so in its kernel's name: tilelang's `main_kernel`, CuTe DSL's, or anybody's
own. An operator that takes two FP8 matrices and gives none launched an FP8 GEMM; what else it
launched (set-up, casts) takes less time. Kernels that neither name nor operator explains are
opaque: they may be GEMMs of any precision.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from fp8verify.analysis.optimizers import in_optimizer
from fp8verify.kernels import Classification
from fp8verify.kernels.operators import find, node_of
from fp8verify.kernels.testimony import multiplies_fp8
from fp8verify.report.model import OpContext, Precision, Role

if TYPE_CHECKING:
    from fp8verify.analysis.gemms import Kind, Kinds
    from fp8verify.trace import Trace

# Beside the longest kernel of an operator, others as long are products too: tuned variants.
_AS_LONG: Final = 0.5
# Words of names that say of unknown kernels what they do, and that it is no product.
_OTHER_WORK: Final = re.compile(
    r"embedding|bucketize|bounds_check|index|scatter|gather|sort|scan|unique|histogram|permut|"
    r"dispatch|combine|all_?(?:to_?all|reduce|gather)|reduce|softmax|norm|rope|rotary|loss|"
    r"entropy|dropout|adam|adagrad|optimi[sz]er|lamb|sgd|pool|interpolat|upsampl|random|curand|"
    r"memset|memcpy|copy|fill|cast|quant|convert|transpose|elementwise|pointwise|cache|"
    r"tensorop|expand|mask|padding|^triton__\d",
    re.IGNORECASE,
)
_PRODUCT: Final = re.compile(
    r"gemm|matmul|linear|(?:^|_|b)mm(?:_|$)|main_kernel|einsum", re.IGNORECASE
)
_HASHED: Final = re.compile(r"Float8_e(?:4m3|5m2)")


def settle_opaque(trace: Trace, kinds: Kinds) -> None:
    """Make FP8 GEMMs of unknown kernels whose operators multiply FP8 matrices."""
    for members in _by_operator(kinds):
        known = [n for n in members if _is_known_gemm(kinds.kinds[n].classification)]
        unknown = [n for n in members if _is_undecided(kinds.kinds[n].classification)]
        if unknown and not known:
            for number in _longest(trace, kinds, unknown):
                kinds.kinds[number] = _as_fp8(kinds.kinds[number])


def _by_operator(kinds: Kinds) -> Iterator[list[int]]:
    """Yield the kinds of each operator that multiplies FP8 matrices."""
    groups: dict[OpContext, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds.kinds):
        if kind.op is not None and kind.op.types:
            groups[kind.op].append(number)
    return (members for op, members in groups.items() if _HASHED.search(str(op.types))
            and multiplies_fp8(op))  # fmt: skip


def _is_known_gemm(found: Classification) -> bool:
    return found.role.is_gemm and found.precision is not Precision.UNKNOWN and not found.split_k


def _is_undecided(found: Classification) -> bool:
    """Whether a kernel may be the product: a GEMM of unknown precision, or one nobody knows."""
    if found.role.is_gemm:
        unknown = found.precision is Precision.UNKNOWN and not found.split_k
        return unknown and found.conflict is None
    return _is_nameless(found)


def _is_nameless(found: Classification) -> bool:
    return found.role is Role.OTHER and found.source == "none"


def _longest(trace: Trace, kinds: Kinds, numbers: Sequence[int]) -> list[int]:
    """Return those of the kinds whose launches take about as long as the longest."""
    wanted, times = set(numbers), defaultdict[int, list[int]](list)
    for number, time_ns in zip(kinds.numbers, trace.kernels.duration_ns, strict=True):
        if number in wanted:
            times[number].append(time_ns)
    means = {number: sum(found) / len(found) for number, found in times.items()}
    longest = max(means.values(), default=0)
    return [number for number, mean in means.items() if mean >= _AS_LONG * longest]


def _as_fp8(kind: Kind) -> Kind:
    op, found = kind.op, kind.classification
    name = op.name if op is not None else ""
    types = " ".join(op.types) if op is not None else ""
    low = [text.rpartition("::")[2] for text in types.split() if _HASHED.search(text)]
    elements = ["e5m2" if "e5m2" in text else "e4m3" for text in low]
    return kind._replace(
        classification=replace(
            found,
            role=Role.GROUPED_GEMM if _is_grouped(op) else Role.GEMM,
            precision=Precision.MXFP8 if "e8m0" in types else Precision.FP8,
            source="op",
            reason=f"{found.reason}; {name} takes two FP8 matrices and gives none",
            a=elements[0],
            b=elements[1],
        )
    )


def _is_grouped(op: OpContext | None) -> bool:
    return op is not None and any(len(dims) == 3 for dims in op.dims)


def is_opaque(kind: Kind) -> bool:
    """Whether nobody recognises a kernel of the model, so that it may be a GEMM of any precision.

    An operator explains its kernels where the table has it or it is ATen's, whose products are all
    there, and where its recorded inputs hold no two matrices.
    """
    if not _is_nameless(kind.classification) or in_optimizer(kind.op):
        return False
    if _OTHER_WORK.search(kind.name[:400]) and not _PRODUCT.search(kind.name[:400]):
        return False
    return kind.op is None or not _explains(kind.op)


def _explains(op: OpContext) -> bool:
    if op.name.startswith("aten::") or find(op.name).evidence or _is_aten_node(op):
        return True
    own = op.name.rpartition("::")[2]
    if _OTHER_WORK.search(own) and not _PRODUCT.search(own):
        return True
    return _has_no_two_matrices(op)


def _is_aten_node(op: OpContext) -> bool:
    """Whether autograd's own node launched it, as `MulBackward0`: those of ATen are numbered."""
    return op.name[-1:].isdigit() and node_of(op.name) is not None


def _has_no_two_matrices(op: OpContext) -> bool:
    if not op.dims or "::" not in op.name:
        return False
    lists = any(text in ("", "TensorList", "GenericList") for text in op.types)
    return not lists and sum(len(dims) >= 2 for dims in op.dims) < 2

"""Classify kernels by their operators, if their names do not show the precision.

A GEMM's kernel name need not show that it is one: tilelang's `main_kernel`, CuTe DSL's,
hand-written ones. The recorded inputs of the operator decide:

- two FP8 matrices and nothing else: its longest kernels are FP8 GEMMs;
- no FP8 tensor, and no cast to FP8 inside: none of its kernels multiplies FP8;
- a template of Inductor that does not fuse `_scaled_mm` widens FP8 in its prologue;
- a hand-written kernel with FP8 in its name multiplies FP8 only if both matrices are FP8 or cast.

Kernels that neither name nor operator explains stay unrecognized: GEMMs of any precision.

Low-precision GEMMs that the trace's GPU cannot have run are unknown too:
formats that it cannot multiply are converted before the GEMM, and kernels that were compiled for
other GPUs do not run on it.

Triton and hand-written kernels load FP8 on any GPU. An A100 multiplies the operands in FP16 or
BF16; an MI300 multiplies only the FNUZ encodings of FP8, and Triton converts the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from fp8verify.analysis.gpus import fp8_encoding, multiplies, runs_elsewhere
from fp8verify.analysis.purpose import in_optimizer
from fp8verify.kernels import Classification
from fp8verify.kernels.operator_types import multiplies_fp8
from fp8verify.kernels.operators import UNKNOWN, find, function_of, node_of
from fp8verify.terms import OpContext, Precision, Role

if TYPE_CHECKING:
    from fp8verify.analysis.kinds import Kind, Kinds
    from fp8verify.trace import Trace


# Beside the longest kernel of an operator, others as long are products too: tuned variants.
_AS_LONG: Final = 0.5
# Words of names that say of unknown kernels what they do, and that it is no product.
OTHER_WORK: Final = re.compile(
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
# Libraries of kernels that anybody writes: their names are no grammar.
_HAND_WRITTEN: Final = ("Triton", "unknown")
_HIGH_TYPES: Final = ("BFloat16", "Half", "float")
_SAYS_LOW: Final = re.compile(r"fp8|float8|f8|fp4|mx|quant|scaled|e4m3|e5m2", re.IGNORECASE)
_HASHED: Final = re.compile(r"Float8_e(?:4m3|5m2)")


def settle_by_inputs(trace: Trace, kinds: Kinds) -> None:
    """Give kernels the precision that the recorded inputs of their operators decide."""
    for members in _by_operator(kinds):
        found = [kinds.kinds[n].classification for n in members]
        products = [one for one in found if one.role.is_gemm and not one.split_k]
        unknown = [n for n in members if _is_undecided(kinds.kinds[n].classification)]
        if unknown and all(one.precision is Precision.UNKNOWN for one in products):
            for number in _longest(trace, kinds, unknown):
                kinds.kinds[number] = _as_fp8(kinds.kinds[number])
    casts = [kind for kind in kinds.kinds if _casts(kind)]
    casting = frozenset(name for kind in casts for name in kind.around)
    without_fp8 = _functions_without_fp8(trace, casting)
    for number, kind in enumerate(kinds.kinds):
        if kind.classification.role.is_gemm and kind.classification.precision.is_low:
            if _widens(kind):
                kinds.kinds[number] = _as_high(kind, "its template widens FP8 before the product")
            elif why := _why_name_alone(kind, casting, any_cast=bool(casts)):
                kinds.kinds[number] = _changed(
                    kind, why, precision=Precision.UNKNOWN, source="none"
                )
        elif _is_undecided(kind.classification) and kind.op and kind.op.name in without_fp8:
            kinds.kinds[number] = _as_high(kind, f"{kind.op.name} takes and makes no FP8 tensor")


def _casts(kind: Kind) -> bool:
    """Whether a kernel writes FP8, by its name or by the types that its operator recorded."""
    found = kind.classification
    if found.role.is_gemm or found.role in (Role.ATTENTION, Role.COMMUNICATION):
        return False
    casts_low = found.role is Role.CAST_QUANTIZE and found.precision.is_low
    return (
        casts_low
        or found.role is Role.AMAX_REDUCE
        or (kind.op is not None and bool(_HASHED.search(str(kind.op.types))))
    )


def _functions_without_fp8(trace: Trace, casting: frozenset[str]) -> frozenset[str]:
    """Return the functions, and their nodes, without FP8 inputs and FP8 results.

    Functions in the table record the inputs of whole layers, not of their GEMMs, and compiled
    code fuses casts into kernels with other names.
    """
    types: dict[str, set[str]] = defaultdict(set)
    for op in trace.ops:
        types[function_of(op.name) or op.name].update(op.types)
    found = set()
    for name, seen in types.items():
        node = f"{name}Backward"
        floats = {text.rpartition("::")[2] for text in seen} & set(_HIGH_TYPES)
        hidden = {"TensorList", "GenericList"} & seen or _HASHED.search(str(seen))
        known = find(name) is not UNKNOWN or name.startswith(("aten::", "triton_"))
        if floats and not hidden and not known and not _SAYS_LOW.search(name):
            found |= {name, node} if casting.isdisjoint((name, node)) else set()
    return frozenset(found)


def _widens(kind: Kind) -> bool:
    op = kind.op.name if kind.op is not None else ""
    return kind.name.startswith("triton_tem_") and "scaled" not in kind.name + op


def _why_name_alone(kind: Kind, casting: frozenset[str], *, any_cast: bool) -> str | None:
    """Say why a hand-written kernel's name alone does not prove that it multiplies FP8."""
    found, op = kind.classification, kind.op
    if found.source != "name" or found.library not in _HAND_WRITTEN:
        return None
    if op is None or not any(op.types):
        return None if any_cast else "only the name says so, and nothing is cast to FP8"
    matrices = [
        bool(_HASHED.search(text))
        for text, dims in zip(op.types, op.dims, strict=False)
        if len(dims) >= 2 and (_HASHED.search(text) or text.rpartition("::")[2] in _HIGH_TYPES[:2])
    ]
    cast_inside = not casting.isdisjoint((op.name, f"{op.name}Backward"))
    if cast_inside or sum(matrices) != 1 or len(matrices) < 2:
        return None
    return "one operand is FP8 and nothing casts the other: it may be widened"


def _changed(kind: Kind, why: str, **changes: Any) -> Kind:
    """Return a kind with another classification, and why."""
    found = kind.classification
    return kind._replace(classification=replace(found, reason=f"{found.reason}; {why}", **changes))


def _as_high(kind: Kind, why: str) -> Kind:
    """Give a kernel the precision of the recorded 16-bit tensors, BF16 if there are none."""
    types = {text.rpartition("::")[2] for text in (kind.op.types if kind.op else ())}
    is_half = "Half" in types and "BFloat16" not in types
    precision = Precision.FP16 if is_half else Precision.BF16
    return _changed(kind, why, precision=precision, source="op", a=None, b=None)


def _by_operator(kinds: Kinds) -> Iterator[list[int]]:
    """Yield the kinds of each operator that multiplies FP8 matrices."""
    groups: dict[OpContext, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds.kinds):
        if kind.op is not None and kind.op.types:
            groups[kind.op].append(number)
    return (members for op, members in groups.items() if _HASHED.search(str(op.types))
            and multiplies_fp8(op))  # fmt: skip


def _is_undecided(found: Classification) -> bool:
    """Whether a kernel may be the product: a GEMM of unknown precision, or unrecognized."""
    if found.role.is_gemm:
        unknown = found.precision is Precision.UNKNOWN and not found.split_k
        return unknown and found.conflict is None
    return _is_nameless(found)


def _is_nameless(found: Classification) -> bool:
    return found.role is Role.OTHER and found.source == "none"


def _longest(trace: Trace, kinds: Kinds, numbers: Sequence[int]) -> list[int]:
    """Return the kinds whose launches take about as long as the longest."""
    wanted, times = set(numbers), defaultdict[int, list[int]](list)
    for number, time_ns in zip(kinds.numbers, trace.kernels.duration_ns, strict=True):
        if number in wanted:
            times[number].append(time_ns)
    means = {number: sum(found) / len(found) for number, found in times.items()}
    longest = max(means.values(), default=0)
    return [number for number, mean in means.items() if mean >= _AS_LONG * longest]


def _as_fp8(kind: Kind) -> Kind:
    op = kind.op or OpContext(name="")
    elements = ["e5m2" if "e5m2" in text else "e4m3" for text in op.types if _HASHED.search(text)]
    return _changed(
        kind,
        f"{op.name} takes two FP8 matrices and gives none",
        role=Role.GROUPED_GEMM if any(len(dims) == 3 for dims in op.dims) else Role.GEMM,
        precision=Precision.MXFP8 if "e8m0" in " ".join(op.types) else Precision.FP8,
        source="op",
        a=elements[0],
        b=elements[1],
    )


def is_unrecognized(kind: Kind) -> bool:
    """Whether a kernel of the model is unrecognized, so it may be a GEMM of any precision.

    An operator explains its kernels if it is in the table, unless it is a whole layer, or ATen's
    (all of ATen's GEMMs are in the table), or if its inputs contain fewer than two matrices.
    """
    if kind.classification.hidden:
        return not kind.classification.role.is_gemm
    if not _is_nameless(kind.classification) or in_optimizer(kind.op):
        return False
    if OTHER_WORK.search(kind.name[:400]) and not _PRODUCT.search(kind.name[:400]):
        return False
    return kind.op is None or not _explains(kind.op)


def _explains(op: OpContext) -> bool:
    known = find(op.name)
    if known is not UNKNOWN:
        return known.layer_inputs is None
    # ATen's nodes of autograd are numbered, as `MulBackward0`.
    is_node = op.name[-1:].isdigit() and node_of(op.name) is not None
    if op.name.startswith("aten::") or is_node:
        return True
    own = op.name.rpartition("::")[2]
    if OTHER_WORK.search(own) and not _PRODUCT.search(own):
        return True
    return _has_no_two_matrices(op)


def _has_no_two_matrices(op: OpContext) -> bool:
    if not op.dims or "::" not in op.name:
        return False
    lists = any(text in ("", "TensorList", "GenericList") for text in op.types)
    return not lists and sum(len(dims) >= 2 for dims in op.dims) < 2


_OCP: Final = re.compile(r"Float8_e(?:4m3fn|5m2)$")
# Libraries of AMD's that name the encoding that their instructions read.
_OWN_ENCODING: Final = frozenset({"hipBLASLt", "Composable Kernel", "aiter"})


def settle_unsupported_formats(trace: Trace, kinds: Kinds) -> None:
    """Make the precision unknown of GEMMs in formats that the GPU of a trace cannot multiply."""
    if trace.gpu is None:
        return
    for number, kind in enumerate(kinds.kinds):
        found = kind.classification
        if not (found.role.is_gemm and found.precision.is_low):
            continue
        has = multiplies(trace.gpu, trace.compute_capability, found.precision)
        if has is False or _is_other_encoding(trace, kind):
            why = f"{trace.gpu} cannot multiply it, so the operands are converted"
        elif runs_elsewhere(kind.name, trace.gpu, trace.compute_capability):
            why = f"it was not compiled for {trace.gpu}"
        else:
            continue
        kinds.kinds[number] = _changed(
            kind, why, precision=Precision.UNKNOWN, upcast_from=found.precision
        )


def _is_other_encoding(trace: Trace, kind: Kind) -> bool:
    if kind.op is None or kind.classification.library in _OWN_ENCODING:
        return False
    is_fnuz = fp8_encoding(trace.gpu, trace.compute_capability) == "fnuz"
    return is_fnuz and any(_OCP.search(text) for text in kind.op.types)

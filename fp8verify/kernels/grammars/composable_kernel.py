"""AMD Composable Kernel: `ck::kernel_gemm_xdl_cshuffle_v3<ck::Gridwise...<...>>` and ck_tile.

The gridwise argument lists its layouts, then the element types of A, B, the accumulator and the
output; BF16 is `unsigned short` there (ck::bhalf_t). Source: composable_kernel/include/ck.
"""

from __future__ import annotations

from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.cxx import Type, walk
from fp8verify.kernels.elements import CPP
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.terms import KernelName, Role

_LIBRARY: Final = "Composable Kernel"
_ELEMENTS: Final = {**CPP, "unsigned short": "bf16", "ushort": "bf16"}
_ROLES: Final[tuple[tuple[frozenset[str], Role], ...]] = (
    (frozenset({"fmha", "attention"}), Role.ATTENTION),
    (frozenset({"conv", "convolution"}), Role.CONV),
    (frozenset({"bwd", "weight"}), Role.CONV),
    (frozenset({"rmsnorm2d", "layernorm2d", "reduce", "softmax", "norm"}), Role.REDUCTION),
    (frozenset({"moe", "gemm"}), Role.GROUPED_GEMM),
    (frozenset({"grouped", "gemm"}), Role.GROUPED_GEMM),
    (frozenset({"gemm", "flatmm"}), Role.GEMM),
    (frozenset({"elementwise", "permute"}), Role.ELEMENTWISE),
    (frozenset({"transpose"}), Role.TRANSPOSE),
)
_ALL_NEEDED: Final = frozenset({"bwd", "moe", "grouped"})


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a kernel in the namespaces ck and ck_tile."""
    if symbol.path[:1] not in (("ck",), ("ck_tile",)):
        return None
    role = _role(symbol)
    if not role.is_gemm and role is not Role.CONV:
        reason = f"Composable Kernel function {symbol.base}"
        return describe.other(symbol.name, _LIBRARY, role, reason)
    types = _types(symbol.tree)
    if len(types) < 2:
        reason = "a Composable Kernel product whose name does not show its types"
        return describe.other(symbol.name, _LIBRARY, role, reason)
    evidence = f"template arguments of {symbol.base}"
    out = types[-1] if len(types) > 3 else None
    return describe.gemm(symbol.name, _LIBRARY, evidence, types[0], types[1], out, role=role)


def _role(symbol: Symbol) -> Role:
    names = [symbol.base]
    if symbol.base == "kentry":
        names = [argument.name for argument in symbol.tree.args]
    words = {word for name in names for word in split(name)}
    for needed, role in _ROLES:
        if needed <= words if needed & _ALL_NEEDED else needed & words:
            return role
    return Role.OTHER


def _types(tree: Type) -> list[str]:
    """Return the first run of element types among the arguments of one node: A, B, acc, ..., D."""
    for node in walk(tree):
        found = _run(node.args)
        if len(found) > 1:
            return found
    return []


def _run(arguments: tuple[Type, ...]) -> list[str]:
    found: list[str] = []
    for argument in arguments:
        element = _ELEMENTS.get(argument.name)
        if element and element != "int32":
            found.append(element)
        elif found and argument.name != "Tuple":
            break
    return found

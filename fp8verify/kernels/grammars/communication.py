"""Communication kernels: NCCL and RCCL, DeepEP, custom all-reduces, NVSHMEM, user buffers."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from fp8verify.kernels import describe
from fp8verify.kernels.elements import SHORT
from fp8verify.kernels.symbol import Symbol, split
from fp8verify.terms import KernelName, Role
from fp8verify.text import lazy_pattern

_NCCL: Final = lazy_pattern(
    r"(?:nccl|rccl|msccl|mscclpp)(?:Dev|Symk?Dev|Symk)?Kernel\w*|(?:nccl|rccl)_(?:ep|gin)_\w+"
)
_NAMESPACES: Final = {
    "deep_ep": "DeepEP",
    "mscclpp": "MSCCL++",
    "nvshmem": "NVSHMEM",
    "mori": "MoRI",
}
_FUNCTIONS: Final = lazy_pattern(
    r"multimem_\w+|(?:one|two)_shot_all_?reduce\w*|cross_device_reduce\w*|"
    r"nvshmemi?_\w+|userbuffers_\w+"
)
_COLLECTIVES: Final = frozenset(
    {"allreduce", "all reduce", "allgather", "all gather", "reduce scatter", "reducescatter",
     "alltoall", "all to"}
)  # fmt: skip
_MULTIPLIES: Final = frozenset({"gemm", "matmul", "mm"})
_NCCL_TYPES: Final = {
    **SHORT,
    "f8e4m3": "e4m3",
    "f8e5m2": "e5m2",
    "float": "fp32",
    "double": "fp64",
}


def decode(symbol: Symbol) -> KernelName | None:
    """Decode a communication kernel; the type is that of the data it moves."""
    library = _library(symbol)
    if library is None:
        return None
    element = None
    if library == "NCCL":
        found = (_NCCL_TYPES.get(word) for word in symbol.base.split("_"))
        element = next((name for name in found if name), None)
    return describe.other(
        symbol.name, library, Role.COMMUNICATION, f"{library} communication kernel", element=element
    )


def _library(symbol: Symbol) -> str | None:
    if not symbol.path:
        return None
    if _NCCL.fullmatch(symbol.base):
        return "NCCL"
    if symbol.path[0] in _NAMESPACES:
        return _NAMESPACES[symbol.path[0]]
    if symbol.path[:2] == ("dpsk", "ep"):
        return "DeepEP"
    if _FUNCTIONS.fullmatch(symbol.base) or _is_collective(symbol.base):
        return "a custom collective"
    return None


def _is_collective(function: str) -> bool:
    """Whether the words of a function's name name a collective, and no GEMM fused with it."""
    words = split(function)
    pairs = {f"{first} {second}" for first, second in pairwise(words)}
    return bool(_COLLECTIVES & (pairs | set(words))) and not _MULTIPLIES & set(words)

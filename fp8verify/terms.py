"""The words of the field that every room shares."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

import msgspec

Shape = tuple[int, ...]


class Precision(str, Enum):
    """The number format in which a matrix multiplication reads its operands."""

    FP8 = "fp8"
    MXFP8 = "mxfp8"
    MXFP6 = "mxfp6"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    FP4 = "fp4"  # where the kind of scales is not known
    BELOW16 = "below16"  # FP8, FP6 or FP4: which one is not known
    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    FP32 = "fp32"
    FP64 = "fp64"
    INT8 = "int8"
    UNKNOWN = "unknown"

    @property
    def is_fp8(self) -> bool:
        """Whether the class counts into the FP8 share (`fp8` and `mxfp8`)."""
        return self in _FP8

    @property
    def is_fp4(self) -> bool:
        """Whether the operands have four bits."""
        return self in _FP4

    @property
    def is_low(self) -> bool:
        """Whether the class counts into the low-precision share: FP8, FP6 and FP4 of any kind."""
        return self in _LOW


_FP8: Final = (Precision.FP8, Precision.MXFP8)
_FP4: Final = (Precision.NVFP4, Precision.MXFP4, Precision.FP4)
_LOW: Final = (*_FP8, *_FP4, Precision.MXFP6, Precision.BELOW16)


_Name = TypeVar("_Name", bound=str)


def fp8_share(amounts: Mapping[_Name, float]) -> float | None:
    """Return the FP8 share of amounts by precision class, None if there is nothing."""
    total = sum(amounts.values())
    fp8 = sum(amount for name, amount in amounts.items() if Precision(name).is_fp8)
    if total:
        return fp8 / total
    return None


def low_precision_share(amounts: Mapping[_Name, float]) -> float | None:
    """Return the FP8 and FP4 share of amounts by precision class, None if there is nothing."""
    total = sum(amounts.values())
    low = sum(amount for name, amount in amounts.items() if Precision(name).is_low)
    if total:
        return low / total
    return None


def low_precision_count(kernels: Mapping[_Name, int]) -> int:
    """Return how many of launches by precision class were in FP8 or FP4."""
    return sum(count for name, count in kernels.items() if Precision(name).is_low)


def low_precision_name(amounts: Mapping[_Name, float]) -> str:
    """Return how a sentence names the low-precision classes that have an amount, "FP8" of none."""
    ran = {Precision(name) for name, amount in amounts.items() if amount}
    names = [
        found.value.upper() for found in Precision if found.is_low and found in ran
    ]
    return " and ".join(names) or "FP8"


class Role(str, Enum):
    """What a GPU kernel does in a training step."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped_gemm"
    ATTENTION = "attention"
    CONV = "conv"
    CAST_QUANTIZE = "cast_quantize"
    AMAX_REDUCE = "amax_reduce"
    TRANSPOSE = "transpose"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    OTHER = "other"

    @property
    def is_gemm(self) -> bool:
        """Whether the kernel's time is GEMM time."""
        return self in (Role.GEMM, Role.GROUPED_GEMM)


class Leg(str, Enum):
    """Which of a linear layer's GEMMs a kernel computes, or what else it multiplies for."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    ATTENTION = "attention"  # a product of attention that no fused kernel computes
    OPTIMIZER = (
        "optimizer"  # launched inside an optimizer's step; no part of the model's GEMMs
    )
    UNKNOWN = "unknown"


# Those of a linear layer, and those that may hide any of its backward pass.
LEGS = (Leg.FPROP, Leg.DGRAD, Leg.WGRAD)
GRADIENT_LEGS = (Leg.DGRAD, Leg.WGRAD)
BACKWARD_LEGS = (*GRADIENT_LEGS, Leg.BACKWARD)
VAGUE_LEGS = (Leg.BACKWARD, Leg.UNKNOWN)
CERTAIN_LEGS = (*LEGS, Leg.RECOMPUTE)
# Legs that a rank which only runs forward does not have.
TRAINING_LEGS = frozenset({*BACKWARD_LEGS, *VAGUE_LEGS})


# What a table counted in hardware is an operator of this and its precision.
COUNTED = "counted_"


class Scaling(str, Enum):
    """How the low-precision operands of a GEMM are scaled."""

    TENSORWISE = "tensorwise"
    ROWWISE = "rowwise"
    BLOCKWISE = "blockwise"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


class Verdict(str, Enum):
    """The answer; exit codes are in `fp8verify.verdict.judge`."""

    ACTIVE = "ACTIVE"
    PARTIAL = "PARTIAL"
    INACTIVE = "INACTIVE"
    CONTRADICTED = "CONTRADICTED"
    EMULATED = "EMULATED"
    INCONCLUSIVE = "INCONCLUSIVE"


class Severity(str, Enum):
    """How much a finding weighs."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Hint(str, Enum):
    """What a name says of a GEMM beside its types."""

    SPLIT_K = "adds up the parts of a GEMM whose K was split"
    SCALED_MM = "the product of torch._scaled_mm, whose template takes FP8"
    SIXTEEN_BITS = "an MMA whose K of 16 is that of operands with 16 bits"
    WIDENED = "the weights are widened to the type of the activations"


class KernelName(msgspec.Struct, frozen=True, kw_only=True):
    """What the name of a kernel alone says.

    `precision` is the class of the operands that are multiplied (for kernels that multiply
    nothing: of the data they write). `a`, `b` and `out` are element types such as "e4m3",
    "e5m2", "bf16", or None if the name does not say. `hint` is what else a name may say.
    """

    name: str = ""
    role: Role
    precision: Precision
    library: str
    reason: str
    a: str | None = None
    b: str | None = None
    out: str | None = None
    scaling: Scaling | None = None
    fast_accum: bool | None = None
    hint: Hint | None = None

    @property
    def split_k(self) -> bool:
        """Whether it adds up the parts of a GEMM: its time is GEMM time, but it is not counted."""
        return self.hint is Hint.SPLIT_K


class OpContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where on the CPU a kernel came from: the innermost operator and what encloses it.

    `types` and `dims` are Kineto's "Input type" and "Input Dims" of that operator, empty if
    not recorded. `parents` are the enclosing operators and annotations of the same thread,
    innermost first. `backward` is whether autograd's backward pass ran it.
    """

    name: str
    types: tuple[str, ...] = ()
    dims: tuple[Shape, ...] = ()
    parents: tuple[str, ...] = ()
    backward: bool = False

    @property
    def around(self) -> tuple[str, ...]:
        """Its own name and those of all that encloses it, innermost first; nothing of none."""
        if self.name:
            return (self.name, *self.parents)
        return ()


# Of a kernel whose operator is not known.
NO_OP = OpContext(name="")


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of NCCL collective: sizes in elements of `dtype`, as NCCL's own metadata says."""

    name: str
    dtype: str
    in_elements: int
    out_elements: int
    group_size: int

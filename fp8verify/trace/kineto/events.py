"""The events that matter, as msgspec structs distinguished by their `cat`.

Everything that no struct names is skipped by the decoder, in C. Fields are in Kineto's order: the
decoder looks for a key first where the last one was found. A duration must be there: it separates
a whole event from one of two halves.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, field

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# Differences and sums of three such numbers of microseconds still fit int64 nanoseconds; 3e15 is
# the year 2065 in the absolute stamps of older traces. The bound also refuses infinities.
MAX_MICROS = 3e15
Micros = Annotated[float, Meta(ge=-MAX_MICROS, le=MAX_MICROS)]
Length = Annotated[float, Meta(ge=0, le=MAX_MICROS)]
Id = int | str

NOTHING = Raw(b"")


class OpArgs(Struct, gc=False):
    """The `args` of a CPU operator; shapes and types stay undecoded until a kernel needs them."""

    external_id: Int64 = field(name="External id", default=-1)
    sequence: Int64 = field(name="Sequence number", default=-1)
    forward_thread: Raw = field(name="Fwd thread id", default=NOTHING)
    types: Raw = field(name="Input type", default=NOTHING)
    dims: Raw = field(name="Input Dims", default=NOTHING)


class LaunchArgs(Struct, gc=False):
    """The `args` of a runtime or driver call."""

    correlation: Int64 = -1


class KernelArgs(Struct, gc=False):
    """The `args` of a kernel; NCCL's kernels carry their collective."""

    external_id: Int64 = field(name="External id", default=-1)
    correlation: Int64 = -1
    device: Int64 = -1
    stream: Int64 = -1
    collective: str = field(name="Collective name", default="")
    dtype: str = ""
    in_elements: int = field(name="In msg nelems", default=0)
    out_elements: int = field(name="Out msg nelems", default=0)
    group_size: int = field(name="Group size", default=0)


class CopyArgs(Struct, gc=False):
    """The `args` of a copy or fill on the GPU."""

    bytes: int = 0


class CpuOp(Struct, tag_field="cat", tag="cpu_op", gc=False, kw_only=True):
    """An operator, or (subclass) a range that the user or a framework named."""

    name: str
    pid: Id = 0
    tid: Id = 0
    ts: Micros
    dur: Length
    args: OpArgs = field(default_factory=OpArgs)


class OldCpuOp(CpuOp, tag="Operator", gc=False):
    """`CpuOp` as torch 1.8 to 1.11 called its category."""


class Annotation(CpuOp, tag="user_annotation", gc=False):
    """A `record_function` range on the CPU, `ProfilerStep#N` among them."""


class RuntimeCall(Struct, tag_field="cat", tag="cuda_runtime", gc=False, kw_only=True):
    """A call into the CUDA or HIP runtime."""

    pid: Id = 0
    tid: Id = 0
    ts: Micros
    dur: Length
    args: LaunchArgs = field(default_factory=LaunchArgs)


class DriverCall(RuntimeCall, tag="cuda_driver", gc=False):
    """A call into the CUDA driver: cuBLAS and Triton launch this way."""


class OldCall(RuntimeCall, tag="Runtime", gc=False):
    """A call of either kind in a trace of torch 1.8 to 1.11."""


class GpuKernel(Struct, tag_field="cat", tag="kernel", gc=False):
    """A kernel that ran on the GPU."""

    name: str
    ts: Micros
    dur: float
    args: KernelArgs = field(default_factory=KernelArgs)


class OldKernel(GpuKernel, tag="Kernel", gc=False):
    """A kernel in a trace of torch 1.8 to 1.11."""


class GpuMemcpy(Struct, tag_field="cat", tag="gpu_memcpy", gc=False):
    """A copy that the GPU made."""

    dur: float
    args: CopyArgs = field(default_factory=CopyArgs)


class GpuMemset(GpuMemcpy, tag="gpu_memset", gc=False):
    """A fill that the GPU made."""


class OldMemcpy(GpuMemcpy, tag="Memcpy", gc=False):
    """A copy in a trace of torch 1.8 to 1.11."""


class OldMemset(GpuMemcpy, tag="Memset", gc=False):
    """A fill in a trace of torch 1.8 to 1.11."""


OPS = (CpuOp, OldCpuOp)
CALLS = (RuntimeCall, DriverCall, OldCall)
KERNELS = (GpuKernel, OldKernel)
KERNEL_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in KERNELS)

TIMED = (CpuOp, OldCpuOp, Annotation, *CALLS, *KERNELS)
UNTIMED = (GpuMemcpy, GpuMemset, OldMemcpy, OldMemset)

# Kineto's other activity types (ActivityType.cpp) and flow categories; unknown ones are learnt.
IGNORED = (
    "ac2g",
    "fwdbwd",
    "Trace",
    "gpu_user_annotation",
    "python_function",
    "cpu_instant_event",
    "overhead",
    "cuda_sync",
    "async",
)


class Decoders:
    """The decoder of a list of events and of one event."""

    def __init__(self) -> None:
        self._ignored = {cat: _ignored(cat) for cat in IGNORED}
        self._build()

    def _build(self) -> None:
        event: Any = reduce(or_, (*TIMED, *UNTIMED, *self._ignored.values()))
        self.block: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[event])
        self.lax_event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(event, strict=False)

    def knows(self, category: str) -> bool:
        """Whether events of `category` can be decoded, if only to be ignored."""
        return category in _WANTED or category in self._ignored

    def learn(self, category: str) -> None:
        """Ignore events of `category` from now on, without a detour for each."""
        is_text = category.isprintable()  # a lone surrogate cannot be a tag
        if is_text and len(self._ignored) < _MAX_CATEGORIES:
            self._ignored[category] = _ignored(category)
            self._build()


_MAX_CATEGORIES = 100
_WANTED = frozenset(str(kind.__struct_config__.tag) for kind in (*TIMED, *UNTIMED))


def _ignored(category: str) -> type[Struct]:
    return msgspec.defstruct("Ignored", [], tag_field="cat", tag=category, gc=False)

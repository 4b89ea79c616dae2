"""Hold the kernels of a trace against the machine code that their compiler left on disk.

Triton's kernels are found by the name of their function, the architecture of the GPU, the threads
of a block, its shared memory, and the registers of a thread, all of which a trace records. What
the code multiplies is a witness beside a kernel's name and its operator, and the strongest: it is
what ran. Kernels whose candidates differ in it stay as they are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from fp8verify.capture.schema import CompiledKernel
from fp8verify.kernels import Classification, alike, decode
from fp8verify.kernels.code_files import capability_of
from fp8verify.kernels.describe import Operands
from fp8verify.kernels.machine_code import (
    SIXTEEN_BITS,
    MachineCode,
    agreed,
    completed,
    machine_code,
)
from fp8verify.patterns import lazy_pattern
from fp8verify.terms import KernelName, Precision, Role
from fp8verify.thresholds import MANY_FMAS
from fp8verify.trace.tables import LaunchConfig, Trace

# Kernels of Triton are called by the plain name of their function.
_PLAIN: Final = lazy_pattern(r"[A-Za-z_]\w{0,500}", re.ASCII)
# Libraries whose names are of anybody's kernels, or of Triton's.
TRITONS: Final = frozenset({"Triton", "Inductor", "unknown"})


class Word(NamedTuple):
    """What the compiled code says of launches of a kernel.

    Attributes:
        code: what all candidates have in common; None if they differ.
        classes: those of the candidates.
    """

    code: MachineCode | None
    classes: tuple[str, ...] = ()


class Words(NamedTuple):
    """The words on the kernels of a trace.

    Attributes:
        words: the different ones.
        ids: of each kernel the index of its word, -1 for none; empty without any.
    """

    words: Sequence[Word]
    ids: Sequence[int]


NO_WORDS: Final = Words((), ())
_Launch: TypeAlias = "tuple[int, int]"  # the threads of a block, and its shared memory


def wanted_code(trace: Trace) -> dict[str, set[_Launch]]:
    """Return the kernels whose code could say more than is known, with their launches.

    These are products, or unrecognized kernels, whose names may be of Triton's functions.
    """
    wanted: dict[str, set[_Launch]] = defaultdict(set)
    if not trace.kernels.config:
        return wanted
    names: dict[int, str] = {}
    for number, name in enumerate(trace.names):
        if _PLAIN.fullmatch(name) and _could_be_tritons(decode(name)):
            names[number] = name
    if not names:
        return wanted
    launches = set(zip(trace.kernels.name, trace.kernels.config, strict=False))
    for number, config_index in launches:
        if number not in names:
            continue
        name = names[number]
        config = trace.configs[config_index]
        if config.threads is not None and config.shared is not None:
            launch = (config.threads, config.shared)
            wanted[name].add(launch)
    return wanted


def _could_be_tritons(found: KernelName) -> bool:
    if found.library not in TRITONS:
        return False
    if found.role.is_gemm:
        return True
    return found.role is Role.OTHER and found.library == "unknown"


def words_on_kernels(
    trace: Trace,
    compiled: Sequence[CompiledKernel],
) -> Words:
    """Return what compiled kernels say of each launch of the trace."""
    by_name: dict[str, list[CompiledKernel]] = defaultdict(list)
    for kernel in compiled:
        if capability_of(kernel.arch) == trace.compute_capability:
            by_name[kernel.name].append(kernel)
    if not by_name or not trace.kernels.config:
        return NO_WORDS
    wanted = wanted_code(trace)
    candidates: dict[int, list[CompiledKernel]] = {}
    for number, name in enumerate(trace.names):
        if name in wanted and name in by_name:
            candidates[number] = by_name[name]
    if not candidates:
        return NO_WORDS
    words: dict[Word, int] = {}
    word_ids: dict[tuple[int, int], int] = {}
    columns = trace.kernels
    launches = list(zip(columns.name, columns.config, strict=True))
    for launch in set(launches):
        number, config_index = launch
        word = _word(
            candidates.get(number, ()),
            trace.configs[config_index],
        )
        if word is None:
            word_ids[launch] = -1
        else:
            word_ids[launch] = words.setdefault(word, len(words))
    ids = [word_ids[launch] for launch in launches]
    return Words(list(words), ids)


def _word(compiled: Iterable[CompiledKernel], config: LaunchConfig) -> Word | None:
    """Return what the kernels say that could have been launched so, None without any."""
    codes = []
    for kernel in compiled:
        if _is_launched_as(kernel, config):
            codes.append(_code(kernel))
    if not codes:
        return None
    classes = sorted({_class(code) for code in codes})
    return Word(agreed(codes), tuple(classes))


def _is_launched_as(kernel: CompiledKernel, config: LaunchConfig) -> bool:
    if kernel.threads != config.threads:
        return False
    if not _may_equal(kernel.shared, config.shared):
        return False
    return _may_equal(kernel.registers, config.registers)


def _may_equal(compiled: int | None, launched: int | None) -> bool:
    """Whether two numbers are equal, or one of them is not known."""
    if compiled is None or launched is None:
        return True
    return compiled == launched


def _code(kernel: CompiledKernel) -> MachineCode:
    code = machine_code(kernel.instructions)
    written: dict[Operands, int] = {}
    for dot, count in kernel.dots.items():
        a, _, b = dot.partition(" ")
        written[Operands(a, b)] = count
    return completed(code, written)


def _class(code: MachineCode) -> str:
    return code.precision.value if code.products else "no product"


# ---- one kernel


def with_code(found: Classification, word: Word) -> Classification:
    """Return what a kernel is once its compiled code is known: the code decides."""
    code = word.code
    multiplies = found.role.is_gemm and not found.split_k
    nameless = found.role is Role.OTHER and found.source == "none"
    if not (multiplies or nameless):
        return found
    if code is None:
        classes = " and ".join(word.classes)
        return _with_reason(
            found,
            f"kernels of this name and launch are in the cache that differ: {classes}",
        )
    if nameless:
        return _nameless(found, code)
    if not code.products:
        return _without_products(found, code)
    if code.precision is Precision.UNKNOWN:
        return _with_reason(found, f"its code has {code}")
    return _decided(found, code)


def _with_reason(found: Classification, why: str) -> Classification:
    return replace(found, reason=f"{found.reason}; {why}")


def _decided(found: Classification, code: MachineCode) -> Classification:
    """Give a product the class of its instructions; a name that says another is a conflict."""
    contents = f"its code has {code}"
    named = found.precision
    ran = code.precision
    types = code.types
    same = _agree(named, code)
    # Instructions know only scales of their own, and some leave the format open.
    is_vague = ran is Precision.BELOW16 or types.scale is None
    disputed = named is not Precision.UNKNOWN and not same
    conflict = None
    if disputed and (named.is_low or ran.is_low):
        conflict = f"the name says {named.value} ({found.reason}), and {contents}"
    named_scaling = found.scaling if same else None
    return replace(
        found,
        precision=named if same and is_vague else ran,
        a=_plain_type(types.a) or found.a,
        b=_plain_type(types.b) or found.b,
        scaling=types.scaling or named_scaling,
        reason=f"{found.reason}; {contents}",
        source="code",
        conflict=conflict,
        upcast_from=None,
    )


def _agree(named: Precision, code: MachineCode) -> bool:
    """Whether a name can be right; some instructions only say that operands have 16 bits."""
    if code.types.a == SIXTEEN_BITS:
        return named in (Precision.BF16, Precision.FP16)
    return alike(named, code.precision)


def _plain_type(element: str | None) -> str | None:
    if element in (SIXTEEN_BITS, Precision.BELOW16.value):
        return None
    return element


def _without_products(found: Classification, code: MachineCode) -> Classification:
    """Describe a kernel that is called a GEMM: a dot without matrix instructions is FMA in FP32."""
    named = found.precision
    if not named.is_low and named is not Precision.UNKNOWN:
        return found
    contents = f"its code has {code}"
    conflict = None
    if named.is_low:
        conflict = f"the name says {named.value} ({found.reason}), and {contents}"
    return replace(
        found,
        role=found.role if code.fmas else Role.OTHER,
        precision=Precision.FP32 if code.fmas else Precision.UNKNOWN,
        a=None,
        b=None,
        scaling=None,
        reason=f"{found.reason}; {contents}",
        source="code",
        conflict=conflict,
    )


def _nameless(found: Classification, code: MachineCode) -> Classification:
    """Say whether an unrecognized kernel is a product.

    Beside exponentials products may be those of attention, and many FMAs may be a product in FP32:
    such kernels stay unrecognized.
    """
    reason = f"{found.reason}; its code has {code}"
    if not code.products:
        source = found.source if code.fmas >= MANY_FMAS else "code"
        return replace(found, reason=reason, source=source)
    if code.exponentials or code.precision is Precision.UNKNOWN:
        return replace(found, reason=reason)
    return replace(
        found,
        role=Role.GEMM,
        precision=code.precision,
        a=code.types.a,
        b=code.types.b,
        scaling=code.types.scaling,
        library="Triton",
        reason=reason,
        source="code",
    )

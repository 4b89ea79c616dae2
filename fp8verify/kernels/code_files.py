"""Find compiled kernels in the caches that Triton and TorchInductor leave on disk.

Both keep one folder a kernel, with its PTX (or AMDGCN) in text, the binary, and its launch
parameters as JSON: `<hash>/<name>.ptx`, `.cubin`, `.json` (triton/compiler/compiler.py and
triton/runtime/cache.py, 3.0 to 3.6). Everything there may be damaged or somebody else's: what cannot
be read, or contradicts itself, decides nothing. Nothing is written, and no link is followed.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from fp8verify.capture.schema import CompiledKernel
from fp8verify.kernels.machine_code import instructions_of, products_of_ttgir
from fp8verify.patterns import lazy_pattern
from fp8verify.text import clean_json

# TorchInductor: triton/<device>/<hash>/<file> below its folder.
_DEPTH: Final = 4
_MAX_JSON: Final = 1 << 18
_MAX_CODE: Final = 16 << 20
_MAX_KERNELS: Final = 4096
_WARP: Final = 32
_CODE: Final = (".ptx", ".amdgcn")

# Block's threads and bytes of shared memory, as a trace records them.
Size = tuple[int, int]
# The sizes of the launches of each kernel that is looked for.
Wanted = Mapping[str, Collection[Size]]


class Limits(NamedTuple):
    """How much of caches is read.

    Attributes:
        seconds: of reading.
        folders: that are looked into.
        size: bytes of code.
    """

    seconds: float
    folders: int
    size: int


# A second, less what one more folder may take.
AFTER_A_RUN: Final = Limits(0.9, 100_000, 128 << 20)
ON_REQUEST: Final = Limits(60.0, 1_000_000, 2 << 30)


class CacheContents(NamedTuple):
    """The kernels that were looked for, as far as caches hold them, and what was not read."""

    kernels: tuple[CompiledKernel, ...] = ()
    notes: tuple[str, ...] = ()


NO_CODE: Final = CacheContents()


class CodeSource(NamedTuple):
    """Where the compiled code of a run's kernels is looked for.

    Attributes:
        kernels: what a capture has of it.
        folders: the compilers' caches.
        limits: how much of these is read.
        asked: whether the user named the folders.
    """

    kernels: tuple[CompiledKernel, ...] = ()
    folders: tuple[Path, ...] = ()
    limits: Limits = AFTER_A_RUN
    asked: bool = False

    def contents(self, wanted: Wanted, capability: str | None) -> CacheContents:
        """Return the code of kernels; no cache is read if none is wanted."""
        recorded = tuple(kernel for kernel in self.kernels if kernel.name in wanted)
        if not (wanted and self.folders):
            return CacheContents(recorded)
        found = read_caches(self.folders, wanted, capability, self.limits)
        notes = found.notes
        if self.asked and not (found.kernels or notes):
            where = ", ".join(map(str, self.folders))
            notes = (f"no compiled code in {where} is of the kernels of this trace",)
        return CacheContents((*recorded, *found.kernels), notes)


NO_SOURCE: Final = CodeSource()


class _TooMuchError(Exception):
    """More was there than is read."""


class _Target(msgspec.Struct, frozen=True):
    backend: str
    arch: Annotated[int, Meta(ge=1, le=10_000)] | Annotated[str, Meta(max_length=32)]
    warp_size: Annotated[int, Meta(ge=1, le=128)] = _WARP


class _Parameters(msgspec.Struct, frozen=True):
    """The launch parameters that Triton writes beside the code."""

    name: str
    target: _Target
    num_warps: Annotated[int, Meta(ge=1, le=1024)]
    shared: Annotated[int, Meta(ge=0)] | None = None

    @property
    def threads(self) -> int:
        return self.num_warps * self.target.warp_size


def read_caches(
    folders: Sequence[Path], wanted: Wanted, arch: str | None, limits: Limits
) -> CacheContents:
    """Return the compiled kernels of some names that could have been launched as recorded.

    Args:
        folders: Triton's or TorchInductor's caches, or folders of one kernel each.
        wanted: the kernels, by the name of their function.
        arch: the architecture that they ran on ("9.0", "gfx942"'s "9.4"); None for any.
        limits: where there is more, nothing is returned, as what was not read could differ.
    """
    search = _Search(wanted, arch, limits)
    try:
        for folder in folders:
            search.look_into(folder)
    except _TooMuchError as error:
        note = (
            f"compiled code was not used: {error}; name the kernels' folder with --code"
        )
        return CacheContents((), (note,))
    return CacheContents(tuple(search.found), tuple(dict.fromkeys(search.notes)))


class _Search:
    """One reading of caches.

    Attributes:
        found: the kernels.
        notes: what could not be read.
    """

    def __init__(self, wanted: Wanted, arch: str | None, limits: Limits) -> None:
        self.found: list[CompiledKernel] = []
        self.notes: list[str] = []
        self._wanted = wanted
        self._arch = arch
        self._limits = limits
        self._ends = time.monotonic() + limits.seconds
        self._folders = 0
        self._size = 0

    def look_into(self, root: Path) -> None:
        """Take what a cache holds of the kernels.

        Raises:
            _TooMuchError: there is more in it than is read.
        """
        for folder, names in self._walk(root, _DEPTH):
            for name in self._wanted:
                if f"{name}.json" in names:
                    self._take(folder, name, names)

    def _walk(self, folder: Path, depth: int) -> Iterator[tuple[Path, set[str]]]:
        """Yield folders with the names of their files."""
        self._folders += 1
        if self._folders > self._limits.folders:
            raise _TooMuchError(
                f"there are more than {self._limits.folders} folders in the cache"
            )
        if time.monotonic() > self._ends:
            raise _TooMuchError(
                f"reading the cache took more than {self._limits.seconds:g} s"
            )
        files: set[str] = set()
        folders: list[Path] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(folder / entry.name)
                    else:
                        files.add(entry.name)
        except OSError as error:
            if depth == _DEPTH and not isinstance(error, FileNotFoundError):
                self.notes.append(
                    f"the compiler's cache {folder} cannot be read: {error.strerror}"
                )
            return
        yield folder, files
        if depth > 0:
            for inner in folders:
                yield from self._walk(inner, depth - 1)

    def _take(self, folder: Path, name: str, files: set[str]) -> None:
        """Add one kernel if it can have been launched as the trace says."""
        parameters = _parameters(_read(folder / f"{name}.json", _MAX_JSON))
        code_files = [
            f"{name}{ending}" for ending in _CODE if f"{name}{ending}" in files
        ]
        if parameters is None or parameters.name != name or not code_files:
            self._skip(name)
            return
        if not self._could_be(parameters):
            return
        code = _read(folder / code_files[0], _MAX_CODE)
        kernel = None
        if code is not None:
            self._size += len(code)
            kernel = _kernel(parameters, code)
        if kernel is None:
            self._skip(name)
            return
        if self._size > self._limits.size or len(self.found) >= _MAX_KERNELS:
            raise _TooMuchError(f"{name} was compiled too often")
        registers = registers_of(_read(folder / f"{name}.cubin", _MAX_CODE) or b"")
        dots = _dots(folder / f"{name}.ttgir", kernel)
        self.found.append(
            msgspec.structs.replace(kernel, registers=registers, dots=dots)
        )

    def _could_be(self, parameters: _Parameters) -> bool:
        """Whether a kernel of this name was launched with such a block, on such a GPU."""
        arch = str(parameters.target.arch)
        if self._arch is not None and capability_of(arch) != self._arch:
            return False
        for threads, shared in self._wanted[parameters.name]:
            is_same_block = parameters.threads == threads
            if is_same_block and parameters.shared in (None, shared):
                return True
        return False

    def _skip(self, name: str) -> None:
        self.notes.append(
            f"a compiled {name} in the cache was left out: its files are damaged or disagree"
        )


def _read(path: Path, most: int) -> bytes | None:
    """Return what a regular file holds; None if it is none, cannot be read, or is too large."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            data = file.read(most + 1)
        except OSError:
            return None
    if len(data) <= most:
        return data
    return None


def _parameters(data: bytes | None) -> _Parameters | None:
    try:
        return msgspec.json.decode(clean_json(data or b""), type=_Parameters)
    except (ValueError, RecursionError):
        return None


# What the code says of itself.
_ENTRY: Final = lazy_pattern(
    r"^\.visible[ \t]+\.entry[ \t]+([\w$]{1,512})[ \t]*\(|^[ \t]*\.amdhsa_kernel[ \t]+([\w$.]{1,512})",
    re.MULTILINE,
)
_PTX_TARGET: Final = lazy_pattern(r"^\.target[ \t]+sm_(\d{2,3})[af]?\b", re.MULTILINE)
_AMD_TARGET: Final = lazy_pattern(
    r'^[ \t]*\.amdgcn_target[ \t]+"amdgcn-[\w-]{1,40}(gfx[0-9a-f]{3,5})', re.MULTILINE
)
_THREADS: Final = lazy_pattern(
    r"^\.(?:req|max)ntid[ \t]+(\d{1,5})(?:,[ \t]*(\d{1,5}))?(?:,[ \t]*(\d{1,5}))?"
    r"|^[ \t]*\.max_flat_workgroup_size:[ \t]+(\d{1,5})",
    re.MULTILINE,
)


def _kernel(parameters: _Parameters, code: bytes) -> CompiledKernel | None:
    """Return what code holds; None if it is not what its parameters say."""
    from hashlib import sha256  # its library takes a while to load

    text = code.decode("utf-8", "replace")
    names = {entry[1] or entry[2] for entry in _ENTRY.finditer(text)}
    target = _PTX_TARGET.search(text) or _AMD_TARGET.search(text)
    threads = _THREADS.search(text)
    if names != {parameters.name} or target is None:
        return None
    if target[1] != str(parameters.target.arch):
        return None
    if threads is not None and _count(threads) != parameters.threads:
        return None
    try:
        instructions = instructions_of(text)
    except ValueError:
        return None
    return CompiledKernel(
        name=parameters.name,
        arch=target[1],
        threads=parameters.threads,
        shared=parameters.shared,
        instructions=instructions,
        hash=sha256(code).hexdigest()[:16],
    )


def _count(threads: re.Match[str]) -> int:
    if threads[4]:
        return int(threads[4])
    total = 1
    for side in (threads[1], threads[2], threads[3]):
        total *= int(side or 1)
    return total


def _dots(path: Path, kernel: CompiledKernel) -> dict[str, int]:
    """Count the products in the intermediate code, where the instructions do not say the types."""
    if not any("tcgen05" in mnemonic for mnemonic in kernel.instructions):
        return {}
    code = _read(path, _MAX_CODE) or b""
    text = code.decode("utf-8", "replace")
    dots = {}
    for types, count in products_of_ttgir(text).items():
        dots[f"{types.a} {types.b}"] = count
    return dots


def capability_of(arch: str) -> str:
    """Return an architecture as traces write it: "9.0" of "90", "9.4" of "gfx942"."""
    if arch.startswith("gfx"):
        return f"{arch[3:-2]}.{arch[-2:-1]}"
    return f"{arch[:-1]}.{arch[-1:]}"


# ---- the binary

_ELF: Final = b"\x7fELF\x02\x01"
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
# An attribute of `.nv.info`: EIFMT_SVAL, EIATTR_REGCOUNT, 8 bytes: the symbol, the registers.
_REGISTERS: Final = b"\x04\x2f\x08\x00"
_MAX_SECTIONS: Final = 4096


def registers_of(binary: bytes) -> int | None:
    """Return the registers of a thread of the only kernel in a .cubin, None if it does not say."""
    if not binary.startswith(_ELF) or len(binary) < 64:
        return None
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    count, names_at = struct.unpack_from("<HH", binary, 0x3C)
    if count > _MAX_SECTIONS or table + count * _SECTION.size > len(binary):
        return None
    if names_at >= count:
        return None
    sections = []
    for number in range(count):
        header = _SECTION.unpack_from(binary, table + number * _SECTION.size)
        sections.append(_Section(header[0], header[4], header[5]))
    names = sections[names_at].offset
    for section in sections:
        if binary.startswith(b".nv.info\0", names + section.name):
            end = section.offset + section.size
            return _registers(binary[section.offset : end])
    return None


class _Section(NamedTuple):
    """Where the name of a section is among the names, and its bytes in the file."""

    name: int
    offset: int
    size: int


def _registers(attributes: bytes) -> int | None:
    counts: set[int] = set()
    at = attributes.find(_REGISTERS)
    while 0 <= at <= len(attributes) - 12:
        (count,) = struct.unpack_from("<I", attributes, at + 8)
        counts.add(count)
        at = attributes.find(_REGISTERS, at + 12)
    if len(counts) == 1:
        return counts.pop()
    return None

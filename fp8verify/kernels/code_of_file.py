"""What one file of machine code multiplies: PTX, TTGIR or AMDGCN text, or a binary for NVIDIA."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final, NamedTuple

from fp8verify.errors import InputError
from fp8verify.files import open_regular, reading_file
from fp8verify.kernels.describe import Operands
from fp8verify.kernels.machine_code import (
    MachineCode,
    instructions_of,
    machine_code,
    operands_of,
    products_of_ttgir,
)
from fp8verify.patterns import lazy_pattern

TEXTS: Final = (".ptx", ".amdgcn", ".ttgir")
BINARIES: Final = (".cubin",)
# The largest file that is read.
MAX_BYTES: Final = 64 << 20
_PATIENCE_S: Final = 60
# Both print SASS; the first is smaller, and PyTorch's Triton has it.
_DISASSEMBLERS: Final = {"nvdisasm": ("-c",), "cuobjdump": ("-sass",)}
_ENTRY: Final = lazy_pattern(
    r"^\.visible[ \t]+\.entry[ \t]+([\w$]{1,512})"
    r"|^[ \t]*\.amdhsa_kernel[ \t]+([\w$.]{1,512})"
    r"|^[ \t]*tt\.func public @([\w$]{1,512})"
    r"|^[ \t]*\.section[ \t]+\.text\.([\w$]{1,512})",
    re.MULTILINE,
)
_MAX_NAMES: Final = 3


class CodeOfFile(NamedTuple):
    """What a file holds.

    Attributes:
        functions: the names of its kernels.
        code: what they multiply together.
        instructions: their matrix instructions, or products of TTGIR, with how many there are.
    """

    functions: tuple[str, ...]
    code: MachineCode
    instructions: dict[str, int]


def is_code_file(name: str) -> bool:
    """Whether a name is that of a file of machine code, and not of a kernel or a message."""
    return name.endswith((*TEXTS, *BINARIES)) and name.isprintable()


def code_of_file(path: Path) -> CodeOfFile:
    """Return what a file of machine code multiplies.

    Raises:
        InputError: it cannot be read, is too large, or is no code of a kernel.
    """
    if path.suffix in BINARIES:
        text = _disassembled(path)
    else:
        text = _text(path)
    functions = [next(filter(None, match.groups())) for match in _ENTRY.finditer(text)]
    if not functions:
        raise InputError(
            f"{path} has no kernel in it.",
            "Give a .ptx, .ttgir, .amdgcn or .cubin that a compiler left: Triton's are in "
            "$TRITON_CACHE_DIR or ~/.triton/cache.",
        )
    if path.suffix == ".ttgir":
        products = products_of_ttgir(text)
        code = MachineCode(tuple(products.items()))
        shown = {f"tt.dot {_pair(types)}": n for types, n in products.items()}
        return CodeOfFile(tuple(dict.fromkeys(functions)), code, shown)
    try:
        instructions = instructions_of(text)
    except ValueError as error:
        raise InputError(f"{path} is no kernel's: {error}.", "Give one.") from None
    multiplying = {
        mnemonic: count
        for mnemonic, count in instructions.items()
        if operands_of(mnemonic) is not None
    }
    names = tuple(dict.fromkeys(functions))
    return CodeOfFile(names, machine_code(instructions), multiplying)


def _pair(types: Operands) -> str:
    return f"{types.a or '?'} x {types.b or '?'}"


def explained(path: Path) -> str:
    """Say in lines what a file of machine code multiplies.

    Raises:
        InputError: it cannot be read, is too large, or is no code of a kernel.
    """
    found = code_of_file(path)
    names = ", ".join(found.functions[:_MAX_NAMES])
    if len(found.functions) > _MAX_NAMES:
        names += f" and {len(found.functions) - _MAX_NAMES} more"
    lines = [f"  {names}: {_answer(found.code)}"]
    lines += [f"  {count:6d}  {name}" for name, count in found.instructions.items()]
    return "\n".join(lines)


def _answer(code: MachineCode) -> str:
    if not code.products:
        fma = ""
        if code.fmas:
            fma = f" {code.fmas} multiply-adds in FP32 run on the other units."
        return f"no matrix instruction, so nothing runs on tensor cores.{fma}"
    classes = list(dict.fromkeys(types.precision.value for types, _ in code.products))
    if classes == ["below16"]:
        return f"multiplies below 16 bits: {code}; the format is in a descriptor"
    if classes == ["unknown"]:
        return f"multiplies what the instruction does not say: {code}"
    return f"multiplies {' and '.join(classes)}: {code}"


def _text(path: Path) -> str:
    with reading_file(path), open_regular(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(
            f"{path} is larger than {MAX_BYTES >> 20} MB.",
            "Give the code of one kernel.",
        )
    return data.decode("utf-8", "replace")


def _disassembled(path: Path) -> str:
    """Return a binary as SASS.

    Raises:
        InputError: there is no disassembler, or it cannot read the file.
    """
    _text(path)  # what is wrong with the file is said first
    program, options = _disassembler(path)
    try:
        done = subprocess.run(  # noqa: S603 - NVIDIA's own tool, on a file that the user named
            [program, *options, str(path.absolute())],
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"{path} cannot be disassembled: {type(error).__name__}.",
            f"Try it alone: {program} {' '.join(options)} {path}",
        ) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0][:200]
        raise InputError(
            f"{path} cannot be disassembled: {said or 'it is no binary for a GPU'}.",
            "Give a .cubin as a compiler left it, or the .ptx beside it.",
        )
    return done.stdout[:MAX_BYTES].decode("utf-8", "replace")


def _disassembler(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return NVIDIA's disassembler with its options: of the PATH, of CUDA, or Triton's own."""
    folders = [os.environ.get("PATH", "")]
    cuda = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    folders.append(f"{cuda}/bin")
    triton = find_spec("triton")
    if triton is not None and triton.submodule_search_locations:
        folders.append(f"{triton.submodule_search_locations[0]}/backends/nvidia/bin")
    for name, options in _DISASSEMBLERS.items():
        program = which(name, path=os.pathsep.join(folders))
        if program is not None:
            return program, options
    raise InputError(
        f"{path} is a binary, and neither nvdisasm nor cuobjdump is installed.",
        "Install NVIDIA's cuda-nvdisasm, or give the .ptx beside it.",
    )

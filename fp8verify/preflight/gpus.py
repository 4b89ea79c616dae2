"""The GPUs of this machine, by the tools that ship with their drivers, and what they train in."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from shutil import which
from typing import NamedTuple

import msgspec

from fp8verify.analysis.gpus import multiplies, part_of
from fp8verify.errors import UsageError
from fp8verify.terms import Precision

TIMEOUT_S = 15.0
NVIDIA_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
# ROCm has it since 6.0, older than which none runs a GPU that multiplies FP8.
AMD_QUERY = ("amd-smi", "static", "--asic", "--json")


class Gpu(NamedTuple):
    """One GPU; `capability` is "9.0" on NVIDIA and "gfx942" on AMD."""

    name: str
    capability: str | None = None


class Gpus(NamedTuple):
    """The GPUs found, or why there are none to see."""

    found: tuple[Gpu, ...] = ()
    why_none: str = ""


def answer_of(*command: str) -> tuple[int, str, str]:
    """Run a program; return its exit code, output and errors, or -1 and the reason."""
    try:
        done = subprocess.run(  # noqa: S603 - a tool of the driver, or a Python
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return -1, "", f"cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return -1, "", f"did not answer within {TIMEOUT_S:g} s"
    return done.returncode, done.stdout, done.stderr


def find_gpus() -> Gpus:
    """Ask the driver's tool, if there is one."""
    tool = next((tool for tool in (NVIDIA_QUERY, AMD_QUERY) if which(tool[0])), None)
    if tool is None:
        return Gpus(why_none="no nvidia-smi or amd-smi")
    code, out, err = answer_of(*tool)
    if code == -1:
        return Gpus(why_none=f"{tool[0]} {err}")
    said = [*out.strip().splitlines(), *err.strip().splitlines(), "-"]
    found = tuple(parse(tool[0], out)) if code == 0 else ()
    return Gpus(found, f"{tool[0]} says: {said[0][:200]}")


# NVIDIA's compute capabilities and AMD's targets, by the words of a name that tell the part.
_CAPABILITIES = (
    (r"G?B300", "10.3"), (r"G?B[12]00", "10.0"), (r"GB10|SPARK", "12.1"),
    (r"RTX PRO \d{4}.*|RTX 50[5-9]0.*", "12.0"), (r"G?H(?:100|200|800|20)\b.*", "9.0"),
    (r"L4|L40S?|L20|RTX 40[5-9]0.*|RTX \d{4} ADA.*", "8.9"), (r"A(?:100|800|30)\b.*", "8.0"),
    (r"A(?:2|10G?|16|40)|RTX A\d{4}.*|RTX 30[5-9]0.*", "8.6"), (r"T4|RTX 20[6-8]0.*", "7.5"),
    (r"V100\b.*", "7.0"), (r"MI35[05]X?", "gfx950"), (r"MI3(?:00[XA]?|08X|25X)", "gfx942"),
    (r"MI2[15]0X?", "gfx90a"), (r"MI100", "gfx908"),
)  # fmt: skip


def named_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a user names: "H200", "8x B200", "9.0", "sm_90" or "gfx942".

    Raises:
        UsageError: there is no such GPU among those that are known.
    """
    match = re.fullmatch(r"(?:(\d{1,4})\s?x\s?)?(\S.{0,80})", text.strip(), re.IGNORECASE)
    count, name = (int(match[1] or 1), match[2]) if match else (0, "")
    part = part_of(name)
    if number := re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)a?", name, re.IGNORECASE):
        found = Gpu("NVIDIA GPU", f"{number[1]}.{number[2]}")
    elif re.fullmatch(r"gfx[0-9a-f]{3,5}", name, re.IGNORECASE):
        found = Gpu("AMD GPU", name.lower())
    else:
        capability = next((cap for row, cap in _CAPABILITIES if re.fullmatch(row, part)), None)
        if not count or capability is None:
            raise UsageError(
                f"{text!r} is not a GPU that is known.",
                "Name it as its maker does, or by compute capability: --gpu H200, --gpu 9.0, "
                "--gpu gfx942.",
            )
        maker = "AMD Instinct" if capability.startswith("gfx") else "NVIDIA"
        found = Gpu(f"{maker} {part}", capability)
    return (found,) * count


def parse(tool: str, text: str) -> Iterator[Gpu]:
    """Parse a tool's output; empty if it is not valid."""
    if tool == NVIDIA_QUERY[0]:
        for row in csv.reader(text.splitlines(), skipinitialspace=True):
            if len(row) == 2:
                yield Gpu(*(cell.strip() for cell in row))
        return
    with suppress(msgspec.DecodeError):
        data = msgspec.json.decode(text, type=_AmdGpus | list[_AmdGpu])
        for gpu in data if isinstance(data, list) else data.gpu_data:
            target = gpu.asic.target_graphics_version.lower().partition(":")[0]
            if target.startswith("gfx"):
                yield Gpu(gpu.asic.market_name or "AMD GPU", target)


class _Asic(msgspec.Struct):
    target_graphics_version: str = ""
    market_name: str = ""


class _AmdGpu(msgspec.Struct):
    asic: _Asic = msgspec.field(default_factory=_Asic)


class _AmdGpus(msgspec.Struct):
    """The list of GPUs as ROCm 7 wraps it."""

    gpu_data: list[_AmdGpu] = []


class Format(NamedTuple):
    """A low-precision format: its name, the units that multiply it, what has them, in words.

    NVIDIA's units are not all: `first` is the first compute capability for which Transformer Engine
    has the format, `end` the first for which it no longer does (pytorch/quantization.py:164-184, TE
    d0067d0).
    """

    name: str
    precision: Precision
    needs: str
    first: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (99, 0)


FORMATS = {
    "fp8": Format(
        "FP8", Precision.FP8, "NVIDIA compute capability 8.9 or above, or AMD MI300 or above"
    ),
    "fp8_block": Format(
        "block-scaled FP8", Precision.FP8,
        "NVIDIA compute capability 9.0 or above, or AMD MI300 or above", (9, 0),
    ),
    "mxfp8": Format(
        "MXFP8", Precision.MXFP8,
        "NVIDIA compute capability 10.x, or AMD MI350 or above", (10, 0), (12, 0),
    ),
    "nvfp4": Format("NVFP4", Precision.NVFP4, "NVIDIA compute capability 10.0 or above"),
}  # fmt: skip


def trains_in(gpu: Gpu, fmt: str) -> bool | None:
    """Return whether a GPU can train in a format; None if not known."""
    wanted = FORMATS[fmt]
    name = f"{gpu.name} {gpu.capability or ''}"
    has_units = multiplies(name, gpu.capability, wanted.precision)
    major, _, minor = (gpu.capability or "").partition(".")
    if not has_units or not (major.isdecimal() and minor.isdecimal()):
        return has_units
    return wanted.first <= (int(major), int(minor)) < wanted.end

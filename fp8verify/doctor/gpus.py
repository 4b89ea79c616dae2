"""The GPUs of this machine, by the tools that ship with their drivers, and what they train in."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from shutil import which
from typing import NamedTuple

import msgspec

from fp8verify.analysis.gpus import multiplies
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
        return Gpus(why_none="neither nvidia-smi nor amd-smi is here")
    code, out, err = answer_of(*tool)
    if code == -1:
        return Gpus(why_none=f"{tool[0]} {err}")
    said = [*out.strip().splitlines(), *err.strip().splitlines(), "-"]
    found = tuple(parse(tool[0], out)) if code == 0 else ()
    return Gpus(found, f"{tool[0]} says: {said[0][:200]}")


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

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


class Query:
    """A program that is started at once, and whose output is read later."""

    def __init__(self, *command: str) -> None:
        self.program = command[0]
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a tool of the driver, or a Python
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._why = f"cannot be run: {error.strerror}"

    def answer(self) -> tuple[int, str, str]:
        """Wait, and return its exit code, output and errors; -1 and the reason without an end."""
        if self._process is None:
            return -1, "", self._why
        try:
            out, err = self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return -1, "", f"did not answer within {TIMEOUT_S:g} s"
        return self._process.returncode, out, err


def ask_for_gpus() -> Query | None:
    """Start the driver's tool; None where there is none."""
    tool = next((tool for tool in (NVIDIA_QUERY, AMD_QUERY) if which(tool[0])), None)
    return Query(*tool) if tool else None


def gpus_of(query: Query | None) -> Gpus:
    """Read what the tool says."""
    if query is None:
        return Gpus(why_none="neither nvidia-smi nor amd-smi is here")
    code, out, err = query.answer()
    found = tuple(parse(query.program, out)) if code == 0 else ()
    said = (out.strip() or err.strip()).splitlines()
    if found or code == -1:
        return Gpus(found, "" if found else f"{query.program} {err}")
    return Gpus(found, f"{query.program} says: {said[0][:200] if said else '-'}")


def parse(tool: str, text: str) -> Iterator[Gpu]:
    """Read what a tool printed; nothing where it is no answer."""
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
    """Return whether a GPU can train in a format; None where that is not known."""
    wanted = FORMATS[fmt]
    name = f"{gpu.name} {gpu.capability or ''}"
    has_units = multiplies(name, gpu.capability, wanted.precision)
    major, _, minor = (gpu.capability or "").partition(".")
    if not has_units or not (major.isdecimal() and minor.isdecimal()):
        return has_units
    return wanted.first <= (int(major), int(minor)) < wanted.end

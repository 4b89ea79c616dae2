"""The GPUs of this machine, by the tools that ship with their drivers, and what they train in."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from shutil import which
from typing import Any, NamedTuple

from fp8verify.analysis.gpus import multiplies
from fp8verify.report.model import Precision

TIMEOUT_S = 15.0
NVIDIA_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,compute_cap,driver_version,memory.total",
    "--format=csv,noheader",
)
_TOOLS = (
    NVIDIA_QUERY,
    ("rocm-smi", "--showproductname", "--showdriverversion", "--json"),
    ("amd-smi", "static", "--asic", "--driver", "--json"),
)


class Gpu(NamedTuple):
    """One GPU; `capability` is "9.0" on NVIDIA and "gfx942" on AMD."""

    name: str
    capability: str | None = None
    driver: str | None = None
    memory: str | None = None


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
    tool = next((tool for tool in _TOOLS if which(tool[0])), None)
    return Query(*tool) if tool else None


def gpus_of(query: Query | None) -> Gpus:
    """Read what the tool says."""
    if query is None:
        return Gpus(why_none="neither nvidia-smi, rocm-smi nor amd-smi is here")
    code, out, err = query.answer()
    found = tuple(parse(query.program, out)) if code == 0 else ()
    said = (out.strip() or err.strip()).splitlines()
    if found or code == -1:
        return Gpus(found, "" if found else f"{query.program} {err}")
    return Gpus(found, f"{query.program} says: {said[0][:200] if said else '-'}")


def parse(tool: str, text: str) -> Iterator[Gpu]:
    """Read what a tool printed; nothing where it is no answer."""
    if tool == "nvidia-smi":
        yield from parse_nvidia(text)
        return
    with suppress(ValueError):
        yield from parse_amd(json.loads(text[_json_start(text) :]))


def _json_start(text: str) -> int:
    """Return where JSON begins: rocm-smi prints a warning before it where a GPU sleeps."""
    return min((place for place in map(text.find, "{[") if place >= 0), default=0)


def parse_nvidia(text: str) -> Iterator[Gpu]:
    """Read the lines of `NVIDIA_QUERY`."""
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 4:
            name, capability, driver, memory = (cell.strip() for cell in row)
            yield Gpu(name, capability, driver, memory)


def parse_amd(data: Any) -> Iterator[Gpu]:
    """Read the JSON of rocm-smi or amd-smi: any object that names a gfx target is a GPU.

    rocm-smi gives {"card0": {…}, "system": {…}}, amd-smi a list, and from ROCm 7 on a list under
    "gpu_data".
    """
    if isinstance(data, dict) and isinstance(data.get("gpu_data"), list):
        data = data["gpu_data"]
    nodes = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    every = [dict(_leaves(node)) for node in nodes]
    shared = next((flat["driver version"] for flat in every if flat.get("driver version")), None)
    for flat in every:
        target = next((v for v in flat.values() if v.lower().startswith("gfx")), None)
        if target is not None:
            name = next((flat[key] for key in _AMD_NAMES if _says(flat.get(key))), "AMD GPU")
            driver = flat.get("driver.version") or shared
            yield Gpu(name, target.lower().partition(":")[0], driver)


_AMD_NAMES = ("asic.market_name", "card series", "device name", "card model")


def _says(value: str | None) -> bool:
    return bool(value) and value != "N/A"


def _leaves(node: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the texts of an object by their dotted keys in lower case."""
    if isinstance(node, dict) and depth < 6:
        for key, value in node.items():
            name = f"{path}{key}".lower()
            if isinstance(value, str):
                yield name, value
            else:
                yield from _leaves(value, f"{name}.", depth + 1)


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

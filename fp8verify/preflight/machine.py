"""This machine: its GPUs, by the tools of their drivers, and what the Python that trains has."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

from fp8verify.analysis.gpus import multiplies
from fp8verify.errors import UsageError
from fp8verify.preflight.tables import holds, parsed, table
from fp8verify.record.command import Python, active_pythons, choose_python
from fp8verify.terms import Precision

TIMEOUT_S = 15.0
NVIDIA_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
# ROCm has it since 6.0, older than which none runs a GPU that multiplies FP8.
AMD_QUERY = ("amd-smi", "static", "--asic", "--json")
_MARK = "fp8verify: "  # before each answer of a worker


class Gpu(NamedTuple):
    """One GPU; `capability` is "9.0" on NVIDIA and "gfx942" on AMD."""

    name: str
    capability: str | None = None


def answer_of(
    *command: str, given: str = "", timeout: float = TIMEOUT_S
) -> tuple[int, str, str]:
    """Run a program; return its exit code, output and errors, or -1 and the reason."""
    try:
        done = subprocess.run(  # noqa: S603 - a tool of the driver, or a Python
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        return -1, "", f"cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return -1, "", f"did not answer within {timeout:g} s"
    return done.returncode, done.stdout, done.stderr


def answers_in(out: str) -> list[dict[str, Any]]:
    """Return what a worker said, one JSON object a line; libraries print other lines.

    A line that was cut, as where the worker was killed, ends them.
    """
    answers = []
    for line in out.splitlines():
        if not line.startswith(_MARK):
            continue
        try:
            answers.append(json.loads(line.removeprefix(_MARK)))
        except ValueError:
            break
    return answers


def find_gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs by the driver's tool, if there is one, and why none is seen."""
    tool = next((tool for tool in (NVIDIA_QUERY, AMD_QUERY) if which(tool[0])), None)
    if tool is None:
        return (), "no nvidia-smi or amd-smi"
    code, out, err = answer_of(*tool)
    if code == -1:
        return (), f"{tool[0]} {err}"
    said = [*out.strip().splitlines(), *err.strip().splitlines(), "-"]
    found = tuple(parse(tool[0], out)) if code == 0 else ()
    return found, f"{tool[0]} says: {said[0][:200]}"


# NVIDIA's compute capabilities and AMD's targets, by a name without spaces, makers and forms.
_CAPABILITIES = (
    (r"G?B300", "10.3"), (r"G?B[12]00", "10.0"), (r"(?:DGX)?(?:GB10|SPARK)", "12.1"),
    (r"(?:RTX)?PRO\d{4}.*|(?:RTX)?50[5-9]0.*", "12.0"), (r"G?H(?:100|200|800|20)", "9.0"),
    (r"L4|L40S?|L20|(?:RTX)?40[5-9]0.*|(?:RTX)?\d{4}ADA", "8.9"), (r"A(?:100|800|30)X?", "8.0"),
    (r"A(?:2|10[GM]?|16|40)|(?:RTX)?A\d{4}|(?:RTX)?30[5-9]0.*", "8.6"),
    (r"(?:JETSON)?(?:AGX)?ORIN.*", "8.7"), (r"V100S?|TITANV", "7.0"),
    (r"T4G?|(?:RTX)?20[6-8]0.*|TITANRTX|GTX16\d0.*|QUADRORTX\d{4}", "7.5"),
    (r"P100", "6.0"), (r"P40?|GTX10\d0.*", "6.1"), (r"MI35[05]X?", "gfx950"),
    (r"MI3(?:00[XA]?|08X?|25X?)", "gfx942"), (r"MI2[15]0X?", "gfx90a"), (r"MI100", "gfx908"),
)  # fmt: skip
# Words of a name that tell its maker, its board, its memory or its cooling, not its part.
_FORM = (
    r"NVIDIA|AMD|GEFORCE|INSTINCT|TESLA|RADEON|GPUS?|GRAPHICS|CARD|\d+G(?:I?B)?|HBM\d?E?"
    r"|SXM\d?|PCI-?E|NVL\d*|OAM|LAPTOP|MOBILE|BLACKWELL|HOPPER|GENERATION|EDITION"
    r"|WORKSTATION|SERVER|MAX-?Q|CORES?|TENSOR"
)
_FORM_BEFORE = re.compile(r"^(?:NVIDIA|AMD|GEFORCE|INSTINCT|TESLA)+(?=\w)")
_FORM_BEHIND = re.compile(r"(?<=\w)(?:SXM\d?|PCI-?E|NVL\d*)$")
_COUNTED = re.compile(
    r"(?:(?P<before>[1-9]\d{0,3})\s?[x*]\s?)?(?P<name>\S.{0,80}?)"
    r"(?:(?<=[\d\s])[x*]\s?(?P<after>[1-9]\d{0,3}))?",
    re.IGNORECASE,
)


def _part_named(name: str) -> str:
    """Return the part that a name means, however it is written: "GeForce RTX 4090" is RTX4090."""
    kept = []
    for word in re.split(r"[\s\-_/(),]+", name.upper()):
        part = _FORM_BEHIND.sub("", _FORM_BEFORE.sub("", word))
        if not re.fullmatch(_FORM, part):
            kept.append(part)
    return "".join(kept)


def named_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a user names: "H200", "8x B200", "rtx-4090", "9.0" or "gfx942".

    Raises:
        UsageError: there is no such GPU among those that are known.
    """
    match = _COUNTED.fullmatch(text.strip())
    name = ""
    count = ""
    if match:
        name = match["name"]
        count = match["before"] or match["after"]
    part = _part_named(name)
    capability = _capability_of(part)
    if number := re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)a?", name, re.IGNORECASE):
        found = Gpu("NVIDIA GPU", f"{number[1]}.{number[2]}")
    elif re.fullmatch(r"gfx[0-9a-f]{3,5}", name, re.IGNORECASE):
        found = Gpu("AMD GPU", name.lower())
    elif capability:
        maker = "NVIDIA"
        if capability.startswith("gfx"):
            maker = "AMD Instinct"
        found = Gpu(f"{maker} {_spaced(part)}", capability)
    else:
        raise UsageError(
            f"{text!r} is not a GPU that is known.",
            "Name it as its maker does, or by compute capability: --gpu H200, --gpu 9.0, "
            "--gpu gfx942.",
        )
    return (found,) * int(count or 1)


def _capability_of(part: str) -> str | None:
    for row, capability in _CAPABILITIES:
        if re.fullmatch(row, part):
            return capability
    return None


def _spaced(part: str) -> str:
    """Return a part as its maker writes it: "RTX 4090", "RTX PRO 6000", "H100"."""
    words = re.sub(r"^(RTX|GTX|TITAN|QUADRO|DGX)(?=.)", r"\1 ", part)
    words = re.sub(r"^(?=[2-5]0[5-9]0)", "RTX ", words)
    return re.sub(r"(?<=\d)(?=ADA|TI|SUPER)|(?<=PRO)(?=\d)", " ", words)


def parse(tool: str, text: str) -> Iterator[Gpu]:
    """Parse a tool's output; empty if it is not valid."""
    if tool == NVIDIA_QUERY[0]:
        for row in csv.reader(text.splitlines(), skipinitialspace=True):
            if len(row) == 2:
                yield Gpu(*(cell.strip() for cell in row))
        return
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        data = json.loads(text)
        for gpu in (
            data["gpu_data"] if isinstance(data, dict) else data
        ):  # as ROCm 7 wraps it
            target = gpu["asic"]["target_graphics_version"].lower().partition(":")[0]
            if target.startswith("gfx"):
                yield Gpu(gpu["asic"].get("market_name") or "AMD GPU", target)


class Format(NamedTuple):
    """A low-precision format, as in rules.toml."""

    name: str
    precision: str
    needs: str
    capabilities: str = ""


@cache
def formats() -> dict[str, Format]:
    """Return the formats by the name that requests have for them."""
    return {name: Format(**row) for name, row in table("rules")["formats"].items()}


def trains_in(gpu: Gpu, fmt: str) -> bool | None:
    """Return whether a GPU can train in a format; None if not known."""
    wanted = formats()[fmt]
    name = f"{gpu.name} {gpu.capability or ''}"
    has_units = multiplies(name, gpu.capability, Precision[wanted.precision])
    is_known = has_units and wanted.capabilities and parsed(gpu.capability)
    if is_known:
        return holds(wanted.capabilities, gpu.capability)
    return has_units


# Read in the run's Python, isolated: what an import would find is in folders on its path.
_SCAN = """
import glob, os, sys, site
paths = os.environ.get("PYTHONPATH", "").split(os.pathsep) + sys.path
if sys.prefix == sys.base_prefix:
    paths.append(site.getusersitepackages())
for path in dict.fromkeys(filter(None, paths)):
    for found in glob.glob(os.path.join(glob.escape(path), "*-info")):
        stem, ending = os.path.splitext(os.path.basename(found))
        project, _, version = stem.partition("-")
        if ending in (".dist-info", ".egg-info"):
            print(project.lower().replace("-", "_"), version.split("-")[0])
    if os.path.exists(os.path.join(path, "torchao", "float8", "_inductor_patch.py")):
        print("torchao_inductor_patch", "1")
"""
_LAUNCHERS_BESIDE_PYTHON = re.compile(
    r"torchrun|accelerate|deepspeed|axolotl|llamafactory-cli|trl|lightning|fabric"
)


class RunPython(NamedTuple):
    """The Python of the run, and what it has.

    Attributes:
        program: its path.
        why: why it is taken for the run's.
        named: whether the user named it.
        versions: those of its packages by distribution.
        why_unknown: why they are not known, "" if they are.
    """

    program: str
    why: str
    named: bool
    versions: Mapping[str, str] = {}
    why_unknown: str = ""


def find_python(
    command: Sequence[str],
    environment: Mapping[str, str],
) -> RunPython:
    """Return the Python of the command, of the active environment, or of the PATH."""
    for word in command:
        name = Path(word).name
        found = which(word, path=environment.get("PATH"))
        if found and re.fullmatch(r"python[\d.]*", name):
            return RunPython(found, "of the command", named=True)
        if found and _LAUNCHERS_BESIDE_PYTHON.fullmatch(name):
            beside = Path(found).with_name("python")
            if beside.exists():
                return RunPython(str(beside), f"of {name}", named=True)
        if word.endswith(".py"):
            if command[0] == word:
                program, whose = choose_python(None, environment)  # as `run` does
                return RunPython(program, whose or "that runs fp8verify", named=True)
            break
    ours = Python(sys.executable, "that runs fp8verify")
    program, whose = next(active_pythons(environment), ours)
    return RunPython(program, whose or "", named=False)


def with_versions(python: RunPython) -> RunPython:
    """Run the Python, isolated, to look for its packages."""
    code, out, err = answer_of(python.program, "-I", "-c", _SCAN)
    if code:
        return python._replace(why_unknown=err if code == -1 else f"ended with {code}")
    return python._replace(versions=parse_scan(out))


def parse_scan(text: str) -> dict[str, str]:
    """Read the lines of the scan; the first folder on the path is the one that is imported."""
    rows = (line.partition(" ") for line in reversed(text.splitlines()))
    return {name: version for name, _, version in rows}


def built_for(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the CUDA or ROCm of the installed torch as versions of two more packages."""
    torch = versions.get("torch", "")
    if rocm := re.search(r"\+rocm([\d.]+)", torch):
        return {"torch_rocm": rocm[1]}
    if cuda := re.search(r"\+cu(\d+)(\d)$", torch):
        return {"torch_cuda": f"{cuda[1]}.{cuda[2]}"}
    cublas = (
        text for name, text in versions.items() if name.startswith("nvidia_cublas")
    )
    version = parsed(next(cublas, None))
    if version:
        return {"torch_cuda": f"{version.major}.{version.minor}"}
    return {}

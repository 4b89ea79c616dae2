"""The Python that trains, and the versions of what it has; torch is not imported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from fp8verify.preflight.gpus import answer_of
from fp8verify.record.command import Python, active_pythons, choose_python

# Distributions that decide whether FP8 runs, by the name of their metadata folder.
PACKAGES = (
    "torch", "triton", "torchao", "torchtitan", "transformer_engine", "transformer_engine_torch",
    "accelerate", "transformers", "trl", "axolotl", "llamafactory", "deepspeed", "lightning",
    "megatron_core", "msamp", "pytorch_triton", "pytorch_triton_rocm", "nvidia_cublas",
    "nvidia_cublas_cu12", "nvidia_cublas_cu11",
)  # fmt: skip
# Read in the run's Python, isolated: what an import would find is in folders on its path.
_SCAN = """
import os, sys, site
paths = os.environ.get("PYTHONPATH", "").split(os.pathsep) + sys.path
if sys.prefix == sys.base_prefix:
    paths.append(site.getusersitepackages())
print("python", sys.version.split()[0])
print("prefix", sys.prefix)
wanted = set(sys.argv[1:])
for path in dict.fromkeys(filter(None, paths)):
    try:
        names = os.listdir(path)
    except OSError:
        continue
    for name in names:
        stem, ending = os.path.splitext(name)
        project, _, version = stem.partition("-")
        if ending in (".dist-info", ".egg-info") and project.lower().replace("-", "_") in wanted:
            print(project.lower(), version.split("-")[0])
    if os.path.exists(os.path.join(path, "torchao", "float8", "_inductor_patch.py")):
        print("torchao_inductor_patch", "1")
"""
_LAUNCHERS_BESIDE_PYTHON = re.compile(
    r"^(?:torchrun|accelerate|deepspeed|axolotl|llamafactory-cli|trl|lightning|fabric)$"
)


class Interpreter(NamedTuple):
    """A Python: its program, why it is taken for the run's, and whether the user named it."""

    program: str
    why: str
    named: bool


class Installed(NamedTuple):
    """What a Python has: versions by distribution, or why that is not known."""

    interpreter: Interpreter
    versions: Mapping[str, str]
    why_unknown: str = ""


def find_interpreter(command: Sequence[str], environment: Mapping[str, str]) -> Interpreter:
    """Return the Python of the command, of the active environment, or of the PATH."""
    path = environment.get("PATH")
    for word in command:
        name = Path(word).name
        found = which(word, path=path)
        if found and re.fullmatch(r"python[\d.]*", name):
            return Interpreter(found, "of the command", named=True)
        if found and _LAUNCHERS_BESIDE_PYTHON.match(name):
            program = _shebang(found)
            if program is not None:
                return Interpreter(program, f"of {name}", named=True)
        if word.endswith(".py"):
            if command[0] == word:
                program, whose = choose_python(None, environment)  # as `run` does
                return Interpreter(program, whose or "that runs fp8verify", named=True)
            break
    ours = Python(sys.executable, "that runs fp8verify")
    active = next(active_pythons(environment), ours)
    return Interpreter(active.program, active.whose or "", named=False)


def _shebang(program: str) -> str | None:
    """Return the Python in a script's first line."""
    try:
        with Path(program).open("rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    match = re.match(rb"#!\s*(\S*python[\d.]*)\s*$", first)
    found = os.fsdecode(match[1]) if match else None
    return found if found and Path(found).exists() else None


def find_installed(interpreter: Interpreter) -> Installed:
    """Run the Python, isolated, to look for its packages."""
    code, out, err = answer_of(interpreter.program, "-I", "-c", _SCAN, *PACKAGES)
    if code:
        return Installed(interpreter, {}, err if code == -1 else f"ended with {code}")
    return Installed(interpreter, parse_scan(out))


def parse_scan(text: str) -> dict[str, str]:
    """Read the lines of the scan; the first folder on the path is the one that is imported."""
    versions: dict[str, str] = {}
    for line in text.splitlines():
        name, _, version = line.partition(" ")
        versions.setdefault(name, version)
    return versions


def parsed(text: str | None) -> Version | None:
    """Return a version, None for what is none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def built_for(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the CUDA or ROCm of the installed torch as versions of two more packages."""
    torch = versions.get("torch", "")
    rocm, cuda = re.search(r"\+rocm([\d.]+)", torch), re.search(r"\+cu(\d+)(\d)$", torch)
    if rocm:
        return {"torch_rocm": rocm[1]}
    if cuda:
        return {"torch_cuda": f"{cuda[1]}.{cuda[2]}"}
    for name in ("nvidia_cublas", "nvidia_cublas_cu12", "nvidia_cublas_cu11"):
        version = parsed(versions.get(name))
        if version is not None:
            return {"torch_cuda": f"{version.major}.{version.minor}"}
    return {}

"""Configurations in the form that each framework's own examples have, and facts about a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.launch import Facts, read_launch
from fp8verify.preflight.machine import Gpu, RunPython
from fp8verify.preflight.rules import judge

H100 = Gpu("NVIDIA H100 80GB HBM3", "9.0")
H20 = Gpu("NVIDIA H20", "9.0")
A100 = Gpu("NVIDIA A100-SXM4-80GB", "8.0")
B200 = Gpu("NVIDIA B200", "10.0")
RTX6000_PRO = Gpu("NVIDIA RTX PRO 6000 Blackwell", "12.0")
MI300X = Gpu("AMD Instinct MI300X", "gfx942")
GOOD = {
    "torch": "2.11.0+cu130",
    "triton": "3.6.0",
    "torchao": "0.18.0",
    "transformer_engine": "2.19.0",
    "accelerate": "1.15.0",
}

FOLDER = Path(__file__).parent / "doctor_configs"
# Sound configurations by name, in the form of each framework's own examples.
SOUND = {path.name: path.read_text() for path in sorted(FOLDER.iterdir())}
KEMPNERFORGE = SOUND["kempnerforge.toml"]
ACCELERATE = SOUND["accelerate.yaml"]
ACCELERATE_AO = SOUND["accelerate_ao.yaml"]
TORCHTITAN_TOML = SOUND["torchtitan.toml"]
MEGATRON_SH = SOUND["megatron.sh"]
AXOLOTL = SOUND["axolotl.yaml"]
LLAMA_FACTORY = SOUND["llama_factory.yaml"]
TRL = SOUND["trl.yaml"]
BRIDGE = SOUND["bridge.yaml"]


def write(folder: Path, name: str, text: str) -> str:
    """Write a configuration and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def facts_of(
    *configs: str,
    command: Sequence[str] = (),
    gpus: Sequence[Gpu] = (H100,),
    versions: Mapping[str, str] = GOOD,
    environment: Mapping[str, str] | None = None,
    require_gpu: bool = True,
) -> Facts:
    """Return facts about files on a machine that is written down, not looked at."""
    return read_launch(configs, command, environment or {})._replace(
        gpus=tuple(gpus),
        why_no_gpu="no tool is here",
        python=RunPython(
            "/venv/bin/python", "of the PATH", named=False, versions=versions
        ),
        require_gpu=require_gpu,
    )


def complaints(facts: Facts) -> dict[str, Check]:
    """Return what warns or fails, by code."""
    grave = (Status.WARN, Status.FAIL)
    return {check.code: check for check in judge(facts) if check.status in grave}

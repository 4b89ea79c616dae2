"""Rules on the machine: its GPUs and what is installed for the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.facts import Facts
from fp8verify.preflight.machine import FORMATS, Gpu, trains_in

_FALLBACKS = (
    "torchao raises (“torch._scaled_mm is only supported on CUDA devices with compute capability "
    ">= 9.0 or 8.9, or ROCm MI300+”), Transformer Engine raises, accelerate warns and trains in "
    "FP16"
)


def gpus(facts: Facts) -> Iterator[Check]:
    """Whether the GPUs multiply what is asked for; FP8 if nothing is."""
    found = facts.gpus.found
    if not found:
        message = (
            f"no GPU found ({facts.gpus.why_none}): GPU support not checked (--gpu H200 names one)"
        )
        hint = (
            "Run the doctor where the run will be, in its container and its Slurm step, or "
            "name the GPU: --gpu H200."
        )
        status = Status.FAIL if facts.require_gpu else Status.SKIPPED
        yield Check("no-gpu", status, message, hint)
        return
    wished = dict.fromkeys(ask.format for ask, _ in facts.asks)
    for fmt in wished or ("fp8",):
        yield _units(found, fmt)


def _units(found: tuple[Gpu, ...], fmt: str) -> Check:
    answers = [trains_in(gpu, fmt) for gpu in found]
    without = [gpu for gpu, answer in zip(found, answers, strict=True) if answer is False]
    source = "analysis/gpus.py; TE pytorch/quantization.py:151-184; torch aten ScaledBlas.cpp"
    if without:
        message = (
            f"{_count(without)} of {len(found)} GPUs cannot train in "
            f"{FORMATS[fmt].name} with Transformer Engine or torchao, which need "
            f"{FORMATS[fmt].needs}"
        )
        hint = f"Train in BF16 there, or on another GPU: {_FALLBACKS}."
        return Check("no-fp8-units", Status.FAIL, message, hint, source)
    if None in answers:
        message = f"the compute capability of {_count(list(found))} is not known"
        return Check("fp8-units", Status.SKIPPED, message, source=source)
    message = f"{_count(list(found))} can multiply {FORMATS[fmt].name}"
    return Check("fp8-units", Status.OK, message, source=source)


def _count(found: list[Gpu]) -> str:
    counts = Counter((gpu.name, gpu.capability) for gpu in found)
    return ", ".join(f"{n} x {name} ({cap or '?'})" for (name, cap), n in counts.items())


def torch_of_the_training(facts: Facts) -> Iterator[Check]:
    """Which Python was looked at, and whether it has torch, built for this machine."""
    python = facts.installed.interpreter
    label = f"{python.program} ({python.why})"
    version = facts.versions.get("torch")
    if version is None:
        why = facts.installed.why_unknown or "has no torch"
        message = f"{label} {why}: versions not checked"
        hint = (
            "Install torch there, or name the Python that trains."
            if python.named
            else "Activate the run's environment, or put its command after --."
        )
        status = Status.FAIL if python.named else Status.SKIPPED
        yield Check("torch-not-installed", status, message, hint)
    elif facts.gpus.found and version.endswith("+cpu"):
        message = f"torch {version} of {label} is built for CPUs"
        hint = "Install torch from the index of your CUDA version: pytorch.org/get-started."
        status = Status.FAIL if python.named else Status.WARN
        yield Check("torch-without-cuda", status, message, hint)
    else:
        names = ("torch", "triton", "torchao", "transformer_engine", "accelerate", "deepspeed")
        shown = [f"{name} {facts.versions[name]}" for name in names if name in facts.versions]
        yield Check("versions", Status.OK, f"{', '.join(shown)} in {label}")


# The package, its name and how to install it, by the backend that an ask names.
_LIBRARIES = {
    "te": ("transformer_engine", "Transformer Engine",
           "--no-build-isolation 'transformer_engine[pytorch]'"),
    "torchao": ("torchao", "torchao", "torchao"),
    "msamp": ("msamp", "MS-AMP", "msamp"),
}  # fmt: skip


def libraries(facts: Facts) -> Iterator[Check]:
    """Whether the library is there that multiplies in FP8 for the run."""
    if "torch" not in facts.versions:  # this is no Python that trains
        return
    backends = {ask.backend: path for ask, path in facts.asks if ask.backend in _LIBRARIES}
    for backend, path in backends.items():
        name, label, install = _LIBRARIES[backend or ""]
        if name not in facts.versions:
            message = f"{path} requests FP8 by {label}, and {_python(facts)} does not have it"
            hint = f"pip install {install}, or choose another backend."
            status = Status.FAIL if facts.installed.interpreter.named else Status.WARN
            yield Check(
                f"{backend}-not-installed", status, message, hint, "package metadata of that Python"
            )
    if not facts.asks and not {"torchao", "transformer_engine"} & set(facts.versions):
        message = f"{_python(facts)} has neither Transformer Engine nor torchao"
        hint = "Frameworks need one of them for FP8: pip install torchao."
        yield Check(
            "te-not-installed", Status.NOTE, message, hint, "package metadata of that Python"
        )


def _python(facts: Facts) -> str:
    return f"the Python {facts.installed.interpreter.program}"

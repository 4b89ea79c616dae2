"""Rules on the machine: its GPUs and what is installed for the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.machine import FORMATS, Gpu, RunPython, trains_in

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
    source = "analysis/gpus.py; TE pytorch/quantization.py:151-184; torch aten ScaledBlas.cpp"
    for fmt in dict.fromkeys(ask.format for ask, _ in facts.asks) or ("fp8",):
        answers = [trains_in(gpu, fmt) for gpu in found]
        without = [gpu for gpu, answer in zip(found, answers, strict=True) if answer is False]
        if without:
            message = f"{_count(without)} of {len(found)} GPUs {FORMATS[fmt].refused}"
            hint = f"Train in BF16 there, or on another GPU: {_FALLBACKS}."
            yield Check("no-fp8-units", Status.FAIL, message, hint, source)
        elif None in answers:
            message = f"the compute capability of {_count(found)} is not known"
            yield Check("fp8-units", Status.SKIPPED, message, source=source)
        else:
            message = f"{_count(found)} can multiply {FORMATS[fmt].name}"
            yield Check("fp8-units", Status.OK, message, source=source)


def _count(found: Iterable[Gpu]) -> str:
    counts = Counter((gpu.name, gpu.capability) for gpu in found)
    return ", ".join(f"{n} x {name} ({cap or '?'})" for (name, cap), n in counts.items())


def torch_of_the_run(facts: Facts) -> Iterator[Check]:
    """Which Python was looked at, and whether it has torch, built for this machine."""
    python = facts.python
    label = f"{python.program} ({python.why})"
    version = facts.versions.get("torch")
    if version is None:
        why = python.why_unknown or "has no torch"
        hint = "Activate the run's environment, or put its command after --."
        if python.named:
            hint = "Install torch there, or name the Python that trains."
        status = Status.FAIL if python.named else Status.SKIPPED
        message = f"{label} {why}: versions not checked"
        yield Check("torch-not-installed", status, message, hint)
    elif facts.gpus.found and version.endswith("+cpu"):
        message = f"torch {version} of {label} is built for CPUs"
        hint = "Install torch from the index of your CUDA version: pytorch.org/get-started."
        yield Check("torch-without-cuda", _fault_of(python), message, hint)
    else:
        names = ("torch", "triton", "torchao", "transformer_engine", "accelerate", "deepspeed")
        shown = [f"{name} {facts.versions[name]}" for name in names if name in facts.versions]
        yield Check("versions", Status.OK, f"{', '.join(shown)} in {label}")


def _fault_of(python: RunPython) -> Status:
    """Return how grave it is that a Python lacks something: it may not be the one that trains."""
    return Status.FAIL if python.named else Status.WARN


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
    python, source = facts.python, "package metadata of that Python"
    backends = {ask.backend: path for ask, path in facts.asks if ask.backend}
    for backend, path in backends.items():
        name, label, install = _LIBRARIES[backend]
        if name not in facts.versions:
            has_none = f"the Python {python.program} does not have it"
            message = f"{path} requests FP8 by {label}, and {has_none}"
            hint = f"pip install {install}, or choose another backend."
            yield Check(f"{backend}-not-installed", _fault_of(python), message, hint, source)
    if not facts.asks and not {"torchao", "transformer_engine"} & set(facts.versions):
        message = f"the Python {python.program} has neither Transformer Engine nor torchao"
        hint = "Frameworks need one of them for FP8: pip install torchao."
        yield Check("te-not-installed", Status.NOTE, message, hint, source)

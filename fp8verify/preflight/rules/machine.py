"""Rules on the machine: its GPUs and what is installed for the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.launch import Facts
from fp8verify.preflight.machine import Gpu, formats, trains_in
from fp8verify.preflight.rules.asked import may_request
from fp8verify.preflight.tables import said

_SHOWN_LIBRARIES = (
    "torch",
    "triton",
    "torchao",
    "transformer_engine",
    "accelerate",
    "deepspeed",
)


def gpus(facts: Facts) -> Iterator[Check]:
    """Whether the GPUs multiply what is asked for; FP8 if nothing is."""
    found = facts.gpus
    if not found:
        if facts.require_gpu:
            status = Status.FAIL
        else:
            status = Status.SKIPPED
        yield said("no-gpu", status=status, why=facts.why_no_gpu)
        return
    asked = [ask.format for ask, _ in facts.asks]
    for name in dict.fromkeys(asked) or ("fp8",):
        fmt = formats()[name]
        answers = [trains_in(gpu, name) for gpu in found]
        without = []
        for gpu, answer in zip(found, answers, strict=True):
            if answer is False:
                without.append(gpu)
        if without:
            told = {
                **fmt._asdict(),
                "without": _count(without),
                "count": len(found),
            }
            yield _without_units(name, facts, told)
        elif None in answers:
            yield said("fp8-units/unknown", gpus=_count(found))
        else:
            yield said("fp8-units", gpus=_count(found), format=fmt.name)


def _without_units(
    wanted: str,
    facts: Facts,
    told: Mapping[str, Any],
) -> Check:
    """Return what is said of GPUs without the units of a format: a fault where it is wanted."""
    has_read = facts.configs or facts.unread or facts.command
    if wanted != "fp8":
        return said("no-fp8-units/format", **told)
    if facts.asks or not has_read:
        return said("no-fp8-units", **told)
    if may_request(facts):
        return said("no-fp8-units/perhaps", **told)
    return said("no-fp8-units/unasked", **told)


def _count(found: Iterable[Gpu]) -> str:
    counts = Counter((gpu.name, gpu.capability) for gpu in found)
    shown = []
    for (name, capability), number in counts.items():
        shown.append(f"{number} x {name} ({capability or '?'})")
    return ", ".join(shown)


def torch_of_the_run(facts: Facts) -> Iterator[Check]:
    """Which Python was looked at, and whether it has torch, built for this machine."""
    python = facts.python
    label = f"{python.program} ({python.why})"
    version = facts.versions.get("torch")
    if version is None:
        key = f"torch-not-installed{'/named' if python.named else ''}"
        yield said(key, python=label, why=python.why_unknown or "has no torch")
    elif facts.gpus and version.endswith("+cpu"):
        yield said(
            "torch-without-cuda",
            status=_fault(facts),
            version=version,
            python=label,
        )
    else:
        shown = []
        for name in _SHOWN_LIBRARIES:
            if name in facts.versions:
                shown.append(f"{name} {facts.versions[name]}")
        yield said("versions", versions=", ".join(shown), python=label)


def _fault(facts: Facts) -> Status:
    """Return how grave it is that a Python lacks something: it may not be the one that trains."""
    if facts.python.named:
        return Status.FAIL
    return Status.WARN


def libraries(facts: Facts) -> Iterator[Check]:
    """Whether the library is there that multiplies in FP8 for the run."""
    if "torch" not in facts.versions:  # this is no Python that trains
        return
    python = facts.python.program
    backends = {ask.backend: path for ask, path in facts.asks if ask.backend}
    for backend, path in backends.items():
        if {"te": "transformer_engine"}.get(backend, backend) not in facts.versions:
            key = f"{backend}-not-installed"
            yield said(
                key,
                status=_fault(facts),
                asks=path,
                python=python,
            )
    if not facts.asks and not {"torchao", "transformer_engine"} & {*facts.versions}:
        yield said("te-not-installed/none", python=python)

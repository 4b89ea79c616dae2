"""Rules on the model of a dry start: which layers would run in FP8, which not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.analysis.gpus import peak_of
from fp8verify.capture.schema import ModuleRecord
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.facts import Facts, flops, layers_of
from fp8verify.preflight.rules.sizes import named
from fp8verify.text import counted, listed, shorten

_SHOWN = 6
_LOW = ("fp8", "fp4")
_EMULATED = ("fp8_emulated", "fp4_emulated")
_OFF = "fp8_module_off"  # Transformer Engine outside its autocast, as before every first step
_ALIGNMENT = 16
_BY_PREPARE = ("accelerate", "axolotl", "LLaMA-Factory")  # they convert after the optimizer


def model(facts: Facts) -> Iterator[Check]:
    """What the dry start found out about the model, if there was one."""
    dry = facts.model
    if dry is None:
        return
    for cause in dry.causes:
        message = f"the dry start failed; a known cause: {cause.cause}"
        yield Check("known-failure", Status.FAIL, message, cause.remedy, cause.evidence)
    if dry.why_none:
        message = f"no model was seen: {dry.why_none}"
        yield Check("model-not-seen", Status.WARN, message, dry.remedy, "dry start")
    else:
        yield from _conversion(dry.modules, facts)
        yield from _odd(dry.modules)


def _conversion(modules: Sequence[ModuleRecord], facts: Facts) -> Iterator[Check]:
    converted = [module for module in modules if module.state in _LOW]
    if emulated := [module for module in modules if module.state in _EMULATED]:
        message = (
            f"EMULATED: {counted(emulated, 'linear layer')} would only emulate FP8, with "
            f"every GEMM in high precision: {_named(emulated, modules)}"
        )
        hint = "Do not pass emulate=True where FP8 should run."
        source = "dry start; torchao float8/config.py, Float8LinearConfig.emulate"
        yield Check("fp8-emulated", Status.FAIL, message, hint, source)
    if off := [module for module in modules if module.state == _OFF]:
        message = (
            f"{counted(off, 'layer')} of Transformer Engine run in FP8 only within its "
            f"autocast, which a dry start does not reach: {_named(off, modules)}"
        )
        hint = "`fp8verify run` tells which of them do."
        yield Check("model-in-autocast", Status.SKIPPED, message, hint, "dry start")
        if not converted:
            return
    ask, framework = next(
        ((config.ask, config.framework) for config in facts.configs if config.ask), (None, "")
    )
    if ask is not None and framework in _BY_PREPARE and not converted:
        linears = [module for module in modules if module.kind == "linear"]
        if ask.backend == "te" or (ask.backend is None and "torchao" not in facts.versions):
            left = _after_a_stop(linears)
            if left and framework == "accelerate":
                yield _stopped(linears, left)
        else:  # accelerate/utils/ao.py leaves the first and the last linear layer out
            left = [module.fqn for module in (*linears[:1], *linears[-1:])]
        converted = [m for m in linears if m.fqn not in left and not _is_odd(m)]
    share = flops(layers_of(converted)) / (flops(layers_of(modules)) or 1)
    done = {module.fqn for module in converted}
    rest = _named([m for m in modules if m.fqn not in done], modules) or "none"
    low = bool(converted or emulated) or not facts.asks
    message = (
        f"{len(converted)} of {len(modules)} linear layers would run in FP8, {share:.0%} "
        f"of their FLOPs; in high precision: {rest}"
    )
    hint = (
        ""
        if low
        else "FP8 is asked for, and no layer was converted when the first optimizer was built. "
        "Check where the script converts, and what its filter accepts."
    )
    status = Status.OK if low and not emulated else Status.NOTE if low else Status.FAIL
    yield Check("model-layers", status, message, hint, "dry start")
    if converted:
        gpu = facts.gpus.found[0].name if facts.gpus.found else None
        peak = peak_of(gpu)
        ratio = peak.fp8 / peak.bf16 if peak is not None and peak.fp8 else 2.0
        where = gpu if peak is not None else "a GPU that multiplies FP8 twice as fast as BF16"
        message = (
            f"the linear layers' GEMMs can become {1 / (1 - share + share / ratio):.2f} "
            f"times as fast at most on {where}; the step gains less, by its attention, optimizer "
            "and casts"
        )
        source = "Amdahl's law over the peaks of analysis/gpus.py"
        yield Check("fp8-ceiling", Status.OK, message, source=source)


def _stopped(linears: Sequence[ModuleRecord], left: Sequence[str]) -> Check:
    first = next(module for module in linears if _is_odd(module))
    message = (
        f"accelerate stops converting at {first.fqn} ({first.in_features} -> "
        f"{first.out_features}): {listed(shorten(left, (m.fqn for m in linears)), _SHOWN)} "
        "stay in high precision"
    )
    hint = "Define the odd layer after the others in its module, or pad it to 16."
    source = "accelerate utils/transformer_engine.py:50 (return inside the loop; PR #1188)"
    return Check("accelerate-conversion-stops", Status.WARN, message, hint, source)


def _after_a_stop(linears: Sequence[ModuleRecord]) -> list[str]:
    """Return the sound layers that follow an odd-sized layer within its parent."""
    left: dict[str, None] = {}
    for place, odd in enumerate(linears):
        if _is_odd(odd):
            parent = odd.fqn.rpartition(".")[0]
            prefix = f"{parent}." if parent else ""
            for later in linears[place + 1 :]:
                if later.fqn.startswith(prefix) and not _is_odd(later):
                    left[later.fqn] = None
    return list(left)


def _odd(modules: Sequence[ModuleRecord]) -> Iterator[Check]:
    odd = layers_of(module for module in modules if _is_odd(module))
    if odd:
        message = f"layer dimensions not divisible by {_ALIGNMENT}: {named(odd)}"
        hint = "Such layers stay in high precision or raise: pad them, or leave them out."
        source = "dry start; torch aten ScaledBlas.cpp"
        yield Check("dims-not-multiple-of-16", Status.WARN, message, hint, source)


def _named(some: Sequence[ModuleRecord], modules: Sequence[ModuleRecord]) -> str:
    return listed(shorten((m.fqn for m in some), (m.fqn for m in modules)), _SHOWN)


def _is_odd(module: ModuleRecord) -> bool:
    sides = (module.in_features, module.out_features)
    return any(side is not None and side % _ALIGNMENT for side in sides)

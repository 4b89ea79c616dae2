"""Rules on a model: the sizes of its layers, and which of them a dry start saw in FP8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fp8verify.analysis.gpus import peak_of
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.frameworks import Ask, Config
from fp8verify.preflight.launch import DryModel, Facts
from fp8verify.preflight.layers import LayerSize, flops, layers_of, named
from fp8verify.text import counted, listed, shorten
from fp8verify.thresholds import SMALL_SIDE

if TYPE_CHECKING:
    from fp8verify.capture.schema import ModuleRecord

_MOSTLY = 0.5
_LOW = ("fp8", "fp4")
_EMULATED = ("fp8_emulated", "fp4_emulated")
_OFF = "fp8_module_off"  # Transformer Engine outside its autocast, as before every first step
_ALIGNMENT = 16
_BY_PREPARE = ("accelerate", "axolotl", "LLaMA-Factory")  # they convert after the optimizer


def small_sizes(facts: Facts) -> Iterator[Check]:
    """Layers so small that casts cost more than the faster GEMM gains."""
    for config in facts.configs:
        yield from _small(*layers_asked(config, facts), config)
    if facts.model is not None:
        ask = facts.asks[0][0] if facts.asks else Ask("fp8")
        yield from _small(ask, layers_of(facts.model.modules), None)


def _small(ask: Ask | None, layers: Sequence[LayerSize], config: Config | None) -> Iterator[Check]:
    recipe = ask.recipe if ask else None
    small = [layer for layer in layers if _too_small(layer.n, layer.k, recipe)]
    if small:
        share = flops(small) / flops(layers)
        message = f"too small to pay, {share:.0%} of the linear layers' FLOPs: {named(small)}"
        hint = (
            "Leave them in BF16 (filter_fqns, auto_filter_small_kn, module_filter_fn), or "
            "measure them here: fp8verify doctor --measure."
        )
        source = "torchao float8_linear_utils.py, _auto_filter_for_recipe (H100); analysis/gpus.py"
        status = Status.WARN if share > _MOSTLY else Status.NOTE
        place = (config.path, _line_of_sizes(config)) if config else ()
        yield Check("dims-too-small-to-pay", status, message, hint, source, *place)


def layers_asked(config: Config, facts: Facts) -> tuple[Ask | None, tuple[LayerSize, ...]]:
    """Return a configuration's request, or that of others for its sizes, and its layers."""
    if config.ask is None and config.row.get("only_sizes") and config.layers and facts.asks:
        return facts.asks[0][0], config.layers
    return config.ask, config.layers if config.ask else ()


def _line_of_sizes(config: Config) -> int | None:
    names = ("model.dim", "hidden-size", "hidden_size")
    return next((line for name in names if (line := config.line_of(name))), None)


def _too_small(n: int, k: int, recipe: str | None) -> bool:
    """Return whether a layer with N outputs and K inputs is expected to be slower in FP8.

    torchao's thresholds for its own recipes (float8_linear_utils.py, `_auto_filter_for_recipe`,
    measured on H100), ours for all others.
    """
    if recipe in ("rowwise", "rowwise_with_gw_hp"):
        return n <= 2048 or k <= 1024 or (n <= 4096 and k <= 2048)
    if recipe == "tensorwise":
        return (k <= 4096 and n <= 1024) or min(n, k) < SMALL_SIDE
    return min(n, k) < SMALL_SIDE


def model(facts: Facts) -> Iterator[Check]:
    """What the dry start found out about the model, if there was one."""
    dry = facts.model or DryModel()
    for cause in dry.causes:
        message = f"the dry start failed; a known cause: {cause.cause}"
        yield Check("known-failure", Status.FAIL, message, cause.remedy, cause.evidence)
    if dry.why_none:
        message = f"no model was seen: {dry.why_none}"
        yield Check("model-not-seen", Status.WARN, message, dry.remedy, "dry start")
    yield from _states(dry.modules)
    yield from _conversion(dry.modules, facts)
    if odd := layers_of(filter(_is_odd, dry.modules)):
        message = f"layer dimensions not divisible by {_ALIGNMENT}: {named(odd)}"
        hint = "Such layers stay in high precision or raise: pad them, or leave them out."
        source = "dry start; torch aten ScaledBlas.cpp"
        yield Check("dims-not-multiple-of-16", Status.WARN, message, hint, source)


def _states(modules: Sequence[ModuleRecord]) -> Iterator[Check]:
    """Yield which layers have classes for FP8 and no FP8, or none yet."""
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


def _conversion(modules: Sequence[ModuleRecord], facts: Facts) -> Iterator[Check]:
    """Yield how much of a model would run in FP8, and what that can gain at most."""
    converted = [module for module in modules if module.state in _LOW]
    if not modules or (not converted and any(module.state == _OFF for module in modules)):
        return
    ask, framework = next(((c.ask, c.framework) for c in facts.configs if c.ask), (None, ""))
    if ask is not None and framework in _BY_PREPARE and not converted:
        linears = [module for module in modules if module.kind == "linear"]
        left = [module.fqn for module in (*linears[:1], *linears[-1:])]  # accelerate/utils/ao.py
        if ask.backend == "te" or (ask.backend is None and "torchao" not in facts.versions):
            left = _after_a_stop(linears)
            if left and framework == "accelerate":
                yield _stopped(linears, left)
        converted = [m for m in linears if m.fqn not in left and not _is_odd(m)]
    share = flops(layers_of(converted)) / (flops(layers_of(modules)) or 1)
    done = {module.fqn for module in converted}
    rest = _named([module for module in modules if module.fqn not in done], modules) or "none"
    message = (
        f"{len(converted)} of {len(modules)} linear layers would run in FP8, {share:.0%} "
        f"of their FLOPs; in high precision: {rest}"
    )
    hint, status = "", Status.OK
    if any(module.state in _EMULATED for module in modules):
        status = Status.NOTE
    elif facts.asks and not converted:
        hint = (
            "FP8 is asked for, and no layer was converted when the first optimizer was built. "
            "Check where the script converts, and what its filter accepts."
        )
        status = Status.FAIL
    yield Check("model-layers", status, message, hint, "dry start")
    if converted:
        yield _ceiling(share, facts)


def _ceiling(share: float, facts: Facts) -> Check:
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
    return Check("fp8-ceiling", Status.OK, message, source=source)


def _stopped(linears: Sequence[ModuleRecord], left: Sequence[str]) -> Check:
    first = next(module for module in linears if _is_odd(module))
    message = (
        f"accelerate stops converting at {first.fqn} ({first.in_features} -> "
        f"{first.out_features}): {listed(shorten(left, (m.fqn for m in linears)), 6)} "
        "stay in high precision"
    )
    hint = "Define the odd layer after the others in its module, or pad it to 16."
    source = "accelerate utils/transformer_engine.py:50 (return inside the loop; PR #1188)"
    return Check("accelerate-conversion-stops", Status.WARN, message, hint, source)


def _after_a_stop(linears: Sequence[ModuleRecord]) -> list[str]:
    """Return the sound layers that follow an odd-sized layer within its parent."""
    left: list[str] = []
    parents: list[str] = []
    for module in linears:
        if _is_odd(module):
            parent = module.fqn.rpartition(".")[0]
            parents.append(f"{parent}." if parent else "")
        elif module.fqn.startswith(tuple(parents)):
            left.append(module.fqn)
    return left


def _named(some: Sequence[ModuleRecord], modules: Sequence[ModuleRecord]) -> str:
    return listed(shorten((m.fqn for m in some), (m.fqn for m in modules)), 6)


def _is_odd(module: ModuleRecord) -> bool:
    sides = (module.in_features, module.out_features)
    return any(side is not None and side % _ALIGNMENT for side in sides)

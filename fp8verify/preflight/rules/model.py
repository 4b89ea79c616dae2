"""Rules on a model: the sizes of its layers, and which of them a dry start saw in FP8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

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
_ALIGNMENT, _SHOWN = 16, 6
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
    if dry.modules:
        yield from _precisions(dry.modules, facts)
    if odd := layers_of(filter(_is_odd, dry.modules)):
        message = f"layer dimensions not divisible by {_ALIGNMENT}: {named(odd)}"
        hint = (
            "Such layers stay in high precision or raise: pad them, or leave them out. With "
            "Transformer Engine accelerate leaves out those after them in their module, too."
        )
        source = "dry start; torch aten ScaledBlas.cpp; accelerate utils/transformer_engine.py:50"
        yield Check("dims-not-multiple-of-16", Status.WARN, message, hint, source)


def _precisions(modules: Sequence[ModuleRecord], facts: Facts) -> Iterator[Check]:
    """Yield which layers of a model would run in FP8, which not, and which are not known yet."""
    converted = [module for module in modules if module.state in _LOW]
    emulated = [module for module in modules if module.state in _EMULATED]
    off = [module for module in modules if module.state == _OFF]
    framework = next((config.framework for config in facts.configs if config.ask), "")
    tells = "`fp8verify run` tells which of them do."
    if emulated:
        message = (
            f"EMULATED: {counted(emulated, 'linear layer')} would only emulate FP8, with "
            f"every GEMM in high precision: {_named(emulated, modules)}"
        )
        hint = "Do not pass emulate=True where FP8 should run."
        source = "dry start; torchao float8/config.py, Float8LinearConfig.emulate"
        yield Check("fp8-emulated", Status.FAIL, message, hint, source)
    if off:
        message = (
            f"{counted(off, 'layer')} of Transformer Engine run in FP8 only within its "
            f"autocast, which a dry start does not reach: {_named(off, modules)}"
        )
        yield Check("model-in-autocast", Status.SKIPPED, message, tells, "dry start")
    is_later = framework in _BY_PREPARE and not (converted or emulated or off)
    if is_later:
        message = (
            f"{framework} converts layers after the optimizer is built, in accelerate's "
            f"prepare(), which a dry start does not reach: {_named(modules, modules)}"
        )
        yield Check("model-converted-later", Status.SKIPPED, message, tells, "dry start")
    if (off and not converted) or is_later:
        return
    share = flops(layers_of(converted)) / (flops(layers_of(modules)) or 1)
    done = {module.fqn for module in converted}
    rest = _named([module for module in modules if module.fqn not in done], modules) or "none"
    message = (
        f"{len(converted)} of {len(modules)} linear layers would run in FP8, {share:.0%} "
        f"of their FLOPs; in high precision: {rest}"
    )
    hint, status = "", Status.NOTE if emulated else Status.OK
    if facts.asks and not (converted or emulated):
        hint = (
            "FP8 is asked for, and no layer was converted when the first optimizer was built. "
            "Check where the script converts, and what its filter accepts."
        )
        status = Status.FAIL
    yield Check("model-layers", status, message, hint, "dry start")


def _named(some: Sequence[ModuleRecord], modules: Sequence[ModuleRecord]) -> str:
    return listed(shorten((m.fqn for m in some), (m.fqn for m in modules)), _SHOWN)


def _is_odd(module: ModuleRecord) -> bool:
    sides = (module.in_features, module.out_features)
    return any(side is not None and side % _ALIGNMENT for side in sides)

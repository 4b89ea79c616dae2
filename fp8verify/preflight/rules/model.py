"""Rules on a model: the sizes of its layers, and which of them a dry start saw in FP8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fp8verify.capture.schema import ModuleRecord
from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.frameworks import Ask, Config
from fp8verify.preflight.launch import DryModel, Facts
from fp8verify.preflight.layers import LayerSize, flops, layers_of, named
from fp8verify.preflight.tables import said
from fp8verify.text import counted, listed, shorten
from fp8verify.thresholds import FP8_SIDE, SMALL_SIDE

_MOSTLY = 0.5
_LOW = ("fp8", "fp4")
_EMULATED = ("fp8_emulated", "fp4_emulated")
_OFF = "fp8_module_off"  # Transformer Engine outside its autocast, as before every first step
_SHOWN = 6
# They convert after the optimizer.
_BY_PREPARE = ("accelerate", "axolotl", "LLaMA-Factory")


def small_sizes(facts: Facts) -> Iterator[Check]:
    """Layers so small that casts cost more than the faster GEMM gains."""
    for config in facts.configs:
        ask, layers = layers_asked(config, facts)
        path, line = _place_of_sizes(config)
        yield from _small(ask, layers, path, line)
    if facts.model is not None:
        ask = None
        if facts.asks:
            ask = facts.asks[0][0]
        yield from _small(ask, layers_of(facts.model.modules))


def _small(
    ask: Ask | None,
    layers: Sequence[LayerSize],
    path: str | None = None,
    line: int | None = None,
) -> Iterator[Check]:
    recipe = ask.recipe if ask else None
    small = []
    for layer in layers:
        if _too_small(layer.n, layer.k, recipe):
            small.append(layer)
    if not small:
        return
    share = flops(small) / flops(layers)
    status = Status.NOTE
    if share > _MOSTLY:
        status = Status.WARN
    yield said(
        "dims-too-small-to-pay",
        path,
        line,
        status,
        share=share,
        layers=named(small),
    )


def layers_asked(
    config: Config, facts: Facts
) -> tuple[Ask | None, tuple[LayerSize, ...]]:
    """Return a configuration's request, or that of others for its sizes, and what it converts."""
    sizes = config.row.get("sizes", {})
    high = sizes.get("high", ())
    layers = tuple(layer for layer in config.layers if layer.kind not in high)
    has_sizes_alone = config.row.get("only_sizes") and layers
    if config.ask is not None:
        return config.ask, layers
    if has_sizes_alone and facts.asks:
        first_ask, _ = facts.asks[0]
        return first_ask, layers
    return None, ()


def _place_of_sizes(config: Config) -> tuple[str | None, int | None]:
    lines = map(config.line_of, ("model.dim", "hidden-size", "hidden_size"))
    return config.path, next(filter(None, lines), None)


def _too_small(
    n: int,
    k: int,
    recipe: str | None,
) -> bool:
    """Return whether a layer with N outputs and K inputs is expected to be slower in FP8.

    torchao's thresholds for its own recipes (float8_linear_utils.py, `_auto_filter_for_recipe`,
    measured on H100), ours for all others.
    """
    if recipe in ("rowwise", "rowwise_with_gw_hp"):
        is_narrow = n <= 2048 or k <= 1024
        is_small = n <= 4096 and k <= 2048
        return is_narrow or is_small
    has_small_side = min(n, k) < SMALL_SIDE
    if recipe == "tensorwise":
        has_few_outputs = k <= 4096 and n <= 1024
        return has_few_outputs or has_small_side
    return has_small_side


def model(facts: Facts) -> Iterator[Check]:
    """What the dry start found out about the model, if there was one."""
    dry = facts.model or DryModel()
    for row in dry.causes:
        yield said(
            "known-failure",
            cause=row.cause,
            remedy=row.remedy,
            evidence=row.evidence,
        )
    if dry.why_none:
        yield said("model-not-seen", why=dry.why_none, remedy=dry.remedy)
    if dry.modules:
        yield from _precisions(dry.modules, facts)
    layers = layers_of(dry.modules)
    odd = []
    for layer in layers:
        if layer.n % FP8_SIDE or layer.k % FP8_SIDE:
            odd.append(layer)
    if odd:
        yield said("dims-not-multiple-of-16", layers=named(odd))


def _precisions(
    modules: Sequence[ModuleRecord],
    facts: Facts,
) -> Iterator[Check]:
    """Yield which layers of a model would run in FP8, which not, and which are not known yet."""
    converted = [module for module in modules if module.state in _LOW]
    emulated = [module for module in modules if module.state in _EMULATED]
    off = [module for module in modules if module.state == _OFF]
    rest = [module for module in modules if module.state not in _LOW]
    framework = _asking_framework(facts)
    if emulated:
        count = counted(emulated, "linear layer")
        yield said("fp8-emulated", count=count, layers=_named(emulated, modules))
    if off:
        count = counted(off, "layer")
        yield said("model-in-autocast", count=count, layers=_named(off, modules))
    is_later = framework in _BY_PREPARE and not (converted or emulated or off)
    if is_later:
        layers = _named(modules, modules)
        yield said("model-converted-later", framework=framework, layers=layers)
    if (off and not converted) or is_later:
        return
    converted_flops = flops(layers_of(converted))
    all_flops = flops(layers_of(modules))
    values: dict[str, Any] = {
        "count": len(converted),
        "all": len(modules),
        "share": converted_flops / (all_flops or 1),
        "rest": _named(rest, modules) or "none",
    }
    if facts.asks and not (converted or emulated):
        yield said("model-layers/none", **values)
    elif emulated or not converted:
        # None of the layers in FP8 is not "ok", even where nothing asked for it.
        yield said("model-layers", status=Status.NOTE, **values)
    else:
        yield said("model-layers", **values)


def _asking_framework(facts: Facts) -> str:
    """Return the first framework whose configuration asks for low precision, or nothing."""
    for config in facts.configs:
        if config.ask:
            return config.framework
    return ""


def _named(
    some: Sequence[ModuleRecord],
    modules: Sequence[ModuleRecord],
) -> str:
    names = [module.fqn for module in some]
    all_names = [module.fqn for module in modules]
    return listed(shorten(names, all_names), _SHOWN)

"""Rules on the sizes of a model, from its configuration or its dry start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8verify.preflight.checks import Check, Status
from fp8verify.preflight.facts import Ask, Config, Facts, LayerSize, flops, layers_of
from fp8verify.preflight.frameworks import framework_of
from fp8verify.text import listed
from fp8verify.thresholds import SMALL_SIDE

_MOSTLY = 0.5
_SHOWN = 6


def small_sizes(facts: Facts) -> Iterator[Check]:
    """Layers so small that casts cost more than the faster GEMM gains."""
    models: list[tuple[Config | None, Ask, tuple[LayerSize, ...]]] = [*sized(facts)]
    if facts.model is not None:
        ask = facts.asks[0][0] if facts.asks else Ask("fp8")
        models.append((None, ask, layers_of(facts.model.modules)))
    for config, ask, layers in models:
        small = [layer for layer in layers if _too_small(layer.n, layer.k, ask.recipe)]
        if not small:
            continue
        share = flops(small) / flops(layers)
        message = f"too small to pay, {share:.0%} of the linear layers' FLOPs: {named(small)}"
        hint = (
            "Leave them in BF16 (filter_fqns, auto_filter_small_kn, module_filter_fn), or "
            "measure them here: fp8verify doctor --measure."
        )
        source = "torchao float8_linear_utils.py, _auto_filter_for_recipe (H100); analysis/gpus.py"
        status = Status.WARN if share > _MOSTLY else Status.NOTE
        yield Check(
            "dims-too-small-to-pay",
            status,
            message,
            hint,
            source,
            config.path if config else None,
            _line(config) if config else None,
        )


def expected_share(facts: Facts) -> Iterator[Check]:
    """The share of the linear layers' FLOPs that the configuration converts to FP8."""
    for config in facts.configs:
        share = fp8_share(config)
        if config.ask is not None and share is not None:
            high = framework_of(config).get("sizes", {}).get("high", ())
            has_head = any(part.kind == "head" for part in config.layers)
            but = "" if has_head or "head" not in high else ", without the output head's,"
            message = (
                f"about {share:.0%} of the linear layers' GEMM FLOPs{but} are expected in "
                "FP8" + (f"; in high precision: {', '.join(high)}" if share < 1 and high else "")
            )
            hint = "`fp8verify run --min-share` checks it."
            source = "the sizes in this file; what its framework converts"
            yield Check(
                "fp8-share-expected", Status.OK, message, hint, source, config.path, _line(config)
            )


def fp8_share(config: Config) -> float | None:
    """Return the share of the linear layers' FLOPs that runs in FP8, 0 to 1; None if unknown."""
    layers = config.layers
    if not layers:
        return None
    low = [part for part in _converted(config) if not (part.n % 16 or part.k % 16)]
    return flops(low) / flops(layers)


def sized(facts: Facts) -> Iterator[tuple[Config, Ask, tuple[LayerSize, ...]]]:
    """Yield each FP8 request with its layers, from its file or the started model."""
    asks = [ask for ask, _ in facts.asks]
    for config in facts.configs:
        ask = config.ask
        if ask is None and framework_of(config).get("only_sizes") and asks:
            ask = asks[0]
        layers = _converted(config)
        if ask is not None and layers:
            yield config, ask, layers


def _converted(config: Config) -> tuple[LayerSize, ...]:
    """Return the layers that the framework converts; `high` names the others."""
    high = framework_of(config).get("sizes", {}).get("high", ())
    return tuple(part for part in config.layers if part.kind not in high)


def named(layers: Sequence[LayerSize]) -> str:
    """Return layers as a message names them: K -> N."""
    return listed([f"{layer.name} {layer.k} -> {layer.n}" for layer in layers], _SHOWN)


def _line(config: Config) -> int | None:
    names = (config.origins.get(name, name) for name in ("model.dim", "hidden-size", "hidden_size"))
    return next((config.lines[name] for name in names if name in config.lines), None)


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

"""Rules on the sizes of the model that a configuration names."""

from __future__ import annotations

from collections.abc import Iterator

from fp8verify.doctor.checks import Check, Status
from fp8verify.doctor.facts import Facts
from fp8verify.doctor.payoff import too_small
from fp8verify.doctor.rules.keys import place
from fp8verify.doctor.training import Ask, Config, LayerSize

ALIGNMENT = 16
NVFP4_ALIGNMENT = 128
_MOSTLY = 0.5


def odd_sizes(facts: Facts) -> Iterator[Check]:
    """Layers that cannot be multiplied in FP8, because a side is not a multiple of 16."""
    for config, ask, layers in _sized(facts):
        side = NVFP4_ALIGNMENT if ask.format == "nvfp4" else ALIGNMENT
        odd = [layer for layer in layers if layer.n % side or layer.k % side]
        if odd:
            effect = (
                "Transformer Engine raises “FP8 execution requires …”"
                if ask.backend == "te"
                else "torchao's filters leave them in BF16, or torch._scaled_mm raises"
            )
            yield Check(
                code="dims-not-multiple-of-16",
                status=Status.WARN,
                message=f"sides not divisible by {side}: {_named(odd)}; {effect}",
                hint=f"Choose sizes that {side} divides, after the split over "
                f"{config.training.tensor_parallel} GPUs too."
                if config.training.tensor_parallel > 1
                else f"Choose sizes that {side} divides, or pad the weights.",
                source="torch aten ScaledBlas.cpp; TE pytorch/utils.py:614; torchtitan nvfp4.py",
                **place(config, _size_key(config)),
            )


def small_sizes(facts: Facts) -> Iterator[Check]:
    """Layers so small that casting costs more than the faster product gains."""
    for config, ask, layers in _sized(facts):
        small = [layer for layer in layers if too_small(layer.n, layer.k, ask.recipe)]
        if not small:
            continue
        flops = sum(layer.n * layer.k * layer.modules for layer in layers)
        share = sum(layer.n * layer.k * layer.modules for layer in small) / flops
        yield Check(
            code="dims-too-small-to-pay",
            status=Status.WARN if share > _MOSTLY else Status.OK,
            message=f"too small to pay, {share:.0%} of the linear layers' FLOPs: {_named(small)}",
            hint="Leave them in BF16 (filter_fqns, auto_filter_small_kn, module_filter_fn), or "
            "measure them here: fp8verify doctor --measure.",
            source="torchao float8_linear_utils.py, _auto_filter_for_recipe (H100); our SMALL_SIDE",
            **place(config, _size_key(config)),
        )


def _sized(facts: Facts) -> Iterator[tuple[Config, Ask, tuple[LayerSize, ...]]]:
    """Yield what asks for FP8 with the sizes that it, or a model's file beside it, names."""
    asks = [ask for ask, _ in facts.asks]
    for config in facts.configs:
        ask = config.training.ask
        if ask is None and config.framework == "a Hugging Face model" and asks:
            ask = asks[0]
        if ask is not None and config.training.layers:
            yield config, ask, config.training.layers


def _named(layers: list[LayerSize]) -> str:
    return ", ".join(f"{layer.name} {layer.k} -> {layer.n}" for layer in layers)


def _size_key(config: Config) -> str:
    names = ("model.dim", "hidden-size", "MODEL_ARGS.--hidden-size", "model.hidden_size")
    return next((name for name in names if name in config.values), "hidden_size")

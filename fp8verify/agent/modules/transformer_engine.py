"""What a module of Transformer Engine computes: its recipe as configured, leg by leg.

Source: transformer_engine/common/recipe/__init__.py and pytorch/module/base.py of 2.20; attributes
that older versions lack have defaults. The recipes themselves read the environment
(NVTE_BACKWARD_OVERRIDE and the like), as defaults of their fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .promise import HIGH, LEGS, Promise, every_leg, state_of

_FORMATS = {
    "DelayedScaling": "fp8",
    "Float8CurrentScaling": "fp8",
    "Float8BlockScaling": "fp8_block",
    "MXFP8BlockScaling": "mxfp8",
    "NVFP4BlockScaling": "nvfp4",
}
# pytorch/tensor/*_tensor.py and custom_recipes: what a CustomRecipe's factory makes.
_QUANTIZERS = {
    "Float8Quantizer": "fp8",
    "Float8CurrentScalingQuantizer": "fp8",
    "CurrentScalingQuantizerRef": "fp8",
    "Float8BlockQuantizer": "fp8_block",
    "MXFP8Quantizer": "mxfp8",
    "NVFP4Quantizer": "nvfp4",
    "NVFP4QuantizerRef": "nvfp4",
    "IdentityQuantizer": HIGH,
    "NoneType": HIGH,
}
# The operands of each GEMM by the direction of the tensor that it reads: pytorch/tensor/
# hybrid_tensor.py. Quantizers stand as input, weight, output and as grad_output, grad_input.
_OPERANDS = {
    "fprop": (("scaling_fwd", 0, "rowwise"), ("scaling_fwd", 1, "rowwise")),
    "dgrad": (("scaling_bwd", 0, "rowwise"), ("scaling_fwd", 1, "columnwise")),
    "wgrad": (("scaling_bwd", 0, "columnwise"), ("scaling_fwd", 0, "columnwise")),
}


def promise_of_module(module: Any) -> Promise:
    """Return what the last forward pass of a module saw: outside autocast it is off."""
    if not getattr(module, "fp8", False):
        return Promise("fp8_module_off")
    recipe = getattr(module, "fp8_meta", {}).get("recipe")
    name = _recipe_class(recipe)
    formats = _formats(module, recipe, name)
    return Promise(
        state_of(formats) if formats else "fp8",
        name,
        formats,
        _scaling(recipe, name),
        _gradients(recipe),
    )


def _recipe_class(recipe: Any) -> str:
    """Return the name of the recipe's class, or of the library's class that it derives from."""
    names = [cls.__name__ for cls in type(recipe).__mro__]
    return next((name for name in names if name in _FORMATS), names[0])


def _formats(module: Any, recipe: Any, name: str) -> dict[str, str]:
    known = _FORMATS.get(name)
    formats = every_leg(known) if known is not None else _custom_formats(module)
    return {leg: HIGH if leg in _high_legs(recipe) else found for leg, found in formats.items()}


def _high_legs(recipe: Any) -> frozenset[str]:
    """Return the legs that the recipe computes in high precision whatever the quantizers are."""
    if getattr(recipe, "backward_override", None) is not None:
        return frozenset(("dgrad", "wgrad"))
    # Before 2.10 (fprop, dgrad, wgrad); Megatron-LM's --no-fp8-wgrad sets the last one.
    override = tuple(getattr(recipe, "override_linear_precision", None) or ())
    return frozenset(leg for leg, high in zip(LEGS, override) if high)  # noqa: B905 - a newer one may be longer


def _custom_formats(module: Any) -> dict[str, str]:
    """Return the formats by the quantizers that a custom recipe made for the module."""
    quantizers = getattr(module, "quantizers", None) or {}
    formats = {}
    for leg, operands in _OPERANDS.items():
        found = {
            _format(_at(quantizers.get(key), place), direction)
            for key, place, direction in operands
        }
        if HIGH in found:
            formats[leg] = HIGH  # the other operand is dequantized
        elif len(found) == 1 and None not in found:
            formats[leg] = str(found.pop())
    return formats


def _at(quantizers: Any, place: int) -> Any:
    return quantizers[place] if quantizers is not None and len(quantizers) > place else ...


def _format(quantizer: Any, direction: str) -> str | None:
    # A hybrid quantizer has one for each direction.
    inner = getattr(quantizer, f"{direction}_quantizer", quantizer)
    return _QUANTIZERS.get(type(inner).__name__)


def _scaling(recipe: Any, name: str) -> str | None:
    """Say how the recipe scales, with what its user may have set."""
    words = _WORDS.get(name)
    if words is None:
        return None
    override = getattr(recipe, "backward_override", None)
    tail = f", backward from {override} operands" if override == "dequantized" else ""
    tail = ", backward in high precision" if override == "high_precision" else tail
    return (words if isinstance(words, str) else words(recipe)) + tail


def _delayed(recipe: Any) -> str:
    algorithm = getattr(recipe, "amax_compute_algo", "max")
    name = algorithm if isinstance(algorithm, str) else "a function of its own"
    margin, history = getattr(recipe, "margin", 0), getattr(recipe, "amax_history_len", None)
    return f"delayed (margin {margin}, history {history}, {name})"


def _blocks(recipe: Any) -> str:
    sizes = [
        "128x128" if getattr(recipe, f"{operand}_block_scaling_dim", default) == 2 else "1x128"
        for operand, default in (("x", 1), ("w", 2), ("grad", 1))
    ]
    return f"blocks (input {sizes[0]}, weight {sizes[1]}, gradient {sizes[2]})"


def _nvfp4(recipe: Any) -> str:
    without = [
        words
        for name, words in (
            ("disable_rht", "Hadamard transforms"),
            ("disable_stochastic_rounding", "stochastic rounding"),
            ("disable_2d_quantization", "2-D blocks"),
        )
        if getattr(recipe, name, False)
    ]
    return "NVFP4 (blocks of 16" + "".join(f", without {words}" for words in without) + ")"


_WORDS: dict[str, str | Callable[[Any], str]] = {
    "DelayedScaling": _delayed,
    "Float8CurrentScaling": "current (one scale a tensor)",
    "Float8BlockScaling": _blocks,
    "MXFP8BlockScaling": "MX (blocks of 32)",
    "NVFP4BlockScaling": _nvfp4,
    "CustomRecipe": "by a custom recipe",
}


def _gradients(recipe: Any) -> str | None:
    name = getattr(getattr(recipe, "fp8_format", None), "name", None)
    return {"HYBRID": "e5m2", "E4M3": "e4m3", "E5M2": "e5m2"}.get(str(name))

"""How each class of FP8 layer casts its input, its weight and the gradient of its output.

One row per class, each with where its attributes were read; classes are known by name and package
anywhere in the MRO, since Megatron-LM and FSDP2 train subclasses of them. The casts are those of
the first GEMM that reads the tensor: fprop for input and weight, dgrad for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .cast_reference import (
    BLOCK_ROW,
    BLOCK_SQUARE,
    DELAYED,
    E4M3,
    E5M2,
    FORMATS,
    MXFP8,
    ROWWISE,
    TENSORWISE,
    Cast,
)

INPUT, WEIGHT, GRAD_OUTPUT = "input", "weight", "grad_output"
Casts = dict[str, Cast]


def _float8_linear(module: Any) -> Casts:
    config = module.config
    found = {
        tensor: _dynamic(getattr(config, f"cast_config_{tensor}"), config)
        for tensor in (INPUT, WEIGHT, GRAD_OUTPUT)
    }
    return {tensor: cast for tensor, cast in found.items() if cast is not None}


def _dynamic(cast: Any, config: Any) -> Cast | None:
    if cast.scaling_type.value != "dynamic":
        return None
    by_row = cast.scaling_granularity.value == "axiswise"
    return Cast(
        FORMATS[cast.target_dtype],
        ROWWISE if by_row else TENSORWISE,
        power_of_2=bool(config.round_scales_to_power_of_2),
    )


def of_recipe(name: str) -> Casts:
    """Return the casts of torchao's recipe of that name: float8/config.py, from_recipe_name."""
    if name == "tensorwise":
        plain = Cast(E4M3, TENSORWISE)
        return {INPUT: plain, WEIGHT: plain, GRAD_OUTPUT: Cast(E5M2, TENSORWISE)}
    return dict.fromkeys((INPUT, WEIGHT, GRAD_OUTPUT), Cast(E4M3, ROWWISE, power_of_2=True))


def _mx(config: Any) -> Casts:
    mode = getattr(config, "scale_calculation_mode", None)
    ceiling = getattr(mode, "value", mode) in (None, "rceil", "ceil")
    element = getattr(config, "elem_dtype", E4M3.dtype)
    if element not in FORMATS:
        return {}
    gradient = FORMATS[getattr(config, "elem_dtype_grad_output_override", None) or element]
    cast = Cast(FORMATS[element], MXFP8, ceiling=ceiling)
    return {INPUT: cast, WEIGHT: cast, GRAD_OUTPUT: cast._replace(format=gradient)}


def _mx_linear(module: Any) -> Casts:
    return _mx(getattr(module, "config", module))


def _blockwise(_: Any) -> Casts:
    by_row = Cast(E4M3, BLOCK_ROW)
    return {INPUT: by_row, WEIGHT: Cast(E4M3, BLOCK_SQUARE), GRAD_OUTPUT: by_row}


def transformer_engine(module: Any) -> Casts:
    """Return the casts of Transformer Engine's current recipe for a module's (last) GEMM.

    Empty outside of autocast, and for recipes that are not FP8: common/recipe/__init__.py.
    """
    meta = getattr(module, "fp8_meta", None) or {}
    recipe = meta.get("recipe") if getattr(module, "fp8", False) else None
    reader = RECIPES.get(recipe_class(recipe))
    return {} if reader is None else reader(recipe, meta)


def recipe_class(recipe: Any) -> str:
    """Return the name of the recipe's class in Transformer Engine: Megatron-LM's derive from it."""
    names = [cls.__name__ for cls in type(recipe).__mro__]
    return next((name for name in names if name in RECIPES), names[0])


def formats_of(recipe: Any) -> tuple[Any, Any]:
    """Return a recipe's formats of the forward and the backward pass."""
    name = str(getattr(getattr(recipe, "fp8_format", None), "name", "HYBRID"))
    return E5M2 if name == "E5M2" else E4M3, E4M3 if name == "E4M3" else E5M2


def _delayed(recipe: Any, meta: dict[str, Any]) -> Casts:
    forward, backward = formats_of(recipe)
    scale, gradient = (getattr(meta.get(f"scaling_{p}"), "scale", None) for p in ("fwd", "bwd"))
    found: Casts = {}
    if scale is not None and scale.numel() >= 2:
        found[INPUT] = Cast(forward, DELAYED, scale=scale[0])
        found[WEIGHT] = Cast(forward, DELAYED, scale=scale[1])
    if gradient is not None and gradient.numel():
        # Of two GEMMs the gradient of the output belongs to the second.
        place = 2 if gradient.numel() >= 4 else 0
        found[GRAD_OUTPUT] = Cast(backward, DELAYED, scale=gradient[place])
    return found


def _current(recipe: Any, _: dict[str, Any]) -> Casts:
    forward, backward = formats_of(recipe)
    parameters = {INPUT: "fwd_inp", WEIGHT: "fwd_weight", GRAD_OUTPUT: "bwd_grad"}
    return {
        tensor: Cast(
            backward if tensor == GRAD_OUTPUT else forward,
            TENSORWISE,
            power_of_2=bool(_quant(recipe, name, False)),
            double=False,
        )
        for tensor, name in parameters.items()
    }


def _quant(recipe: Any, name: str, default: bool) -> Any:
    return getattr(getattr(recipe, f"fp8_quant_{name}", None), "power_2_scale", default)


def _block(recipe: Any, _: dict[str, Any]) -> Casts:
    forward, backward = formats_of(recipe)
    sides = {
        INPUT: ("x", "fwd_inp"),
        WEIGHT: ("w", "fwd_weight"),
        GRAD_OUTPUT: ("grad", "bwd_grad"),
    }
    usual = {"x": 1, "w": 2, "grad": 1}
    return {
        tensor: Cast(
            backward if tensor == GRAD_OUTPUT else forward,
            BLOCK_SQUARE
            if getattr(recipe, f"{side}_block_scaling_dim", usual[side]) == 2
            else BLOCK_ROW,
            power_of_2=bool(_quant(recipe, name, True)),
            double=False,
        )
        for tensor, (side, name) in sides.items()
    }


def _mx_recipe(recipe: Any, _: dict[str, Any]) -> Casts:
    forward, backward = formats_of(recipe)
    cast = Cast(forward, MXFP8, ceiling=True)
    return {INPUT: cast, WEIGHT: cast, GRAD_OUTPUT: cast._replace(format=backward)}


# transformer_engine/common/recipe/__init__.py
RECIPES: dict[str, Callable[[Any, dict[str, Any]], Casts]] = {
    "DelayedScaling": _delayed,
    "Float8CurrentScaling": _current,
    "Float8BlockScaling": _block,
    "MXFP8BlockScaling": _mx_recipe,
}
MODULES: dict[tuple[str, str], Callable[[Any], Casts]] = {
    # torchao/float8/float8_linear.py
    ("torchao", "Float8Linear"): _float8_linear,
    ("torchao", "Float8LinearNoCompile"): _float8_linear,
    # torchao/prototype/moe_training/mxfp8_linear.py (0.18); prototype/mx_formats before
    ("torchao", "MXFP8Linear"): _mx_linear,
    ("torchao", "MXLinear"): _mx_linear,
    # torchao/prototype/blockwise_fp8_training/linear.py
    ("torchao", "Float8BlockwiseLinear"): _blockwise,
    # transformer_engine/pytorch/module/base.py
    ("transformer_engine", "TransformerEngineBaseModule"): transformer_engine,
    # torchtitan/components/quantization/float8.py, mx.py
    ("torchtitan", "Float8GroupedExperts"): lambda _: of_recipe("rowwise"),
    ("torchtitan", "MXFP8GroupedExperts"): lambda _: _mx(None),
}


def _float8_weight(weight: Any) -> Casts:
    recipe = getattr(getattr(weight, "config", None), "float8_linear_recipe", "rowwise")
    return of_recipe(str(recipe) if weight.dim() == 2 else "rowwise")


def _grouped_weight(weight: Any) -> Casts:
    scaling = getattr(getattr(weight, "scaling_type", None), "value", "")
    return _mx(None) if "mxfp8" in scaling else of_recipe("rowwise")


# Tensors that take over `linear` and `_grouped_mm`: torchao/prototype/moe_training/tensor.py
WEIGHTS: dict[str, Callable[[Any], Casts]] = {
    "Float8TrainingWeightWrapperTensor": _float8_weight,
    "MXFP8TrainingWeightWrapperTensor": lambda weight: _mx(getattr(weight, "config", None)),
    "ScaledGroupedMMTensor": _grouped_weight,
}


def casts_of(module: Any, weight: Any) -> Casts | None:
    """Return the casts by tensor; None for a class of which nothing is known.

    Args:
        module: the layer.
        weight: its weight, or the local part of one that is spread over ranks.
    """
    rows = ((cls.__module__.split(".")[0], cls.__name__) for cls in type(module).__mro__)
    reader = next((MODULES[row] for row in rows if row in MODULES), None)
    if reader is None:
        reader = WEIGHTS.get(type(weight).__name__)
        module = weight
    if reader is None:
        return None
    try:
        return reader(module)
    except (AttributeError, KeyError):  # another version of the class
        return {}


def is_transformer_engine(module: Any) -> bool:
    """Whether a module is one of Transformer Engine's or derives from one."""
    return any(cls.__module__.split(".")[0] == "transformer_engine" for cls in type(module).__mro__)


def normalizes_input(module: Any) -> bool:
    """Whether a module of Transformer Engine normalizes its input before it casts it."""
    names = {cls.__name__ for cls in type(module).__mro__}
    return not names.isdisjoint(("LayerNormLinear", "LayerNormMLP"))


def matrices_of(module: Any) -> list[tuple[str, Any]]:
    """Return the matrices of a layer by what to add to its name: ".fc1" of a LayerNormMLP."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):
        return [("", local(weight))]
    return [
        # GroupedLinear's weight0, weight1 … are one layer.
        ("" if name.startswith("weight") else f".{name.removesuffix('_weight')}", local(parameter))
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() >= 2
    ]


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor that is spread over ranks."""
    return getattr(tensor, "_local_tensor", tensor)


def plain(tensor: Any) -> Any:
    """Return the tensor of values inside wrappers, or of FP8 bytes if that is all there is."""
    tensor = local(tensor)
    if not isinstance(tensor, Tensor):
        return None
    # torchao: WeightWithDynamicFloat8CastTensor._tensor, Float8TrainingTensor._data,
    # *WrapperTensor._data; Transformer Engine: Float8Tensor._data and the others' _rowwise_data
    # are uint8.
    for name in ("_tensor", "_data", "_rowwise_data"):
        inner = getattr(tensor, name, None)
        if isinstance(inner, Tensor):
            return plain(inner)
    return tensor.detach()


def measurable(tensor: Any) -> bool:
    """Whether a tensor holds values in high precision."""
    return bool(
        isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.element_size() > 1
        and tensor.numel()
        and tensor.device.type != "meta"
    )

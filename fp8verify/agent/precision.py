"""What is known of each class of linear-like module: the precision of its GEMMs, and its casts.

One row a class in `MODULES` and `WEIGHTS`, with the file in which its attributes were read; of
classes that need not be read, the configuration says what they compute. A class
is recognized by name and top-level package anywhere in its MRO: FSDP2 and Megatron-LM train
subclasses. What no row knows is unknown, unless it surely computes what `torch.nn.Linear` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from .casts import (
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
    Format,
)
from .layers import local, tensor_class
from .observe import original
from .stored import (
    fields,
    has_values,
    is_a,
    items_of,
    of_class,
    required,
    shape_of,
    stored,
)

LEGS = ("fprop", "dgrad", "wgrad")
HIGH = "high_precision"
INPUT, WEIGHT, GRAD_OUTPUT = TENSORS = ("input", "weight", "grad_output")
Casts = dict[str, Cast]


class Promise(NamedTuple):
    """What one module would compute.

    Attributes:
        state: "fp8", "fp8_emulated", "fp8_module_off", "fp4", "fp4_emulated", "high_precision" or
            "unknown".
        recipe: the casts of each GEMM, or the recipe's name.
        formats: the format of each leg, or "high_precision"; unknown legs are left out.
        scaling: how the recipe scales, in words for the reader.
        gradients: the element type of gradients, if the recipe gives it.
    """

    state: str
    recipe: str | None = None
    formats: dict[str, str] = {}  # noqa: RUF012  (never changed)
    scaling: str | None = None
    gradients: str | None = None


HIGH_PRECISION = Promise(HIGH)
UNKNOWN = Promise("unknown")


def _promise(
    formats: dict[str, str],
    recipe: str | None,
    *,
    emulated: bool = False,
) -> Promise:
    """Return the promise of a module whose legs have these formats."""
    low = [name for name in formats.values() if name != HIGH]
    if not low:
        return Promise(HIGH, recipe, formats)
    if any(name.endswith(("fp8", "fp8_block")) for name in low):
        state = "fp8"
    else:
        state = "fp4"
    if emulated:
        state = f"{state}_emulated"
    return Promise(state, recipe, formats)


def _all_legs(
    name: str,
    recipe: str,
    *,
    emulated: bool = False,
    high: tuple[str, ...] = (),
) -> Promise:
    formats = dict.fromkeys(LEGS, name)
    for leg in high:
        formats[leg] = HIGH
    return _promise(formats, recipe, emulated=emulated)


def _casts(
    cast: Cast,
    *,
    weight: Cast | None = None,
    gradient: Format | None = None,
) -> Casts:
    """Return one cast for all tensors, but for another of the weight or format of the gradient."""
    return {
        INPUT: cast,
        WEIGHT: weight or cast,
        GRAD_OUTPUT: cast._replace(format=gradient or cast.format),
    }


# --- torchao ------------------------------------------------------------------

# The two casts of each GEMM: torchao/float8/config.py, Float8LinearConfig.
FLOAT8_CASTS = {
    "fprop": (("i", "input"), ("w", "weight")),
    "dgrad": (("go", "grad_output"), ("w", "weight_for_grad_input")),
    "wgrad": (("i", "input_for_grad_weight"), ("go", "grad_output_for_grad_weight")),
}


def _float8_linear(module: Any) -> Promise:
    config = required(module, "config")
    formats = {}
    words = []
    for leg, operands in FLOAT8_CASTS.items():
        described = []
        formats[leg] = "fp8"
        for label, name in operands:
            cast = required(config, f"cast_config_{name}")
            described.append(f"{label}:{_cast_words(cast)}")
            # A disabled cast leaves that GEMM in high precision by design
            # (rowwise_with_gw_hp: wgrad).
            if _choice(cast, "scaling_type") == "disabled":
                formats[leg] = HIGH
        if formats[leg] == HIGH:
            described = [HIGH]
        words.append(f"{leg}={','.join(described)}")
    emulated = required(config, "emulate") is True
    return _promise(formats, " ".join(words), emulated=emulated)


def _choice(owner: Any, name: str) -> Any:
    """Return the value of an attribute that is a member of an enumeration."""
    return required(required(owner, name), "_value_")


def _cast_words(cast: Any) -> str:
    """Describe a cast as torchao's `CastConfig.short_str` does."""
    scaling = str(_choice(cast, "scaling_type"))[:3]
    granularity = str(_choice(cast, "scaling_granularity"))[:3]
    granularity = granularity.replace("axi", "axs")
    kind = FORMATS.get(required(cast, "target_dtype"))
    form = "?"
    if kind is not None:
        form = kind.name.lower()
    return f"{scaling}_{granularity}_{form}"


def _float8_linear_casts(module: Any) -> Casts:
    config = required(module, "config")
    casts = {}
    for tensor in TENSORS:
        cast_config = required(config, f"cast_config_{tensor}")
        if _choice(cast_config, "scaling_type") != "dynamic":
            continue
        rows = _choice(cast_config, "scaling_granularity") == "axiswise"
        form = FORMATS[required(cast_config, "target_dtype")]
        power_of_2 = required(config, "round_scales_to_power_of_2") is True
        scaling = ROWWISE if rows else TENSORWISE
        casts[tensor] = Cast(form, scaling, power_of_2=power_of_2)
    return casts


def casts_of_recipe(name: str) -> Casts:
    """Return the casts of torchao's recipe of that name: float8/config.py, from_recipe_name."""
    if name == "tensorwise":
        return _casts(Cast(E4M3, TENSORWISE), gradient=E5M2)
    return _casts(Cast(E4M3, ROWWISE, power_of_2=True))


def _mx(owner: Any) -> Promise:
    """Read an MX linear or an MX weight, which may have its settings in `config`."""
    config = stored(owner, "config", owner)
    name = "mxfp8"
    if "float4" in str(stored(config, "elem_dtype")):
        name = "mxfp4"
    high: tuple[str, ...] = ()
    if stored(config, "wgrad_with_hp") is True:
        high = ("wgrad",)
    return _all_legs(
        name,
        name,
        emulated=_emulates(config),
        high=high,
    )


def _mx_casts(owner: Any) -> Casts:
    config = stored(owner, "config", owner)
    mode = stored(config, "scale_calculation_mode")
    element = stored(config, "elem_dtype", E4M3.dtype)
    if element not in FORMATS:
        return {}
    override = stored(config, "elem_dtype_grad_output_override")
    gradient = FORMATS[override or element]
    ceiling = stored(mode, "_value_", mode) in (None, "rceil", "ceil")
    cast = Cast(FORMATS[element], MXFP8, ceiling=ceiling)
    return _casts(cast, gradient=gradient)


def _emulates(config: Any) -> bool:
    choice = stored(config, "kernel_preference") or stored(config, "gemm_kernel_choice")
    return bool(stored(choice, "_value_") == "emulated")


def _nvfp4(module: Any) -> Promise:
    return _all_legs("nvfp4", "nvfp4", emulated=_emulates(module))


def _fake_quantized(module: Any) -> Promise:
    """Read a linear of QAT: it rounds the operands of the forward pass, and multiplies as before.

    Only rounded activations make it an emulation of FP8; weights alone are storage.
    """
    quantizer = stored(module, "activation_fake_quantizer")
    config = stored(module, "activation_config", stored(quantizer, "config"))
    dtype = stored(config, "dtype")
    kind = type(config).__name__
    if "float4" in str(dtype):
        blocks = "mxfp4"
    elif dtype in FORMATS:
        blocks = "mxfp8"
    else:
        blocks = HIGH
    if "NVFP4" in kind:
        name = "nvfp4"
    elif "MX" in kind:
        name = blocks
    elif dtype in FORMATS:
        name = "fp8"
    else:
        name = HIGH
    emulates = stored(config, "kernel_preference") is None or _emulates(config)
    formats = dict.fromkeys(LEGS, HIGH)
    formats["fprop"] = name
    return _promise(formats, "qat", emulated=emulates)


def _blockwise(module: Any) -> Promise:
    return _all_legs("fp8_block", f"blockwise_{stored(module, 'block_size', 128)}")


def _blockwise_casts(_: Any) -> Casts:
    return _casts(Cast(E4M3, BLOCK_ROW), weight=Cast(E4M3, BLOCK_SQUARE))


def _float8_weight(weight: Any) -> Promise:
    recipe = _weight_recipe(weight, required(weight, "config"))
    if recipe.endswith("gw_hp"):
        return _all_legs("fp8", recipe, high=("wgrad",))
    return _all_legs("fp8", recipe)


def _weight_recipe(weight: Any, config: Any) -> str:
    # `linear` has a recipe of its own from 0.18 on, grouped GEMMs are always scaled by row.
    is_linear = len(shape_of(weight)) == 2
    if not is_linear:
        return "rowwise"
    return str(stored(config, "float8_linear_recipe", "rowwise"))


def _float8_weight_casts(weight: Any) -> Casts:
    return casts_of_recipe(_weight_recipe(weight, stored(weight, "config")))


def _grouped(weight: Any) -> Known:
    scaling = stored(stored(weight, "scaling_type"), "_value_", "")
    if "mxfp8" in str(scaling):
        return _MX_EXPERTS
    return _FLOAT8_EXPERTS


# --- Transformer Engine -------------------------------------------------------
# transformer_engine/common/recipe/__init__.py and pytorch/module/base.py of 2.20; attributes that
# older versions lack have defaults. The recipes themselves read the environment
# (NVTE_BACKWARD_OVERRIDE and the like), as defaults of their fields.

# What a recipe calls each tensor in its settings, and the dimensions of its blocks by default.
_SETTINGS = {
    INPUT: ("fwd_inp", "x", 1),
    WEIGHT: ("fwd_weight", "w", 2),
    GRAD_OUTPUT: ("bwd_grad", "grad", 1),
}


def is_transformer_engine(module: Any) -> bool:
    """Whether a module is one of Transformer Engine's or derives from one."""
    return any(
        cls.__module__.split(".")[0] == "transformer_engine"
        for cls in type(module).__mro__
    )


def runs_fp8(module: Any) -> bool:
    """Whether the last forward pass of a module of Transformer Engine was in its autocast."""
    return is_transformer_engine(module) and stored(module, "fp8") is True


def normalizes_input(module: Any) -> bool:
    """Whether a module is one of Transformer Engine's that normalize their input and cast that."""
    names = {cls.__name__ for cls in type(module).__mro__}
    layer_norms = ("LayerNormLinear", "LayerNormMLP")
    return is_transformer_engine(module) and not names.isdisjoint(layer_norms)


def recipe_class(recipe: Any) -> str:
    """Return the name of the recipe's class, or of the library's class that it derives from."""
    names = [cls.__name__ for cls in type(recipe).__mro__]
    return next((name for name in names if name in RECIPES), names[0])


def formats_of(recipe: Any) -> tuple[Format, Format]:
    """Return a recipe's formats of the forward and the backward pass."""
    name = _format_name(recipe) or "HYBRID"
    forward = E5M2 if name == "E5M2" else E4M3
    backward = E4M3 if name == "E4M3" else E5M2
    return forward, backward


def _format_name(recipe: Any) -> str | None:
    fp8_format = stored(recipe, "fp8_format")
    name = stored(fp8_format, "_name_") or stored(fp8_format, "name")
    return name if is_a(name, str) else None


def _te_module(module: Any) -> Promise:
    """Return what the last forward pass of a module saw: outside autocast it is off."""
    if stored(module, "fp8") is not True:
        return Promise("fp8_module_off")
    recipe = items_of(stored(module, "fp8_meta")).get("recipe")
    name = recipe_class(recipe)
    known = RECIPES.get(name)
    if known is None:  # CustomRecipe: a factory of the script's own makes any format
        return Promise("unknown", name)
    formats = dict.fromkeys(LEGS, known.format)
    for leg in _high_legs(recipe):
        formats[leg] = HIGH
    gradients = None
    if _format_name(recipe) in ("HYBRID", "E4M3", "E5M2"):
        _, backward = formats_of(recipe)
        gradients = backward.name
    promise = _promise(formats, name)
    return promise._replace(
        scaling=_words(recipe, known),
        gradients=gradients,
    )


def _high_legs(recipe: Any) -> set[str]:
    """Return the legs that the recipe always computes in high precision."""
    if stored(recipe, "backward_override") is not None:
        return {"dgrad", "wgrad"}
    # Before 2.10 (fprop, dgrad, wgrad); Megatron-LM's --no-fp8-wgrad sets the last one.
    setting = stored(recipe, "override_linear_precision")
    override = tuple.__iter__(setting) if is_a(setting, tuple) else ()
    return {leg for leg, high in zip(LEGS, override) if high}  # noqa: B905 - a newer one may be longer


def _words(recipe: Any, known: Recipe) -> str:
    """Say how the recipe scales, with what its user may have set."""
    if isinstance(known.words, str):
        words = known.words
    else:
        words = known.words(recipe)
    if stored(recipe, "backward_override") == "dequantized":
        return f"{words}, backward from dequantized operands"
    return words


def _delayed_words(recipe: Any) -> str:
    algorithm = stored(recipe, "amax_compute_algo", "max")
    name = algorithm if is_a(algorithm, str) else "a function of its own"
    margin = stored(recipe, "margin", 0)
    history = stored(recipe, "amax_history_len")
    return f"delayed (margin {margin}, history {history}, {name})"


def _block_words(recipe: Any) -> str:
    sizes = [_block_of(recipe, tensor).removeprefix("block_") for tensor in TENSORS]
    return "blocks (input {}, weight {}, gradient {})".format(*sizes)


def transformer_engine_casts(module: Any) -> Casts:
    """Return the casts of Transformer Engine's current recipe for a module's (last) GEMM.

    Empty outside of autocast, and for recipes that are not FP8.
    """
    meta = items_of(stored(module, "fp8_meta"))
    recipe = meta.get("recipe") if runs_fp8(module) else None
    known = RECIPES.get(recipe_class(recipe))
    if known is None or known.casts is None:
        return {}
    return known.casts(recipe, meta)


def _delayed_casts(recipe: Any, meta: dict[str, Any]) -> Casts:
    forward, backward = formats_of(recipe)
    scale = stored(meta.get("scaling_fwd"), "scale")
    gradient = stored(meta.get("scaling_bwd"), "scale")
    casts: Casts = {}
    if has_values(scale) and scale.numel() >= 2:
        casts[INPUT] = Cast(forward, DELAYED, scale=scale[0])
        casts[WEIGHT] = Cast(forward, DELAYED, scale=scale[1])
    if has_values(gradient) and gradient.numel():
        # Of two GEMMs the gradient of the output belongs to the second.
        last = 2 if gradient.numel() >= 4 else 0
        casts[GRAD_OUTPUT] = Cast(backward, DELAYED, scale=gradient[last])
    return casts


def _block_of(recipe: Any, tensor: str) -> str:
    _, operand, dimensions = _SETTINGS[tensor]
    square = stored(recipe, f"{operand}_block_scaling_dim", dimensions) == 2
    return BLOCK_SQUARE if square else BLOCK_ROW


def _computed_casts(recipe: Any, _: dict[str, Any]) -> Casts:
    """Return the casts by scales that are computed anew in each pass, of tensors or blocks."""
    blocks = recipe_class(recipe) == "Float8BlockScaling"
    forward, backward = formats_of(recipe)
    casts = {}
    for tensor, (setting, *_rest) in _SETTINGS.items():
        settings = stored(recipe, f"fp8_quant_{setting}")
        power_of_2 = bool(stored(settings, "power_2_scale", blocks))
        form = backward if tensor == GRAD_OUTPUT else forward
        scaling = TENSORWISE
        if blocks:
            scaling = _block_of(recipe, tensor)
        casts[tensor] = Cast(
            form,
            scaling,
            power_of_2=power_of_2,
            double=False,
        )
    return casts


def _mx_recipe_casts(recipe: Any, _: dict[str, Any]) -> Casts:
    forward, backward = formats_of(recipe)
    return _casts(Cast(forward, MXFP8, ceiling=True), gradient=backward)


class Recipe(NamedTuple):
    """A class of recipe: the format of all legs, how it scales in words, and its casts to FP8."""

    format: str
    words: str | Callable[[Any], str]
    casts: Callable[[Any, dict[str, Any]], Casts] | None = None


RECIPES = {
    "DelayedScaling": Recipe("fp8", _delayed_words, _delayed_casts),
    "Float8CurrentScaling": Recipe(
        "fp8", "current (one scale per tensor)", _computed_casts
    ),
    "Float8BlockScaling": Recipe("fp8_block", _block_words, _computed_casts),
    "MXFP8BlockScaling": Recipe("mxfp8", "MX (blocks of 32)", _mx_recipe_casts),
    "NVFP4BlockScaling": Recipe("nvfp4", "NVFP4 (blocks of 16)"),
}


# --- the rows -----------------------------------------------------------------


class Known(NamedTuple):
    """How to read a class: its promise and, if known, its casts."""

    promise: Callable[[Any], Promise]
    casts: Callable[[Any], Casts | None] = lambda _: None


_MX = Known(_mx, _mx_casts)
_FLOAT8_EXPERTS = Known(
    lambda _: _all_legs("fp8", "rowwise"), lambda _: casts_of_recipe("rowwise")
)
_MX_EXPERTS = Known(lambda _: _all_legs("mxfp8", "mxfp8"), lambda _: _mx_casts(None))

MODULES = {
    # torchao/float8/float8_linear.py
    "torchao.Float8Linear": Known(_float8_linear, _float8_linear_casts),
    "torchao.Float8LinearNoCompile": Known(_float8_linear, _float8_linear_casts),
    # torchao/prototype/moe_training/mxfp8_linear.py (0.18); prototype/mx_formats before
    "torchao.MXFP8Linear": _MX,
    "torchao.MXLinear": _MX,
    # torchao/prototype/moe_training/nvfp4_training/nvfp4_training.py
    "torchao.NVFP4Linear": Known(_nvfp4),
    # torchao/quantization/qat/linear.py, prototype/qat/mx.py and nvfp4.py
    "torchao.FakeQuantizedLinear": Known(_fake_quantized),
    "torchao.MXFakeQuantizedLinear": Known(_fake_quantized),
    "torchao.NVFP4FakeQuantizedLinear": Known(_fake_quantized),
    # torchao/prototype/blockwise_fp8_training/linear.py
    "torchao.Float8BlockwiseLinear": Known(_blockwise, _blockwise_casts),
    # transformer_engine/pytorch/module/base.py, base of all its linears
    "transformer_engine.TransformerEngineBaseModule": Known(
        _te_module, transformer_engine_casts
    ),
}
# Tensors that take over `linear` and `_grouped_mm`: torchao/prototype/moe_training/tensor.py,
# ScaledGroupedMMTensor up to 0.15.
WEIGHTS = {
    "Float8TrainingWeightWrapperTensor": Known(_float8_weight, _float8_weight_casts),
    "MXFP8TrainingWeightWrapperTensor": _MX,
    "ScaledGroupedMMTensor": Known(
        lambda weight: _grouped(weight).promise(weight),
        lambda weight: _grouped(weight).casts(weight),
    ),
}
# torchtitan/components/quantization/float8.py and mx.py: experts are subclasses made of the model's
# own class on the spot, `MXFP8GroupedExperts`, `MXFP8GptOssGroupedExperts`, …
_EXPERTS = re.compile(r"(?P<format>MXFP8|Float8)\w*Experts", re.ASCII)


def promise_of(module: Any, weight: Any) -> Promise:
    """Return what `module` promises, by its class, else by the class of its weight tensor."""
    known, owner, name = _known(module, weight)
    if known is None:
        return HIGH_PRECISION if is_plain(module, weight) else UNKNOWN
    try:
        return known.promise(owner)
    except AttributeError:
        # Another version of the class: its name alone tells what it is for.
        state = "fp4" if "NVFP4" in name else "fp8"
        return Promise(state)


def casts_of(module: Any, weight: Any) -> Casts | None:
    """Return the casts by tensor; None for a class whose casts are not known.

    They are the casts of the first GEMM that reads the tensor: fprop for input and weight, dgrad
    for the gradient.

    Args:
        module: the layer.
        weight: its weight, or the local shard of it.
    """
    known, owner, _ = _known(module, weight)
    if known is None:
        return None
    try:
        return known.casts(owner)
    except (AttributeError, KeyError):  # another version of the class
        return {}


# What the files of frameworks and the user's settings say of classes that need not be read, by
# package or module and class.
_declared: dict[str, Known] = {}


def declare(classes: dict[str, str]) -> None:
    """Take what classes compute from the agent's configuration."""
    _declared.clear()
    for name, state in classes.items():
        if state == HIGH:
            promise = HIGH_PRECISION
        else:
            promise = _all_legs(state, f"{state}, as declared")
        _declared[name] = Known(lambda _, promise=promise: promise)  # type: ignore[misc]


def _known(module: Any, weight: Any) -> tuple[Known | None, Any, str]:
    """Return the row of a module or of its weight, which of both it is of, and the class's name."""
    for cls in type(module).__mro__:
        package = cls.__module__.partition(".")[0]
        for place in (cls.__module__, package):
            name = f"{place}.{cls.__name__}"
            row = _declared.get(name) or MODULES.get(name)
            if row is not None:
                return row, module, cls.__name__
    name = tensor_class(weight) or ""
    if name in WEIGHTS:
        return WEIGHTS[name], local(weight), name
    for cls in type(module).__mro__:
        expert = _EXPERTS.fullmatch(cls.__name__)
        if expert is None:
            continue
        is_mx = expert["format"] == "MXFP8"
        row = _MX_EXPERTS if is_mx else _FLOAT8_EXPERTS
        return row, module, cls.__name__
    return None, module, ""


def is_plain(module: Any, weight: Any) -> bool:
    """Whether a module surely computes what `torch.nn.Linear` does.

    Its `forward` is PyTorch's, and its weight is stored, and no tensor subclass. 3-D parameters of
    experts have no module with a known `forward`.
    """
    if tensor_class(weight) is not None:
        return False
    if not is_a(module, nn.Linear):
        return weight is not None and len(shape_of(weight)) == 3
    # Layers that are named in a window have a `forward` that is observed.
    of_its_class = original(of_class(type(module), "forward"))
    forward = fields(module).get("forward") or of_its_class
    return forward is nn.Linear.forward and stored(module, "weight") is weight

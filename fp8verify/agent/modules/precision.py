"""What a linear-like module says about the precision of its own GEMMs.

One row per class, each with where its attributes were read; a class is recognised by name and
top-level package anywhere in its MRO, since FSDP2 trains dynamic subclasses of the real ones. What
no row knows is unknown, unless it surely computes what `torch.nn.Linear` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from .promise import HIGH_PRECISION, LEGS, UNKNOWN, Promise, every_leg, state_of
from .transformer_engine import promise_of_module

# The two casts of each GEMM: torchao/float8/config.py, Float8LinearConfig.
FLOAT8_CASTS = {
    "fprop": (("i", "input"), ("w", "weight")),
    "dgrad": (("go", "grad_output"), ("w", "weight_for_grad_input")),
    "wgrad": (("i", "input_for_grad_weight"), ("go", "grad_output_for_grad_weight")),
}


def _float8_linear(module: Any) -> Promise:
    config = module.config
    casts = {
        leg: [(label, _cast(config, name)) for label, name in operands]
        for leg, operands in FLOAT8_CASTS.items()
    }
    # A disabled cast leaves that GEMM in high precision by design (rowwise_with_gw_hp: wgrad).
    high = tuple(leg for leg in LEGS if any(_disabled(cast) for _, cast in casts[leg]))
    recipe = " ".join(
        f"{leg}=high_precision"
        if leg in high
        else f"{leg}={','.join(f'{label}:{cast.short_str()}' for label, cast in casts[leg])}"
        for leg in LEGS
    )
    formats = every_leg("fp8", high=high)
    return Promise(state_of(formats, emulated=config.emulate), recipe, formats)


def _cast(config: Any, name: str) -> Any:
    # torchao before the per-GEMM casts has one per operand, used by both of its GEMMs.
    operand = name.split("_for_")[0]
    cast = getattr(config, f"cast_config_{name}", None)
    return cast if cast is not None else getattr(config, f"cast_config_{operand}")


def _disabled(cast: Any) -> bool:
    return bool(cast.scaling_type.value == "disabled")


def _mx_linear(module: Any) -> Promise:
    return _mx(getattr(module, "config", module))


def _mx(config: Any) -> Promise:
    name = "mxfp4" if "float4" in str(getattr(config, "elem_dtype", None)) else "mxfp8"
    high = ("wgrad",) if getattr(config, "wgrad_with_hp", False) else ()
    return _all(name, name, emulated=_emulates(config), high=high)


def _all(
    name: str, recipe: str | None, *, emulated: bool = False, high: tuple[str, ...] = ()
) -> Promise:
    formats = every_leg(name, high=high)
    return Promise(state_of(formats, emulated=emulated), recipe, formats)


def _emulates(config: Any) -> bool:
    choice = getattr(config, "kernel_preference", getattr(config, "gemm_kernel_choice", None))
    return bool(getattr(choice, "value", None) == "emulated")


def _float8_blockwise_linear(module: Any) -> Promise:
    return _all("fp8_block", f"blockwise_{getattr(module, 'block_size', 128)}")


def _nvfp4_linear(module: Any) -> Promise:
    return _all("nvfp4", "nvfp4", emulated=_emulates(module))


def _float8_experts(_: Any) -> Promise:
    return _all("fp8", "rowwise")


def _mxfp8_experts(_: Any) -> Promise:
    return _all("mxfp8", "mxfp8")


def _high_precision(_: Any) -> Promise:
    return HIGH_PRECISION


MODULES: dict[tuple[str, str], Callable[[Any], Promise]] = {
    # torchao/float8/float8_linear.py
    ("torchao", "Float8Linear"): _float8_linear,
    ("torchao", "Float8LinearNoCompile"): _float8_linear,
    # torchao/prototype/moe_training/mxfp8_linear.py (0.18); prototype/mx_formats before
    ("torchao", "MXFP8Linear"): _mx_linear,
    ("torchao", "MXLinear"): _mx_linear,
    # torchao/prototype/moe_training/nvfp4_training/nvfp4_training.py
    ("torchao", "NVFP4Linear"): _nvfp4_linear,
    # torchao/prototype/blockwise_fp8_training/linear.py
    ("torchao", "Float8BlockwiseLinear"): _float8_blockwise_linear,
    # transformer_engine/pytorch/module/base.py, base of all its linears
    ("transformer_engine", "TransformerEngineBaseModule"): promise_of_module,
    # transformers/pytorch_utils.py: GPT-2's linear is `torch.addmm`
    ("transformers", "Conv1D"): _high_precision,
    # megatron/core/tensor_parallel/layers.py: `torch.matmul` and its two gradients
    ("megatron", "ColumnParallelLinear"): _high_precision,
    ("megatron", "RowParallelLinear"): _high_precision,
    # bitsandbytes/nn/modules.py: 4-bit weights are dequantized to the activations' type
    ("bitsandbytes", "Linear4bit"): _high_precision,
}

# torchtitan/components/quantization/float8.py and mx.py: experts are subclasses made of the model's
# own class on the spot, `MXFP8GroupedExperts`, `MXFP8GptOssGroupedExperts`, …
_EXPERTS = re.compile(r"(?P<format>MXFP8|Float8)\w*Experts", re.ASCII)
_EXPERT_FORMATS = {"MXFP8": _mxfp8_experts, "Float8": _float8_experts}


def _float8_weight(weight: Any) -> Promise:
    # `linear` has a recipe of its own from 0.18 on, grouped GEMMs are always scaled by row.
    recipe = getattr(weight.config, "float8_linear_recipe", "rowwise")
    recipe = recipe if weight.dim() == 2 else "rowwise"
    return _all("fp8", recipe, high=("wgrad",) if recipe.endswith("gw_hp") else ())


def _mxfp8_weight(weight: Any) -> Promise:
    return _mx(weight.config)


def _grouped_weight(weight: Any) -> Promise:
    scaling = getattr(getattr(weight, "scaling_type", None), "value", "")
    return _mxfp8_experts(weight) if "mxfp8" in scaling else _float8_experts(weight)


# Tensors that take over `linear` and `_grouped_mm`: torchao/prototype/moe_training/tensor.py,
# ScaledGroupedMMTensor up to 0.15.
WEIGHTS: dict[str, Callable[[Any], Promise]] = {
    "Float8TrainingWeightWrapperTensor": _float8_weight,
    "MXFP8TrainingWeightWrapperTensor": _mxfp8_weight,
    "ScaledGroupedMMTensor": _grouped_weight,
}
# Where a class's name alone tells what it is for.
_BY_NAME = (("NVFP4", "nvfp4"), ("MXFP8", "mxfp8"), ("MX", "mxfp8"), ("Float8", "fp8"))


def promise_of(module: Any, weight: Any) -> Promise:
    """Return what `module` promises, by its class, else by the class of its weight tensor."""
    for cls in type(module).__mro__:
        reader = MODULES.get((cls.__module__.split(".")[0], cls.__name__))
        if reader is not None:
            return _read(reader, module, cls.__name__)
    name = tensor_class(weight)
    if name in WEIGHTS:
        return _read(WEIGHTS[name], _local(weight), name)
    return _expert_promise(module) or (HIGH_PRECISION if is_plain(module, weight) else UNKNOWN)


def _expert_promise(module: Any) -> Promise | None:
    for cls in type(module).__mro__:
        found = _EXPERTS.fullmatch(cls.__name__)
        if found is not None:
            return _EXPERT_FORMATS[found["format"]](module)
    return None


def is_plain(module: Any, weight: Any) -> bool:
    """Whether a module surely computes what `torch.nn.Linear` does.

    Its `forward` is PyTorch's, and neither a tensor subclass nor a parametrization stands for its
    weight. 3-D parameters of experts have no module whose `forward` could be known.
    """
    if not isinstance(module, nn.Linear):
        return weight is not None and weight.dim() == 3 and tensor_class(weight) is None
    own = "forward" in module.__dict__ or type(module).forward is not nn.Linear.forward
    return not own and tensor_class(weight) is None and "parametrizations" not in module._modules


def _read(reader: Callable[[Any], Promise], what: Any, name: str) -> Promise:
    try:
        return reader(what)
    except AttributeError:  # another version of the class: its name alone tells what it is for
        known = next((found for word, found in _BY_NAME if word in name), None)
        return Promise("fp4" if known == "nvfp4" else "fp8")


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


def tensor_class(tensor: Any) -> str | None:
    """Return the name of a tensor's wrapper subclass, inside a DTensor too; None for plain ones."""
    name = type(_local(tensor)).__name__
    return None if name in {"Parameter", "Tensor", "NoneType"} else name

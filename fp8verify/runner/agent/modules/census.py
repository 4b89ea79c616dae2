"""List the linear-like modules of the model being trained, and what precision each promises."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch import nn

from ..live_objects import TooManyObjectsError, find_instances
from .precision import promise_of, tensor_class
from .promise import HIGH, HIGH_PRECISION, Promise

# DDP and DataParallel keep the model in `module`, a name that a model may use itself further in.
LEADING_WRAPPERS = re.compile(
    r"^(?:(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+"
)
INNER_WRAPPERS = re.compile(
    r"(?<=\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
LINEAR_CLASSES = {
    "Linear",  # torch.nn; torchao's and most others derive from it
    "TransformerEngineBaseModule",
    "Conv1D",  # transformers.pytorch_utils: GPT-2's linear, weight (in, out)
    "ColumnParallelLinear",  # megatron.core.tensor_parallel.layers, fairscale, vLLM
    "RowParallelLinear",
}
# Transformer Engine's grouped linear has a 2-D weight for each expert: module/grouped_linear.py.
GROUPED_CLASSES = {"GroupedLinear"}
# They share a base with Transformer Engine's linear layers: attention/dot_product_attention.
ATTENTION_CORES = {"DotProductAttention"}
EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)
FP8_ALIGNMENT = 16  # torch._scaled_mm: both trailing dimensions must be divisible by it

_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_searched: dict[int, weakref.ref[Any]] = {}  # the parameters whose owners were searched for, by id


def remember(module: nn.Module, _: str, child: nn.Module | None) -> None:
    """Remember a module: a scan does not see objects that were frozen by `gc.freeze`."""
    _modules.add(module)
    if child is not None:
        _modules.add(child)


def take_census(optimizers: Iterable[Any]) -> list[dict[str, Any]]:
    """Describe every linear-like module below the roots that own parameters of `optimizers`."""
    roots = _trained_roots(_parameters(optimizers))
    found = [(root, record) for root in roots for record in _records_below(root)]
    names = _told_apart([(root, record["fqn"]) for root, record in found])
    return [{**record, "fqn": name} for name, (_, record) in zip(names, found, strict=True)]


def linear_modules(optimizers: Iterable[Any]) -> list[tuple[str, nn.Module]]:
    """Return the linear-like modules that `take_census` describes, by the same names."""
    found = [
        (root, canonical_name(name), module)
        for root in _trained_roots(_parameters(optimizers))
        for name, module in root.named_modules()
        if _is_linear(module)
    ]
    names = _told_apart([(root, name) for root, name, _ in found])
    return [(name, module) for name, (_, _, module) in zip(names, found, strict=True)]


def expert_modules(optimizers: Iterable[Any]) -> list[tuple[str, nn.Module]]:
    """Return the modules whose 3-D parameters `take_census` lists as experts."""
    return [
        (canonical_name(name), module)
        for root in _trained_roots(_parameters(optimizers))
        for name, module in root.named_modules()
        if not _is_linear(module) and next(_expert_records(name, module), None) is not None
    ]


def _told_apart(found: list[tuple[nn.Module, str]]) -> list[str]:
    """Return names with that of their model's class where two models, as a GAN's, name alike."""
    uses = Counter(name for _, name in found)
    return [f"{_class_name(root)}.{name}" if uses[name] > 1 else name for root, name in found]


def _parameters(optimizers: Iterable[Any]) -> dict[int, Any]:
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter): parameter for group in groups for parameter in group["params"]}


def _trained_roots(parameters: dict[int, Any]) -> list[nn.Module]:
    owned = set(parameters)
    known = _roots_owning(owned, list(_modules))
    if owned and owned <= {id(p) for root in known for p in root.parameters()}:
        return known
    # A search holds the training up, and is made once: what is built later is heard of.
    if parameters and all(_was_searched(key, found) for key, found in parameters.items()):
        return known
    roots = _roots_owning(owned, _all_modules())
    with suppress(TypeError):  # modules without a hash cannot be kept, and are searched for again
        for root in roots:
            _modules.update(root.modules())
        _searched.update({key: weakref.ref(found) for key, found in parameters.items()})
    return roots


def _was_searched(key: int, parameter: Any) -> bool:
    reference = _searched.get(key)
    return reference is not None and reference() is parameter


def _roots_owning(owned: set[int], found: Iterable[nn.Module]) -> list[nn.Module]:
    modules = {id(module): module for module in found}
    children = {id(child) for module in modules.values() for child in module._modules.values()}
    roots = [module for key, module in modules.items() if key not in children]
    trained = [root for root in roots if any(id(p) in owned for p in root.parameters())]
    # Sharded optimizers (ZeRO) step flat copies, which no module owns.
    return trained or [r for r in roots if any(p.requires_grad for p in r.parameters())]


def _all_modules() -> list[nn.Module]:
    with suppress(TooManyObjectsError):
        return [*_modules, *find_instances(lambda kind: issubclass(kind, nn.Module))]
    return list(_modules)


def _records_below(root: nn.Module) -> Iterator[dict[str, Any]]:
    for name, module in root.named_modules():
        fqn = canonical_name(name)
        if _is_linear(module):
            yield _linear_record(fqn, module)
        else:
            yield from _expert_records(fqn, module)


def canonical_name(name: str) -> str:
    """Return a module's name without the wrappers of DDP, FSDP, compile and checkpointing."""
    dotted = INNER_WRAPPERS.sub("", LEADING_WRAPPERS.sub("", f"{name}."))
    return dotted.rstrip(".") or "(root)"


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is linear itself, and no wrapper of linear ones, such as LoRA's."""
    if not _is_named_linear(module):
        return False
    own = any(p is not None and p.dim() > 1 for p in module._parameters.values())
    return own or not any(_is_named_linear(m) for m in module.modules() if m is not module)


def _is_named_linear(module: nn.Module) -> bool:
    names = {cls.__name__ for cls in type(module).__mro__}
    return names.isdisjoint(ATTENTION_CORES) and not names.isdisjoint(LINEAR_CLASSES)


def _class_name(module: nn.Module) -> str:
    # FSDP2 trains a subclass made on the spot, named FSDP + the class.
    bases = [cls.__name__ for cls in type(module).__mro__]
    return bases[0][len("FSDP") :] if "FSDPModule" in bases[1:] else bases[0]


def _source(module: nn.Module) -> str:
    """Return the Python module of the class, of FSDP2's that of the class it is made from."""
    name = _class_name(module)
    made = (cls for cls in type(module).__mro__ if cls.__name__ == name)
    return next(made, type(module)).__module__


def _linear_record(fqn: str, module: Any) -> dict[str, Any]:
    weight = getattr(module, "weight", None)
    if weight is None:
        weight = next(module.parameters(), None)
    promise = promise_of(module, weight)
    rows, columns = _features(module, weight)
    grouped = any(cls.__name__ in GROUPED_CLASSES for cls in type(module).__mro__)
    return {
        **_record(fqn, "experts" if grouped else "linear", module, weight, promise),
        "in_features": columns,
        "out_features": rows,
        "sizes": _sizes(module),
        "reason": _why_left(promise, rows, columns),
    }


def _sizes(module: Any) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of each layer of a module that is two: LayerNormMLP."""
    weights = [getattr(module, name, None) for name in ("fc1_weight", "fc2_weight")]
    sizes = [tuple(weight.shape) for weight in weights if weight is not None]
    return sizes if all(len(size) == 2 for size in sizes) else []


def _features(module: Any, weight: Any) -> tuple[int | None, int | None]:
    rows, columns = getattr(module, "out_features", None), getattr(module, "in_features", None)
    if isinstance(rows, int) and isinstance(columns, int):
        return rows, columns
    if weight is None or weight.dim() != 2 or hasattr(module, "fc1_weight"):
        return None, None
    columns, rows = weight.shape if _class_name(module) == "Conv1D" else reversed(weight.shape)
    return int(rows), int(columns)


def _expert_records(fqn: str, module: nn.Module) -> Iterator[dict[str, Any]]:
    if not EXPERTS.search(f"{fqn} {type(module).__name__}"):
        return
    for name, weight in module.named_parameters(recurse=False):
        if weight.dim() == 3:
            yield {
                **_record(f"{fqn}.{name}", "experts", module, weight, promise_of(module, weight)),
                "in_features": int(weight.shape[-1]),
                "out_features": int(weight.shape[-2]),
                "sizes": [],
                "reason": None,
            }


def _record(fqn: str, kind: str, module: Any, weight: Any, promise: Promise) -> dict[str, Any]:
    return {
        "fqn": fqn,
        "class": _class_name(module),
        "source": _source(module),
        "kind": kind,
        "weight_class": tensor_class(weight),
        "training": module.training,
        "frozen": weight is None or not weight.requires_grad,
        "state": promise.state,
        "recipe": promise.recipe,
        "formats": promise.formats,
        "scaling": promise.scaling,
        "gradients": promise.gradients,
        "fp8_legs": [leg for leg, name in promise.formats.items() if name != HIGH]
        if promise.state.startswith("fp8")
        else [],
    }


def _why_left(promise: Promise, rows: int | None, columns: int | None) -> str | None:
    if promise is not HIGH_PRECISION:
        return None
    for name, size in (("in_features", columns), ("out_features", rows)):
        if size is not None and size % FP8_ALIGNMENT:
            return f"{name} {size} is not divisible by {FP8_ALIGNMENT}"
    return None

"""The model being trained: its roots, its linear-like layers and experts, and their tensors.

Modules are remembered when they become part of another one; a search among all objects is made
only where the trained ones are not among those.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from .observe import hidden, register
from .process import find_instances
from .stored import (
    all_parameters,
    children_of,
    has_values,
    header,
    is_a,
    parameters_of,
    shape_of,
    stored,
    trained_by,
    walk,
)

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
# They share a base with Transformer Engine's linear layers: attention/dot_product_attention.
ATTENTION_CORES = {"DotProductAttention"}
EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)

# By id: a module may define `__eq__` and `__hash__`.
_modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
# The parameters whose owners were searched for, by id.
_searched: dict[int, weakref.ref[Any]] = {}


class Registrations:
    """Hears of every module that becomes part of another one.

    Attributes:
        changes: grows whenever a model may have changed; None before the hook is on.
    """

    def __init__(self) -> None:
        self.changes: int | None = None

    def begin(self) -> None:
        """Register the hook, for good."""
        register(register_module_module_registration_hook, hidden(self._registered))
        self.changes = 0

    def _registered(
        self,
        module: nn.Module,
        _: str,
        child: nn.Module | None,
    ) -> None:
        self.changes = (self.changes or 0) + 1
        remember(module)
        if child is not None:
            remember(child)


registrations = Registrations()


def remember(module: nn.Module) -> None:
    """Remember a module: a search does not see objects that were frozen by `gc.freeze`."""
    _modules[id(module)] = module


class Layer(NamedTuple):
    """A linear layer or a module with experts, by its name in the model."""

    name: str
    module: nn.Module
    is_linear: bool


# What the last walk was made for and has found, without keeping any of it alive.
_last: tuple[Any, list[tuple[str, Any, bool]]] = (None, [])


def trained_layers(optimizers: Iterable[Any], *, anew: bool = False) -> list[Layer]:
    """Return the layers below the roots that own parameters of `optimizers`.

    The last result is reused as long as no module was added anywhere. If the hook is off, or no
    optimizer steps, it is reused until a caller asks for a walk `anew`.
    """
    global _last
    parameters = trained_by(optimizers)
    made_for = (registrations.changes, frozenset(parameters))
    is_heard_of = bool(parameters) and registrations.changes is not None
    if made_for == _last[0] and (is_heard_of or not anew):
        cached = [
            Layer(name, module(), is_linear) for name, module, is_linear in _last[1]
        ]
        if all(layer.module is not None for layer in cached):
            return cached
    # Two roots may have the same modules: a model, and a list of parts of it for the optimizer.
    unique: dict[int, tuple[nn.Module, Layer]] = {}
    for root in _trained_roots(parameters):
        for layer in _below(root):
            unique.setdefault(id(layer.module), (root, layer))
    # Two models (a GAN's) may share names: these get the class of their model.
    uses = Counter(layer.name for _, layer in unique.values())
    fresh = []
    references = []
    for root, layer in unique.values():
        if uses[layer.name] > 1:
            name = f"{class_name(root)}.{layer.name}"
            layer = layer._replace(name=name.removesuffix(".(root)"))
        fresh.append(layer)
        references.append((layer.name, weakref.ref(layer.module), layer.is_linear))
    _last = ((registrations.changes, made_for[1]), references)
    return fresh


def linear_modules(optimizers: Iterable[Any]) -> list[tuple[str, nn.Module]]:
    """Return the linear-like modules that `take_census` describes, by the same names."""
    return [
        (name, module)
        for name, module, is_linear in trained_layers(optimizers)
        if is_linear
    ]


def _trained_roots(parameters: dict[int, Any]) -> list[nn.Module]:
    """Return the outermost modules that own any of these parameters."""
    owned = set(parameters)
    known = _roots_owning(owned, known_modules())
    found: set[int] = set()
    for root in known:
        found.update(map(id, all_parameters(root)))
    if owned and owned <= found:
        return known
    # A search holds the script up, and is made once: later modules come by the hook.
    if parameters and all(map(_was_searched_for, parameters.values())):
        return known
    roots = _roots_owning(owned, all_modules())
    for root in roots:
        for _, module in walk(root):
            remember(module)
    for key, parameter in parameters.items():
        _searched[key] = weakref.ref(parameter)
    return roots


def _was_searched_for(parameter: Any) -> bool:
    reference = _searched.get(id(parameter))
    return reference is not None and reference() is parameter


def _roots_owning(owned: set[int], candidates: Iterable[nn.Module]) -> list[nn.Module]:
    modules = {id(module): module for module in candidates}
    children: set[int] = set()
    for module in modules.values():
        children.update(map(id, children_of(module).values()))
    roots = {}
    for key, module in modules.items():
        if key not in children:
            roots[key] = list(all_parameters(module))
    trained = [
        modules[key]
        for key, parameters in roots.items()
        if not owned.isdisjoint(map(id, parameters))
    ]
    if trained:
        return trained
    # Sharded optimizers (ZeRO) step flat copies, which no module owns.
    return [
        modules[key]
        for key, parameters in roots.items()
        if any(header(parameter, "requires_grad") for parameter in parameters)
    ]


def known_modules() -> list[nn.Module]:
    """Return the live modules that were heard of, of models that are not trained too."""
    return list(_modules.values())


def all_modules() -> list[nn.Module]:
    """Return every module that is alive, as far as there are few enough objects to look."""
    living = find_instances(lambda kind: issubclass(kind, nn.Module))
    return [*known_modules(), *living]


def _below(root: nn.Module) -> Iterator[Layer]:
    for raw, module in walk(root):
        name = canonical_name(raw)
        is_linear = _is_linear(module)
        if is_linear or next(expert_weights(name, module), None) is not None:
            yield Layer(name, module, is_linear)


def canonical_name(name: str) -> str:
    """Return a module's name without the wrappers of DDP, FSDP, compile and checkpointing."""
    dotted = INNER_WRAPPERS.sub("", LEADING_WRAPPERS.sub("", f"{name}."))
    return dotted.rstrip(".") or "(root)"


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is linear itself, and no wrapper of linear ones, such as LoRA's."""
    if not is_linear_class(module):
        return False
    if any(map(_is_matrix, parameters_of(module).values())):
        return True
    if "parametrizations" in children_of(module):
        return True
    below = [inner for _, inner in walk(module) if inner is not module]
    return not any(map(is_linear_class, below))


def _is_matrix(parameter: Any) -> bool:
    return len(shape_of(parameter)) > 1


def is_linear_class(module: nn.Module) -> bool:
    """Whether a module's class is linear by the name of one of its bases."""
    names = {cls.__name__ for cls in type(module).__mro__}
    return names.isdisjoint(ATTENTION_CORES) and not names.isdisjoint(LINEAR_CLASSES)


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class; for FSDP2's generated classes, of the original class."""
    # FSDP2 trains a subclass made on the spot, named FSDP + the class.
    own, *bases = [cls.__name__ for cls in type(module).__mro__]
    if "FSDPModule" in bases:
        return own[len("FSDP") :]
    return own


def expert_weights(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the 3-D parameters of a module whose names show that it contains experts."""
    if EXPERTS.search(f"{name} {type(module).__name__}"):
        for key, weight in parameters_of(module).items():
            if len(shape_of(weight)) == 3:
                yield key, weight


def weight_of(module: nn.Module) -> Any:
    """Return a layer's weight, of a parametrized one the original; None if it has no tensor."""
    weight = stored(module, "weight")
    if is_a(weight, Tensor):
        return weight
    parameters = list(parameters_of(module).values())
    for computed in children_of(stored(module, "parametrizations")).values():
        parameters += all_parameters(computed)
    matrices = list(filter(_is_matrix, parameters))
    if not matrices:
        return next(all_parameters(module), None)
    # Of weight_norm's two originals one has a single column.
    return max(matrices, key=lambda matrix: prod(shape_of(matrix)))


def matrices_of(module: Any) -> list[tuple[str, Any]]:
    """Return the matrices of a layer by what to add to its name: ".fc1" of a LayerNormMLP."""
    weight = stored(module, "weight")
    if is_a(weight, Tensor):
        return [("", local(weight))]
    matrices = []
    for name, parameter in parameters_of(module).items():
        if not _is_matrix(parameter):
            continue
        part = ""
        # GroupedLinear's weight0, weight1 … are one layer.
        if not name.startswith("weight"):
            part = f".{name.removesuffix('_weight')}"
        matrices.append((part, local(parameter)))
    return matrices


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor that is spread over ranks."""
    return stored(tensor, "_local_tensor", tensor)


def tensor_class(tensor: Any) -> str | None:
    """Return the name of a tensor's wrapper subclass, inside a DTensor too; None for plain ones."""
    name = type(local(tensor)).__name__
    if name in {"Parameter", "Tensor", "NoneType"}:
        return None
    return name


def plain(tensor: Any) -> Any:
    """Return the tensor of values inside wrappers, or of FP8 bytes if that is all there is.

    None for a wrapper that is not known: an operator on it would run its code.
    """
    tensor = local(tensor)
    if not is_a(tensor, Tensor):
        return None
    # torchao: WeightWithDynamicFloat8CastTensor._tensor, Float8TrainingTensor._data,
    # *WrapperTensor._data; Transformer Engine: Float8Tensor._data and the others' _rowwise_data
    # are uint8.
    for name in ("_tensor", "_data", "_rowwise_data"):
        inner = stored(tensor, name)
        if is_a(inner, Tensor):
            return plain(inner)
    if not has_values(tensor):
        return None
    return tensor.detach()


def measurable(tensor: Any) -> bool:
    """Whether a tensor has values in high precision."""
    return bool(
        has_values(tensor)
        and tensor.is_floating_point()
        and tensor.element_size() > 1
        and tensor.numel()
        and tensor.device != torch.device("meta")
    )

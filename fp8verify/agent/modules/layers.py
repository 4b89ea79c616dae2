"""The linear-like layers and the experts of the model being trained, found in one walk over it."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from .trained import listening, parameters_of, trained_roots

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


class Layer(NamedTuple):
    """One layer, below the root of its model; one that is not linear holds experts."""

    root: nn.Module
    name: str
    module: nn.Module
    is_linear: bool


class _Walk(NamedTuple):
    """What a walk has found, without keeping any of it alive."""

    changes: int | None
    parameters: frozenset[int]
    layers: list[tuple[weakref.ref[nn.Module], str, weakref.ref[nn.Module], bool]]


_last: _Walk | None = None


def trained_layers(optimizers: Iterable[Any], *, anew: bool = False) -> list[Layer]:
    """Return the layers below the roots that own parameters of `optimizers`.

    As long as no module was added anywhere, the last walk still holds; where nobody hears of that,
    or nothing is stepped, until someone wants a walk `anew`.
    """
    global _last
    parameters = parameters_of(optimizers)
    kept = None
    if not anew or (parameters and listening.changes is not None):
        kept = _still_holding(frozenset(parameters))
    if kept is not None:
        return kept
    found = [layer for root in trained_roots(parameters) for layer in _below(root)]
    _last = _Walk(
        listening.changes,
        frozenset(parameters),
        [(weakref.ref(root), name, weakref.ref(module), is_linear)
         for root, name, module, is_linear in found],
    )  # fmt: skip
    return found


def _still_holding(parameters: frozenset[int]) -> list[Layer] | None:
    """Return what the last walk has found, None if it is out of date."""
    if _last is None or (_last.changes, _last.parameters) != (listening.changes, parameters):
        return None
    layers = []
    for root, name, module, is_linear in _last.layers:
        top, layer = root(), module()
        if top is None or layer is None:
            return None
        layers.append(Layer(top, name, layer, is_linear))
    return layers


def linear_modules(optimizers: Iterable[Any]) -> list[tuple[str, nn.Module]]:
    """Return the linear-like modules that `take_census` describes, by the same names."""
    linear = [layer for layer in trained_layers(optimizers) if layer.is_linear]
    names = told_apart([(layer.root, layer.name) for layer in linear])
    return [(name, layer.module) for name, layer in zip(names, linear, strict=True)]


def expert_modules(optimizers: Iterable[Any]) -> list[tuple[str, nn.Module]]:
    """Return the modules whose 3-D parameters `take_census` lists as experts."""
    layers = trained_layers(optimizers)
    return [(layer.name, layer.module) for layer in layers if not layer.is_linear]


def told_apart(found: list[tuple[nn.Module, str]]) -> list[str]:
    """Return names with that of their model's class where two models, as a GAN's, name alike."""
    uses = Counter(name for _, name in found)
    return [f"{class_name(root)}.{name}" if uses[name] > 1 else name for root, name in found]


def _below(root: nn.Module) -> Iterator[Layer]:
    for raw, module in root.named_modules():
        name = canonical_name(raw)
        is_linear = _is_linear(module)
        if is_linear or next(expert_weights(name, module), None) is not None:
            yield Layer(root, name, module, is_linear)


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


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class; of FSDP2's, that of the class it is made from."""
    # FSDP2 trains a subclass made on the spot, named FSDP + the class.
    bases = [cls.__name__ for cls in type(module).__mro__]
    return bases[0][len("FSDP") :] if "FSDPModule" in bases[1:] else bases[0]


def expert_weights(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the 3-D parameters of a module that is known by its names to hold experts."""
    if EXPERTS.search(f"{name} {type(module).__name__}"):
        for key, weight in module.named_parameters(recurse=False):
            if weight.dim() == 3:
                yield key, weight

"""The roots of the model being trained: remembered when they are built, else searched for once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from ..gc_scan import TooManyObjectsError, find_instances
from ..observe import hidden
from ..record.debug import debug

_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_searched: dict[int, weakref.ref[Any]] = {}  # the parameters whose owners were searched for, by id


class Listening:
    """Hears of every module that becomes part of another one.

    Attributes:
        changes: grows whenever a model may have changed; None as long as nobody listens.
    """

    def __init__(self) -> None:
        self.changes: int | None = None
        self._heard = 0
        self._handle: Any = None

    def begin(self) -> Listening:
        """Listen until `remove`."""
        self._handle = register_module_module_registration_hook(hidden(self._hear))
        self.changes = self._heard
        return self

    def remove(self) -> None:
        """Listen no more."""
        self._handle.remove()
        self.changes = None

    def _hear(self, module: nn.Module, _: str, child: nn.Module | None) -> None:
        self._heard += 1
        self.changes = self._heard
        self.remember(module)
        if child is not None:
            self.remember(child)

    def remember(self, module: nn.Module) -> None:
        """Remember a module: a search does not see objects that were frozen by `gc.freeze`."""
        try:
            _modules.add(module)
        except Exception:  # an unhashable module; the search for modules will find it
            debug.error("remembering a module")


listening = Listening()


def parameters_of(optimizers: Iterable[Any]) -> dict[int, Any]:
    """Return the parameters that optimizers step, by id."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter): parameter for group in groups for parameter in group["params"]}


def trained_roots(parameters: dict[int, Any]) -> list[nn.Module]:
    """Return the outermost modules that own any of these parameters."""
    owned = set(parameters)
    known = _roots_owning(owned, list(_modules))
    if owned and owned <= {id(p) for root in known for p in root.parameters()}:
        return known
    # A search holds the training up, and is made once: what is built later is heard of.
    if parameters and all(_was_searched(key, found) for key, found in parameters.items()):
        return known
    roots = _roots_owning(owned, all_modules())
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


def all_modules() -> list[nn.Module]:
    """Return every module that is alive, as far as there are few enough objects to look."""
    with suppress(TooManyObjectsError):
        return [*_modules, *find_instances(lambda kind: issubclass(kind, nn.Module))]
    return list(_modules)

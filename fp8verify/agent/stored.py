"""Read what objects store, and run no code of their classes.

A property, `__getattr__`, `__eq__` or `__torch_function__` of a model may draw random numbers, move
a power iteration or count its calls: a model that is looked at would train differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

MISSING: Any = object()
MEMBERS = ("_parameters", "_buffers", "_modules")  # of a module, by name
T = TypeVar("T")
_TENSOR: Any = torch._C.TensorBase
_enable_record_function: Any = getattr(
    torch._C._autograd, "_enable_record_function", lambda _: 0
)


def is_a(value: Any, kind: type) -> bool:
    """Whether a value is of a class, by its type alone: isinstance may read `__class__`."""
    return issubclass(type(value), kind)


def fields(thing: Any) -> dict[str, Any]:
    """Return the attributes that an object itself has; empty if it cannot have any."""
    for cls in type(thing).__mro__:
        slot: Any = vars(cls).get("__dict__")
        if type(slot) in (GetSetDescriptorType, MemberDescriptorType):
            attributes: dict[str, Any] = slot.__get__(thing)
            return attributes
    return {}


def of_class(cls: type, name: str) -> Any:
    """Return an attribute as a class or its bases define it; MISSING if none does."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


def stored(
    thing: Any,
    name: str,
    default: Any = None,
) -> Any:
    """Return an attribute if it is stored: by the object, in a slot, or as a plain class value."""
    attributes = fields(thing)
    if name in attributes:
        return attributes[name]
    if is_a(thing, nn.Module):
        for kind in MEMBERS:
            member = items_of(attributes.get(kind)).get(name)
            if member is not None:
                return member
    value = of_class(type(thing), name)
    if type(value) is MemberDescriptorType:
        try:
            return value.__get__(thing)
        except AttributeError:
            return default
    if value is MISSING:
        return default
    is_computed = of_class(type(value), "__get__") is not MISSING
    return default if is_computed else value


def required(thing: Any, name: str) -> Any:
    """Return an attribute that is stored.

    Raises:
        AttributeError: it is not.
    """
    value = stored(thing, name, MISSING)
    if value is MISSING:
        raise AttributeError(name)
    return value


def pairs_of(mapping: Any) -> list[tuple[Any, Any]]:
    """Return keys and values of a dictionary of whatever class; no key is hashed."""
    if not is_a(mapping, dict):
        return []
    # An OrderedDict of DeepSpeed's gathers the parameter that is asked for.
    return list(dict.items(mapping))


def items_of(mapping: Any) -> dict[str, Any]:
    """Return a dictionary of names, of whatever class, as a plain one."""
    return dict(pairs_of(mapping))


def parameters_of(module: Any) -> dict[str, Any]:
    """Return a module's own parameters by name."""
    parameters = items_of(stored(module, "_parameters"))
    return _only(parameters, Tensor)


def children_of(module: Any) -> dict[str, Any]:
    """Return a module's own children by name."""
    children = items_of(stored(module, "_modules"))
    return _only(children, nn.Module)


def _only(members: dict[str, Any], kind: type) -> dict[str, Any]:
    return {name: member for name, member in members.items() if is_a(member, kind)}


def walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield a module and all below it, once each, as `named_modules` does."""
    waiting = [("", root)]
    seen = set()
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        prefix = f"{name}." if name else ""
        children = children_of(module)
        for key in reversed(children):
            waiting.append((f"{prefix}{key}", children[key]))


def all_parameters(root: Any) -> Iterator[Any]:
    """Yield the parameters of a module and of all below it."""
    for _, module in walk(root):
        yield from parameters_of(module).values()


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer; none if it computes them."""
    groups: Any = stored(optimizer, "param_groups")
    if type(groups) in (list, tuple):
        return [items_of(group) for group in groups]
    return []


def trained_by(optimizers: Any) -> dict[int, Any]:
    """Return the parameters of optimizers by id."""
    trained: dict[int, Any] = {}
    for optimizer in optimizers:
        for group in groups_of(optimizer):
            parameters: Any = group.get("params")
            if type(parameters) in (list, tuple):
                trained.update(zip(map(id, parameters), parameters, strict=True))
    return trained


def header(tensor: Any, name: str) -> Any:
    """Return what torch itself keeps of a tensor: such as its `shape` or `dtype`."""
    with torch._C.DisableTorchFunction():
        return vars(_TENSOR)[name].__get__(tensor)


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor; (0,) of a parameter that is not initialized."""
    return tuple(header(tensor, "shape"))


def has_values(tensor: Any) -> bool:
    """Whether a tensor's values are its own: operators on it run no Python code."""
    dispatch = of_class(type(tensor), "__torch_dispatch__")
    return is_a(tensor, Tensor) and dispatch is vars(Tensor)["__torch_dispatch__"]


def unseen(function: Callable[..., T], *args: Any) -> T:
    """Call a function; hide its operators from the script's modes, tensor classes and observers.

    No context of Python code undoes this: a signal handler that raises could cut its end short.
    Behind `finally`, a call of C is made before a handler may run.
    """
    grad_mode = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        try:
            torch._C._set_grad_enabled(False)
            _enable_record_function(False)
            return function(*args)
        finally:
            try:
                _enable_record_function(True)
            finally:
                torch._C._set_grad_enabled(grad_mode)

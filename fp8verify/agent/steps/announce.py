"""Learn that a method is about to be called, without a frame of ours in the user's tracebacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ..patches import hidden, invisible


class Announced:
    """A method that tells `listener(instance)` whenever it is looked up on an instance.

    The lookup returns the original bound method: unlike a wrapper, an error inside it shows the
    very traceback that it would have shown without us, and `inspect` sees the original. What reads
    the class's dictionary instead takes this for the function too: jsonargparse (LightningCLI)
    refuses a class whose `__init__` is none.
    """

    method: Any = None

    def __init__(self, method: Any, listener: Callable[[Any], None]) -> None:
        functools.update_wrapper(self, method)
        self.method = method
        self.listener = hidden(listener)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return self.method.__get__(instance)
        # Python 3.13's inspect.signature binds a class's own `__init__` to the class.
        if instance is not None and not isinstance(instance, type):
            self.listener(instance)
        return self.method.__get__(instance, owner)

    invisible(__get__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, as whoever found it in the class's dictionary may."""
        return self.method(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.method)


def announce(owner: type, name: str, listener: Callable[[Any], None]) -> None:
    """Make `owner.name` announced; a second call only replaces the listener."""
    method = owner.__dict__[name]
    if isinstance(method, Announced):
        method.listener = hidden(listener)
    else:
        setattr(owner, name, Announced(method, listener))


def announce_function(module: ModuleType, name: str, listener: Callable[[], None]) -> None:
    """Call `listener` whenever a function is looked up on its module; only the first call counts.

    As with a method, no frame of ours is there when the function runs.
    """
    kind: Any = type(module)
    if isinstance(kind.__dict__.get(name), property):
        return

    listener = hidden(listener)

    def look_up(found: Any) -> Any:
        listener()
        return vars(found)[name]

    def replace(found: Any, value: Any) -> None:
        vars(found)[name] = value

    invisible(look_up)
    module.__class__ = type(kind.__name__, (kind,), {name: property(look_up, replace)})


def silence_function(module: ModuleType, name: str) -> None:
    """Undo `announce_function`."""
    kind: Any = type(module)
    if isinstance(kind.__dict__.get(name), property):
        module.__class__ = kind.__base__


def silence(owner: type, name: str) -> None:
    """Undo `announce`."""
    method = owner.__dict__.get(name)
    if isinstance(method, Announced):
        setattr(owner, name, method.method)

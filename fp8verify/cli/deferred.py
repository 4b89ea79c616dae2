"""Modules of the standard library that click and pathlib import and hardly ever use.

Every start of ours would wait for them, and with it the training of `fp8verify run`.
`importlib.util.LazyLoader` does not help: up to Python 3.13 the next `import` of a module loads it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

DEFERRED = (
    "inspect",  # by click, for the help; 5 ms with what it imports, on Python 3.11
    "ipaddress",  # by urllib.parse, which pathlib imports, for URLs with an address; 1 ms
)


class _Deferred(ModuleType):
    """Stands for a module until something in it is used, and then has all of it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


def defer_imports() -> None:
    """Have the modules loaded at the first use of what is in them."""
    for name in DEFERRED:
        if name not in sys.modules:
            module = _Deferred(name)
            module.__spec__ = find_spec(name)
            sys.modules[name] = module

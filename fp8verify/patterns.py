"""Regular expressions that are compiled when they are first used.

The modules that read logs, names of kernels and traces define about 300 expressions, and a command
uses a third of them. Compiling the others at import took a tenth of the CPU time of a small
inspection.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, Final, cast

# Those that are called once a line or kernel: found on the object itself after the first use.
_METHODS: Final = (
    "search",
    "match",
    "fullmatch",
    "finditer",
    "findall",
    "split",
    "sub",
)


class _LazyPattern:
    """Stands for a compiled expression, and takes over its methods once one of them is asked."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        # Pickling asks for these of an object that is not yet filled.
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self.flags)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what acts as `re.compile(pattern, flags)` does, and compiles at its first use.

    It is for constants of modules: an expression that a user wrote is compiled where it is read,
    so that its errors are found there.
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))

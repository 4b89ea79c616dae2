"""A kernel name taken apart as a C++ symbol, each view of it made when first asked for."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

from fp8verify.kernels import cxx, mangled
from fp8verify.kernels.nvidia_spelling import as_cxxfilt

MAX_TEXT: Final = 1 << 16  # a longer name is read up to here

_PATH = re.compile(
    r"(?:(?:void|bool|int|float|auto|static|long) )?"
    r"((?:\(anonymous namespace\)|[\w$~]+)(?:::(?:\(anonymous namespace\)|[\w$~]+))*)"
)
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_SUFFIX = re.compile(r"(?:\.kd|\.cubin)$")
_CONDITION: Final = "std::enable_if"  # a return type with brackets of its own


class Symbol:
    """A kernel name in c++filt's spelling, without what loaders add to it (AMD's `.kd`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = as_cxxfilt(_SUFFIX.sub("", name[:MAX_TEXT].strip()))
        self.is_mangled = self.text.startswith("_Z")

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The qualified name up to the first template bracket, without the return type."""
        if self.is_mangled:
            return self.tree.parts
        match = _PATH.match(self.text)
        if match and match[1] == _CONDITION:
            return self.tree.parts
        return tuple(match[1].split("::")) if match else ()

    @cached_property
    def base(self) -> str:
        """The last part of the path: the function's own name."""
        return self.path[-1] if self.path else ""

    @cached_property
    def is_identifier(self) -> bool:
        """Whether the whole name is one identifier, as Triton's and cuBLAS's are."""
        return self.text.isidentifier() and not self.is_mangled

    @cached_property
    def tree(self) -> cxx.Type:
        """The function with its template arguments, without its parameters."""
        return mangled.parse(self.text) if self.is_mangled else cxx.parse(self.text)

    @cached_property
    def spelling(self) -> str:
        """The name as demangled text; of a mangled name without parameters."""
        return cxx.spell(self.tree, MAX_TEXT) if self.is_mangled else self.text

    @cached_property
    def identifiers(self) -> tuple[str, ...]:
        """Every identifier of the name in order, those of the parameters included."""
        if self.is_mangled:
            return tuple(part for node in cxx.walk(self.tree) for part in node.parts)
        return tuple(_IDENTIFIER.findall(self.text))

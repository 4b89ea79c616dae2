"""A kernel name split into parts: as a C++ symbol of any demangler, and into words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from fp8verify.kernels.demangle import ANONYMOUS, MAX_DEPTH, demangle
from fp8verify.patterns import lazy_pattern

_MAX_PARAMETERS: Final = 4096
_MAX_NODES: Final = 20_000
_MAX_TEXT: Final = 1 << 16  # a longer name is read up to here

_PART: Final = r"(?:\(anonymous namespace\)|[\w$~]+)"
_PATH: Final = lazy_pattern(
    rf"(?:(?:void|bool|int|float|auto|static|long) )?({_PART}(?:::{_PART})*)"
)
_IDENTIFIER: Final = lazy_pattern(r"[^\W\d]\w*")
_SUFFIX: Final = lazy_pattern(r"(?:\.kd|\.cubin)$")
_CONDITION: Final = "std::enable_if"  # a return type with brackets of its own


class Symbol:
    """A kernel name in c++filt's spelling, without what loaders add to it (AMD's `.kd`)."""

    def __init__(self, name: str) -> None:
        text = _SUFFIX.sub("", name[:_MAX_TEXT].strip())
        is_mangled = text.startswith("_Z")
        self.text = demangle(text)[:_MAX_TEXT] if is_mangled else as_cxxfilt(text)

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The qualified name up to the first template bracket, without the return type."""
        match = _PATH.match(self.text)
        if match and match[1] == _CONDITION:
            return self.tree.parts
        if match:
            return tuple(match[1].split("::"))
        return ()

    @cached_property
    def base(self) -> str:
        """The last part of the path: the function's own name."""
        if self.path:
            return self.path[-1]
        return ""

    @cached_property
    def is_identifier(self) -> bool:
        """Whether the whole name is one identifier, as Triton's and cuBLAS's are."""
        return self.text.isidentifier()

    @property
    def library(self) -> str:
        """The namespace; Triton for a bare identifier, as hardly anything else has such names."""
        if self.is_identifier:
            return "Triton"
        if self.path[1:]:
            return self.path[0]
        return "unknown"

    @cached_property
    def tree(self) -> Type:
        """The function with its template arguments, without its parameters."""
        return parse(self.text)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The types of the parameters, () if they are not there."""
        text = self.text[-_MAX_PARAMETERS:]
        if not text.endswith(")"):
            return ()
        listed = text[text.rfind("(") + 1 : -1].split(",")
        return tuple(part.strip() for part in listed if part.strip())

    @cached_property
    def identifiers(self) -> tuple[str, ...]:
        """Every identifier of the name in order, those of the parameters included."""
        return tuple(_IDENTIFIER.findall(self.text))


class Type(NamedTuple):
    """A C++ type, function or value: its qualified name and the template arguments of each part."""

    parts: tuple[str, ...] = ()
    arguments: tuple[tuple[Type, ...], ...] = ()

    @property
    def name(self) -> str:
        """The last part: "GemmUniversal" of `cutlass::gemm::kernel::GemmUniversal<...>`."""
        if self.parts:
            return self.parts[-1]
        return ""

    @property
    def args(self) -> tuple[Type, ...]:
        """The template arguments of the last part that has any."""
        return next((found for found in reversed(self.arguments) if found), ())


EMPTY: Final = Type()

# A cast, a lambda or a function type is text, with all that is between its brackets.
_BRACKETED = r"[({][^(){}]*[)}]"
for _ in range(8):
    _BRACKETED = rf"[({{](?:[^(){{}}]|{_BRACKETED})*[)}}]"
_LEXER: Final = lazy_pattern(
    rf"\(anonymous namespace\)|{_BRACKETED}|[({{].*|::|[<>,:)}}]|[^<>(){{}},:]+",
    re.DOTALL,
)
_QUALIFIER: Final = lazy_pattern(r"\b(?:const|volatile|typename)\b|[*&]")


class _Builder:
    """The types between two brackets; the last one is being read part by part."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.arguments: list[tuple[Type, ...]] = []
        self.siblings: list[Type] = []
        self.joined = True

    def add(self, text: str) -> None:
        """Read a word: the next part after `::`, more of a value like `(Major)0`, or a new name."""
        if self.joined:
            self.parts.append(text)
            self.arguments.append(())
        elif not self.arguments[-1]:
            self.parts[-1] += text
        else:
            self.parts = [text]
            self.arguments = [()]
        self.joined = False

    def add_words(self, words: Sequence[str]) -> None:
        """Read what is a type or a value by all of its words."""
        if words:
            self.add(" ".join(words))

    def add_name(self, words: Sequence[str]) -> None:
        """Read the last of some words as a name; what is before it is what a function returns."""
        if not words:
            return
        if len(words) > 1 or not self.joined:
            self.finish()
        self.add(words[-1])

    def finish(self) -> tuple[Type, ...]:
        """End the type, and return it with those before it."""
        if self.parts:
            self.siblings.append(Type(tuple(self.parts), tuple(self.arguments)))
        self.parts = []
        self.arguments = []
        self.joined = True
        return tuple(self.siblings)


def parse(text: str) -> Type:
    """Parse a demangled function name without its parameters, in linear time.

    A name that was cut off keeps what is there.
    """
    found = _siblings(iter(_LEXER.findall(text)), 0)
    return found[-1] if found else EMPTY  # what is before the name is what it returns


def _siblings(lexemes: Iterator[str], depth: int) -> tuple[Type, ...]:
    """Read types up to the bracket that ends them; outermost, up to the parameters."""
    read = _Builder()
    if depth > MAX_DEPTH:
        return read.finish()
    for lexeme in lexemes:
        is_bracketed = lexeme[0] in "({" and lexeme != ANONYMOUS
        are_parameters = is_bracketed and not depth and not read.joined
        if lexeme == "<":
            listed = _siblings(lexemes, depth + 1)
            if read.arguments:
                read.arguments[-1] = listed
        elif lexeme == ",":
            read.finish()
        elif lexeme == "::":
            read.joined = True
        elif are_parameters or (lexeme == ">" and depth):
            break
        elif is_bracketed:
            read.add(lexeme)
        elif depth:
            read.add_words(_words(lexeme))
        else:
            read.add_name(_words(lexeme))
    return read.finish()


def _words(lexeme: str) -> list[str]:
    if lexeme == ANONYMOUS:
        return [lexeme]
    return _QUALIFIER.sub(" ", lexeme).split()


def walk(root: Type) -> list[Type]:
    """Return the nodes of a tree in name order, at most a bounded number of them."""
    nodes: list[Type] = []
    stack = [root]
    while stack and len(nodes) < _MAX_NODES:
        node = stack.pop()
        nodes.append(node)
        stack.extend(
            child for group in reversed(node.arguments) for child in reversed(group)
        )
    return nodes


def segments(root: Type) -> list[Type]:
    """Return every part of every name in the tree as a type of its own, in name order.

    So `DefaultGemm<...>::GemmKernel` is found by the name that carries the arguments.
    """
    return [
        Type((part,), (arguments,))
        for node in walk(root)
        for part, arguments in zip(node.parts, node.arguments, strict=True)
    ]


_WORD: Final = lazy_pattern(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")


@lru_cache(maxsize=4096)
def split(identifier: str) -> tuple[str, ...]:
    """Return the lower-case words of a snake_case or CamelCase identifier, in order."""
    return tuple(word.lower() for word in _WORD.findall(identifier))


# How NVIDIA's demangler, by which Nsight Systems and Nsight Compute show kernels, spells what
# grammars read, and how c++filt does. Seen in nsys 2024.2.3; compared with c++filt on 59,000 names
# of kernels of vLLM, SGLang, FBGEMM and Transformer Engine.
_SPELLINGS: Final = (
    (lazy_pattern(r"<unnamed>"), ANONYMOUS),
    (lazy_pattern(r"\((?:bool|(?:unsigned )?(?:int|long|long long))\)(?=-?\d)"), ""),
    (
        lazy_pattern(r"\bconst ((?:(?:un)?signed )?(?:long long|[\w:]+)) +(?=[*&])"),
        r"\1 const",
    ),
    (lazy_pattern(r"(?<=[\w>\])*&]) +(?=[*&])"), ""),
)


def as_cxxfilt(name: str) -> str:
    """Return a demangled name in c++filt's spelling, as far as grammars read it."""
    for pattern, spelling in _SPELLINGS:
        name = pattern.sub(spelling, name)
    return name

"""The tree of a C++ name, and its parser for demangled text."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_DEPTH: Final = 64  # CUTLASS nests about 15 deep; deeper is not a kernel's name
MAX_NODES: Final = 20_000

ANONYMOUS: Final = "(anonymous namespace)"

_LEXER = re.compile(r"\(anonymous namespace\)|::|[<>(){},]|[^<>(){},:]+|:")
_QUALIFIER = re.compile(r"\b(?:const|volatile|typename)\b|[*&]")
_CLOSERS: Final = {"(": ")", "{": "}"}


class Type(NamedTuple):
    """A C++ type, function or value: its qualified name and the template arguments of each part."""

    parts: tuple[str, ...]
    arguments: tuple[tuple[Type, ...], ...]

    @property
    def name(self) -> str:
        """The last part: "GemmUniversal" of `cutlass::gemm::kernel::GemmUniversal<...>`."""
        return self.parts[-1] if self.parts else ""

    @property
    def args(self) -> tuple[Type, ...]:
        """The template arguments of the last part that has any."""
        return next((found for found in reversed(self.arguments) if found), ())


EMPTY: Final = Type((), ())


class Builder:
    """A type being read, part by part."""

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
            self.parts, self.arguments = [text], [()]
        self.joined = False

    def finish(self) -> None:
        """Close the type and start its next sibling."""
        if self.parts:
            self.siblings.append(Type(tuple(self.parts), tuple(self.arguments)))
        self.parts, self.arguments, self.joined = [], [], True


def parse(text: str) -> Type:
    """Parse a demangled function name without its parameters, in linear time.

    Parentheses and braces inside template arguments (casts, lambdas, function types) become
    part of the text of the value they belong to. A name that was cut off keeps what is there.
    """
    stack = [Builder()]
    skip: list[str] = []
    for lexeme in _LEXER.findall(text):
        top = stack[-1]
        if skip:
            _skip(skip, lexeme, top)
        elif lexeme == "(" and len(stack) == 1 and not top.joined:
            break
        elif lexeme in _CLOSERS:
            skip.append(_CLOSERS[lexeme])
            top.add(lexeme)
        elif not _open_or_close(stack, lexeme):
            _read(top, lexeme, len(stack) == 1)
        if len(stack) > MAX_DEPTH:
            break
    while len(stack) > 1:
        _pop(stack)
    stack[0].finish()
    return stack[0].siblings[-1] if stack[0].siblings else EMPTY


def walk(root: Type) -> list[Type]:
    """Return the nodes of a tree in name order, each once, at most a bounded number of them."""
    nodes: list[Type] = []
    seen: set[int] = set()
    stack = [root]
    while stack and len(nodes) < MAX_NODES:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        nodes.append(node)
        stack.extend(child for group in reversed(node.arguments) for child in reversed(group))
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


def spell(root: Type, limit: int) -> str:
    """Return a tree as text, up to about `limit` characters; what trees share is written anew."""
    pieces: list[str] = []
    left = limit
    stack: list[Type | str] = [root]
    while stack and left > 0:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
            left -= len(item)
        else:
            left -= 1
            stack.extend(reversed(_pieces(item)))
    return "".join(pieces)


def _pieces(node: Type) -> list[Type | str]:
    """Return the text of a type with its arguments, each still a type, between it."""
    pieces: list[Type | str] = []
    for place, (part, arguments) in enumerate(zip(node.parts, node.arguments, strict=True)):
        pieces.append(f"::{part}" if place else part)
        for at, argument in enumerate(arguments):
            pieces += [", " if at else "<", argument]
        if arguments:
            pieces.append(">")
    return pieces


def _skip(skip: list[str], lexeme: str, top: Builder) -> None:
    """Read a lexeme between brackets, which is text of the current part."""
    if lexeme == skip[-1]:
        skip.pop()
    elif lexeme in _CLOSERS:
        skip.append(_CLOSERS[lexeme])
    top.parts[-1] += lexeme


def _open_or_close(stack: list[Builder], lexeme: str) -> bool:
    if lexeme == "<":
        stack.append(Builder())
    elif lexeme == ">" and len(stack) > 1:
        _pop(stack)
    elif lexeme == ",":
        stack[-1].finish()
    else:
        return lexeme == ">"
    return True


def _pop(stack: list[Builder]) -> None:
    inner = stack.pop()
    inner.finish()
    outer = stack[-1]
    if outer.arguments:
        outer.arguments[-1] = tuple(inner.siblings)


def _read(top: Builder, lexeme: str, outermost: bool) -> None:
    if lexeme == "::":
        top.joined = True
        return
    words = [lexeme] if lexeme == ANONYMOUS else _QUALIFIER.sub(" ", lexeme).split()
    if not words:
        return
    if outermost and (len(words) > 1 or not top.joined):  # what comes before is the return type
        top.finish()
    top.add(words[-1] if outermost else " ".join(words))

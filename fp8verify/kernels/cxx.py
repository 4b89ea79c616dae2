"""The tree of a C++ name, and its parsers for demangled text and for Itanium-mangled names.

Kineto demangles names up to 1,024 characters, so the ones that reach a trace mangled are long;
the demangler in libstdc++ refuses exactly those (its limit is 1,024 characters too, 2,048
components), and no other demangler has wheels for every platform that trains. Expressions are not
read: they are not needed to know a kernel.
Grammar: Itanium C++ ABI, section 5.1.
"""

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


# ---- mangled names

_BUILTIN: Final = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char",
    "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int",
    "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long",
    "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double", "e": "long double",
    "g": "__float128", "z": "...",
}  # fmt: skip
_D_BUILTIN: Final = re.compile(r"D(?:F16b|F16_|F\d+_|[hidsune])")
_D_NAMES: Final = {"DF16b": "bfloat16_t", "DF16_": "_Float16", "Dh": "half"}
_STANDARD: Final = {"St": (), "Sa": ("allocator",), "Ss": ("string",), "Sb": ("basic_string",)}
_SEQUENCE: Final = re.compile(r"S([0-9A-Z]*)_")
_PARAMETER: Final = re.compile(r"T\d*_")
_TEMPLATE_PARAMETER: Final = re.compile(r"T([0-9A-Z]*)_")
_NUMBER: Final = re.compile(r"\d+")
_LITERAL: Final = re.compile(r"[^E]*")
_REST: Final = re.compile(r"([^\W\d]\w*)(?=E$)")
_CLOSURE: Final = re.compile(r"\d*_")
_CALL: Final = "()"  # after a function whose lambda or local type is named
_MAX_LAMBDA: Final = 400


class _UnreadableError(Exception):
    """The name is not an Itanium-mangled name that this reader knows."""


def parse_mangled(text: str) -> Type:
    """Return the tree of a mangled name, or an empty one if it cannot be read to the end."""
    try:
        return _Reader(text, 2).name()
    except (_UnreadableError, IndexError):
        return EMPTY


def parameters(text: str) -> tuple[str, ...]:
    """Return the types of a mangled function's parameters: "float const*"; () if unread."""
    reader = _Reader(text, 2)
    types: list[str] = []
    try:
        arguments = reader.name().args
        if arguments and text[reader.at :]:  # a template's signature begins with what it returns
            reader.type()
        while reader.at < len(text):
            name = reader.type().name
            index = _TEMPLATE_PARAMETER.fullmatch(name)
            at = (int(index[1], 36) + 1 if index[1] else 0) if index else len(arguments)
            name = arguments[at].name if at < len(arguments) else name
            const = " const" if "PK" in reader.marks else ""
            types.append(f"{name}{const}{'*' if 'P' in reader.marks else ''}")
    except (_UnreadableError, IndexError):
        return ()
    return tuple(name for name in types if name != "void")


class _Reader:
    """Reads a mangled name from left to right.

    `marks` are the qualifiers of the type that was read last, such as "PK" of `float const*`.
    """

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.at = position
        self.depth = 0
        self.seen: list[Type] = []
        self.marks = ""
        self._seen_marks: dict[int, str] = {}

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise _UnreadableError

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        read = pattern.match(self.text, self.at)
        if not read:
            raise _UnreadableError
        self.at = read.end()
        return read

    def remember(self, named: Type) -> Type:
        self.seen.append(named)
        return named

    def name(self) -> Type:
        """Read <name>: nested, local, or unscoped with template arguments."""
        if self.take("N"):
            return self.nested()
        if self.take("Z"):
            return self.local()
        named = EMPTY
        if self.peek("S"):
            named = self.substitution()
        if not self.peek("I"):
            named = self.component(named)
            if self.peek("I"):
                self.remember(named)
        if self.peek("I"):
            named = _with_arguments(named, self.arguments())
        return named

    def nested(self) -> Type:
        """Read the prefixes of a nested name up to its E; each one may be referred to later."""
        while self.text[self.at] in "rVKRO":
            self.at += 1
        named = EMPTY
        while not self.take("E"):
            if self.peek("S"):
                named = self.substitution()
                continue
            if self.peek("T"):
                named = self.parameter()
                continue
            if self.peek("I"):
                named = _with_arguments(named, self.arguments())
            else:
                named = self.component(named)
            if not self.peek("E"):
                self.remember(named)
            if len(named.parts) > MAX_DEPTH:
                raise _UnreadableError
        return named

    def local(self) -> Type:
        """Read a name local to a function: the function, and what is named in it."""
        function = self.name()
        while not self.take("E"):
            self.type()
        if self.take("s"):
            return function
        inner = self.name()
        if len(function.parts) + len(inner.parts) > MAX_DEPTH:
            raise _UnreadableError
        return Type(
            (*function.parts, _CALL, *inner.parts), (*function.arguments, (), *inner.arguments)
        )

    def component(self, prefix: Type) -> Type:
        """Read one part of a qualified name."""
        self.take("L")
        if self.text[self.at].isdigit():
            part = self.source()
        elif self.take("Ul"):
            part = self.closure()
        elif self.take("Ut"):
            self.match(_CLOSURE)
            part = "{unnamed}"
        elif self.text[self.at].islower() or self.text[self.at] in "CD":
            code = self.text[self.at : self.at + 2]
            part = "operator()" if code == "cl" else f"operator {code}"
            self.at += 2
        else:
            raise _UnreadableError
        while self.take("B"):
            self.source()
        return Type((*prefix.parts, part), (*prefix.arguments, ()))

    def closure(self) -> str:
        """Read the parameters and the number of a lambda."""
        taken: list[str] = []
        while not self.take("E"):
            taken.append(spell(self.type(), _MAX_LAMBDA))
        self.match(_CLOSURE)
        return f"{{lambda({', '.join(taken)[:_MAX_LAMBDA]})}}"

    def source(self) -> str:
        """Read a length and that many characters."""
        length = int(self.match(_NUMBER)[0][:6])
        word = self.text[self.at : self.at + length]
        if len(word) < length:  # a name that was edited by hand keeps a wrong length
            word = self.match(_REST)[1]
        else:
            self.at += length
        return ANONYMOUS if word.startswith("_GLOBAL__N") else word

    def substitution(self) -> Type:
        """Read a reference to an earlier type, or a standard abbreviation."""
        two = self.text[self.at : self.at + 2]
        if two in _STANDARD:
            self.at += 2
            parts = ("std", *_STANDARD[two])
            return Type(parts, ((),) * len(parts))
        digits = self.match(_SEQUENCE)[1]
        index = int(digits, 36) + 1 if digits else 0
        if index >= len(self.seen):
            raise _UnreadableError
        self.marks = self._seen_marks.get(index, "")
        return self.seen[index]

    def parameter(self) -> Type:
        return self.remember(Type((self.match(_PARAMETER)[0],), ((),)))

    def arguments(self) -> tuple[Type, ...]:
        """Read template arguments; a pack counts as its elements."""
        self.at += 1
        listed: list[Type] = []
        while not self.take("E"):
            if self.peek("J"):
                listed.extend(self.arguments())
            elif self.take("X"):
                listed.append(self.expression())
                self.expect("E")
            elif self.take("L"):
                listed.append(self.literal())
            else:
                listed.append(self.type())
        return tuple(listed)

    def expression(self) -> Type:
        """Read a value that is not a number: the address of a function, or an object of a class."""
        if self.take("ad"):
            return self.expression()
        if self.take("tl"):
            return self.object()
        self.expect("L")
        return self.literal()

    def object(self) -> Type:
        """Read a class and the values of its members, of which only the class is kept."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _UnreadableError
        kind = self.type()
        while not self.take("E"):
            self.expression()
        self.depth -= 1
        return kind

    def literal(self) -> Type:
        """Read a value: (type)digits, or the name of a function or object."""
        if self.take("_Z"):
            named = self.name()
            while not self.take("E"):
                self.type()
            return named
        kind = self.type().name
        value = self.match(_LITERAL)[0]
        self.expect("E")
        return Type((value if kind in _BUILTIN.values() else f"({kind}){value}",), ((),))

    def type(self) -> Type:
        """Read <type>."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _UnreadableError
        try:
            return self.bare_type()
        finally:
            self.depth -= 1

    def bare_type(self) -> Type:
        letter = self.text[self.at]
        self.marks = ""
        if letter in _BUILTIN:
            self.at += 1
            return Type((_BUILTIN[letter],), ((),))
        if letter in "PROKVr":
            self.at += 1
            while letter in "KVr" and self.text[self.at] in "KVr":
                self.at += 1
            pointed = self.type()
            self.marks = letter + self.marks
            self._seen_marks[len(self.seen)] = self.marks
            return self.remember(pointed)
        if letter == "D":
            return self.d_type()
        if letter in "FAM":
            return self.remember(self.compound())
        if letter == "T":
            return self.parameter()
        if letter == "S" and not self.peek("St"):
            pointed = self.substitution()
            if self.peek("I"):
                pointed = self.remember(_with_arguments(pointed, self.arguments()))
            return pointed
        pointed = self.name()
        self.marks = ""
        return self.remember(pointed)

    def d_type(self) -> Type:
        if self.take("Dp"):
            return self.remember(self.type())
        text = self.match(_D_BUILTIN)[0]
        return Type((_D_NAMES.get(text, text),), ((),))

    def compound(self) -> Type:
        """Read a function, array or member pointer, of which only the first type is kept."""
        if self.take("A"):
            self.match(_NUMBER)
            self.expect("_")
            return self.type()
        if self.take("M"):
            self.type()
            return self.type()
        self.expect("F")
        self.take("Y")
        first = self.type()
        while not self.take("E"):
            self.type()
        return first


def _with_arguments(named: Type, arguments: tuple[Type, ...]) -> Type:
    if not named.parts:
        raise _UnreadableError
    return Type(named.parts, (*named.arguments[:-1], arguments))

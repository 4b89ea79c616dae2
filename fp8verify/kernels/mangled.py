"""Read Itanium-mangled C++ names into the same tree as demangled text.

Kineto demangles names up to 1,024 characters, so the ones that reach a trace mangled are long;
the demangler in libstdc++ refuses exactly those (its limit is 1,024 characters too, 2,048
components), and no other demangler has wheels for every platform that trains. Expressions are not
read: they are not needed to know a kernel.
Grammar: Itanium C++ ABI, section 5.1.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels.cxx import ANONYMOUS, EMPTY, MAX_DEPTH, Type, spell

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


def parse(text: str) -> Type:
    """Return the tree of a mangled name, or an empty one if it cannot be read to the end."""
    try:
        return _Reader(text, 2).name()
    except (_UnreadableError, IndexError):
        return EMPTY


def parameters(text: str) -> tuple[str, ...]:
    """Return the types of a function's parameters: "float const*"; () if they are not read."""
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

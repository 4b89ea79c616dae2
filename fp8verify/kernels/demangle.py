"""C++ names that are still mangled in a trace, as text.

Kineto demangles names up to 1,024 characters, so the ones that reach a trace mangled are long;
the demangler in libstdc++ refuses exactly those (its limit is 1,024 characters too, 2,048
components), and no other demangler has wheels for every platform that trains. Expressions are not
read, nor qualifiers of functions: they are not needed to know a kernel.
Grammar: Itanium C++ ABI, section 5.1.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.patterns import lazy_pattern

MAX_DEPTH: Final = 64  # CUTLASS nests about 15 deep; deeper is not a kernel's name
ANONYMOUS: Final = "(anonymous namespace)"

_MAX_WRITTEN: Final = 1 << 24  # characters: each reference writes out what it refers to
# aiter writes the names of its assembly by hand, and not all with the right length in them; a name
# with template arguments is a compiler's that was cut.
_BY_HAND: Final = lazy_pattern(r"_ZN5aiter\d+(?P<base>(?!\w*kernelI)[a-zA-Z]\w*)E")
_BUILTIN: Final = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char",
    "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int",
    "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long",
    "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double", "e": "long double",
    "g": "__float128", "z": "...",
}  # fmt: skip
_D_BUILTIN: Final = lazy_pattern(r"D(?:F16b|F16_|F\d+_|[hidsune])")
_D_NAMES: Final = {"DF16b": "bfloat16_t", "DF16_": "_Float16", "Dh": "half"}
_STANDARD: Final = {
    "St": "std", "Sa": "std::allocator", "Ss": "std::string", "Sb": "std::basic_string"
}  # fmt: skip
_QUALIFIERS: Final = {
    "P": "*",
    "R": "&",
    "O": "&&",
    "K": " const",
    "V": " volatile",
    "r": "",
}
_SEQUENCE: Final = lazy_pattern(r"[ST]([0-9A-Z]*)_")
_NUMBER: Final = lazy_pattern(r"\d+")
_LITERAL: Final = lazy_pattern(r"[^E]*")
_REST: Final = lazy_pattern(r"([^\W\d]\w*)(?=E$)")
_CLOSURE: Final = lazy_pattern(r"\d*_")


class _UnreadableError(Exception):
    """The name is not an Itanium-mangled name that this reader knows."""


def demangle(text: str) -> str:
    """Return a function's name as text, without what it returns; "" if it cannot be read.

    Of a name that was cut it is the beginning: its own name, and that of its first argument.
    The parameters are left out behind an open bracket if they cannot be read.
    """
    by_hand = _BY_HAND.fullmatch(text)
    if by_hand:
        return f"aiter::{by_hand['base']}()"
    reader = _Reader(text)
    try:
        name = reader.name()
    except (_UnreadableError, IndexError):
        return _beginning(text)
    try:
        return f"{name}({', '.join(reader.parameters())})"
    except (_UnreadableError, IndexError):
        return f"{name}("


def _beginning(text: str) -> str:
    """Return the name before the template arguments, and that of the first; the rest is lost.

    Only whole names count, and none behind an argument of another kind, whose place would shift.
    """
    reader = _Reader(text)
    names: list[str] = []
    try:
        for _ in range(2):
            reader.expect("N")
            parts = []
            while not reader.take("I"):
                if reader.peek("S"):
                    reader.match(_SEQUENCE)
                else:
                    parts.append(reader.source())
            if not parts:
                break
            names.append("::".join(parts))
    except (_UnreadableError, IndexError):
        pass
    return "<".join(names) + "<" if names else ""


class _Reader:
    """Reads a mangled name from left to right.

    Attributes:
        seen: what was read so far and may be referred to, in order.
        bound: the template arguments that the function's parameters may refer to.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = len("_Z")
        self.depth = 0
        self.left = _MAX_WRITTEN
        self.seen: list[str] = []
        self.last: list[str] = []
        self.bound: list[str] = []

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

    def written(self, named: str) -> str:
        self.left -= len(named)
        if self.left < 0:
            raise _UnreadableError
        return named

    def remember(self, named: str) -> str:
        self.seen.append(self.written(named))
        return named

    def parameters(self) -> list[str]:
        """Read the types behind a function's name."""
        self.bound = self.last
        if (
            self.bound and self.text[self.at :]
        ):  # a template's begin with what it returns
            self.type()
        types: list[str] = []
        while self.at < len(self.text):
            types.append(self.type())
        return [name for name in types if name != "void"]

    def name(self) -> str:
        """Read <name>: nested, local, or unscoped with template arguments."""
        if self.take("N"):
            return self.nested()
        if self.take("Z"):
            return self.local()
        named = self.reference() if self.peek("S") else ""
        if not self.peek("I"):
            named = self.component(named)
            if self.peek("I"):
                self.remember(named)
        if self.peek("I"):
            return self.instance(named)
        return named

    def nested(self) -> str:
        """Read the prefixes of a nested name up to its E; each one may be referred to later."""
        while self.text[self.at] in "rVKRO":
            self.at += 1
        named = ""
        while not self.take("E"):
            if self.peek("S"):
                named = self.reference()
                continue
            if self.peek("T"):
                named = self.argument()
                continue
            if self.peek("I"):
                named = self.instance(named)
            else:
                named = self.component(named)
            if not self.peek("E"):
                self.remember(named)
        return named

    def local(self) -> str:
        """Read a name local to a function: the function, and what is named in it."""
        function = self.name()
        while not self.take("E"):
            self.type()
        return f"{function}()::{self.name()}"

    def component(self, prefix: str) -> str:
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
            part = "operator"
            self.at += 2
        else:
            raise _UnreadableError
        while self.take("B"):
            self.source()
        if prefix:
            return f"{prefix}::{part}"
        return part

    def closure(self) -> str:
        """Read the parameters and the number of a lambda."""
        taken: list[str] = []
        while not self.take("E"):
            taken.append(self.type())
        self.match(_CLOSURE)
        return f"{{lambda({', '.join(taken)})}}"

    def source(self) -> str:
        """Read a length and that many characters."""
        length = int(self.match(_NUMBER)[0][:6])
        word = self.text[self.at : self.at + length]
        if len(word) < length:  # a name that was edited by hand keeps a wrong length
            word = self.match(_REST)[1]
        else:
            self.at += length
        if word.startswith("_GLOBAL__N"):
            return ANONYMOUS
        return word

    def reference(self) -> str:
        """Read a reference to an earlier type, or a standard abbreviation."""
        two = self.text[self.at : self.at + 2]
        if two in _STANDARD:
            self.at += 2
            return _STANDARD[two]
        return self.written(self.seen[_index(self.match(_SEQUENCE))])

    def argument(self) -> str:
        """Read a reference to a template argument, which stays one where they are not known."""
        match = self.match(_SEQUENCE)
        index = _index(match)
        return self.remember(self.bound[index] if index < len(self.bound) else match[0])

    def instance(self, named: str) -> str:
        """Read the template arguments of a name."""
        if not named:
            raise _UnreadableError
        self.last = self.arguments()
        return f"{named}<{', '.join(self.last)}>"

    def arguments(self) -> list[str]:
        """Read template arguments; a pack counts as its elements."""
        self.at += 1
        listed: list[str] = []
        while not self.take("E"):
            if self.peek("J"):
                listed += self.arguments()
            elif self.take("X"):
                listed.append(self.expression())
                self.expect("E")
            elif self.take("L"):
                listed.append(self.literal())
            else:
                listed.append(self.type())
        return listed

    def expression(self) -> str:
        """Read a value that is not a number: the address of a function, or an object of a class."""
        if self.take("ad"):
            return self.expression()
        if self.take("tl"):
            return self.object()
        self.expect("L")
        return self.literal()

    def object(self) -> str:
        """Read a class and the values of its members, of which only the class is kept."""
        self.deeper()
        kind = self.type()
        while not self.take("E"):
            self.expression()
        self.depth -= 1
        return kind

    def literal(self) -> str:
        """Read a value: (type)digits, or the name of a function or object."""
        if self.take("_Z"):
            named = self.name()
            while not self.take("E"):
                self.type()
            return named
        kind = self.type()
        value = self.match(_LITERAL)[0]
        self.expect("E")
        if kind in _BUILTIN.values():
            return value
        return f"({kind}){value}"

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _UnreadableError

    def type(self) -> str:
        """Read <type>."""
        self.deeper()
        read = self.bare_type()
        self.depth -= 1
        return read

    def bare_type(self) -> str:
        letter = self.text[self.at]
        if letter in _BUILTIN:
            self.at += 1
            return _BUILTIN[letter]
        if letter in _QUALIFIERS:
            self.at += 1
            while letter in "KVr" and self.text[self.at] in "KVr":
                self.at += 1
            return self.remember(self.type() + _QUALIFIERS[letter])
        if self.take("Dp"):
            return self.remember(self.type())
        if letter == "D":
            text = self.match(_D_BUILTIN)[0]
            return _D_NAMES.get(text, text)
        if letter in "FAM":
            return self.remember(self.compound())
        if letter == "T":
            return self.argument()
        if letter == "S" and not self.peek("St"):
            named = self.reference()
            if self.peek("I"):
                return self.remember(self.instance(named))
            return named
        return self.remember(self.name())

    def compound(self) -> str:
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


def _index(match: re.Match[str]) -> int:
    """Return the place that a reference names: `S_` is the first, `S0_` the second."""
    if match[1]:
        return int(match[1], 36) + 1
    return 0

"""Write names that c++filt demangled as NVIDIA's demangler would have, near enough to test."""

from __future__ import annotations

import re

_VALUE = re.compile(r"(?<=[<,( ])(?P<whole>-?\d+)(?P<suffix>u?l{0,2})(?= ?[>,])")
_TYPES = {"": "int", "u": "unsigned int", "l": "long", "ul": "unsigned long", "ll": "long long",
          "ull": "unsigned long long"}  # fmt: skip
_LAMBDA = re.compile(r"\{(lambda\([^{}()]*\)|unnamed type)#(\d+)\}")
_CONSTANT = re.compile(r"\b((?:unsigned |signed )?[\w:]+) const(?=[*&])")
_STEPS = (
    (re.compile(r"\(anonymous namespace\)"), "<unnamed>"),
    (re.compile(r"(?<=[<, ])true(?= ?[>,])"), "(bool)1"),
    (re.compile(r"(?<=[<, ])false(?= ?[>,])"), "(bool)0"),
    (_LAMBDA, r"[\1 (instance \2)]"),
    (_CONSTANT, r"const \1"),
    (re.compile(r"(?<=[\w>\]])([*&])"), r" \1"),
    (re.compile(r"operator\(\)"), "operator ()"),
    (re.compile(r"> (?=>)"), ">"),
)


def as_nvidia(name: str) -> str:
    """Return a name in NVIDIA's spelling; what is no demangled C++ name has nothing to change."""
    if name.startswith("_Z") or not re.search(r"[<(]", name):
        return name
    name = _VALUE.sub(
        lambda match: f"({_TYPES[match['suffix']]}){match['whole']}", name
    )
    for pattern, text in _STEPS:
        name = pattern.sub(text, name)
    return _numbered(name)


def _numbered(name: str) -> str:
    """Write parameters whose type is a template argument of one word as `T1`, `T2`."""
    match = re.fullmatch(r"([^<(]*<([\w:, ]*)>)(\(.*\))", name)
    if not match:
        return name
    parameters = match[3]
    for place, argument in enumerate(match[2].split(", "), 1):
        if re.fullmatch(r"[\w:]+", argument):
            parameters = re.sub(
                rf"(?<![\w:]){argument}(?![\w:])", f"T{place}", parameters
            )
    return match[1] + parameters

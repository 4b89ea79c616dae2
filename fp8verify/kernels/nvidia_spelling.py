"""Turn C++ names as NVIDIA's demangler spells them into c++filt's spelling, which grammars read.

Nsight Systems and Nsight Compute show kernels by it: `<unnamed>` for `(anonymous namespace)`,
`(int)4`, `(bool)1`, `(unsigned long)2` for `4`, `true`, `2ul`, `[lambda(float) (instance 1)]` for
`{lambda(float)#1}`, `const float *` for `float const*`, `operator ()`, and return types of local
functions. Parameters that it writes as `T1` stay so. Seen in nsys 2024.2.3; held against c++filt on
59,000 names of kernels of vLLM, SGLang, FBGEMM and Transformer Engine.
"""

from __future__ import annotations

import re
from typing import Final

from fp8verify.kernels.cxx import ANONYMOUS

_SUFFIX: Final = {
    "int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll",
    "unsigned long long": "ull",
}  # fmt: skip
_BOOL: Final = {"0": "false", "1": "true"}
_WHOLE: Final = "|".join(sorted(_SUFFIX, key=len, reverse=True))
# What c++filt never writes; only a name with one of these is changed.
_SIGN: Final = re.compile(
    rf"<unnamed>|\((?:{_WHOLE})\)-?\d|\(bool\)[01]\b|\(instance \d+\)\]|(?<=[\w>\])*&]) +[*&]|"
    r"operator \(\)"
)
_REWRITTEN: Final = re.compile(
    rf"(?P<unnamed><unnamed>)|\((?P<kind>{_WHOLE})\)(?P<whole>-?\d+)|\(bool\)(?P<truth>[01])\b|"
    r"(?P<open>\[)(?=lambda\(|unnamed type \(instance )| \(instance (?P<instance>\d+)\)\]|"
    r"\bconst (?P<constant>(?:(?:un)?signed )?(?:long long|[\w:]+)) +(?=[*&])|"
    r"(?P<blank>(?<=[\w>\])*&]) +)(?=[*&])|(?P<operator>operator )(?=\(\))|"
    r"(?P<returned>(?<=[<(])void |(?<=, )void )(?!const\b|volatile\b)(?=[A-Za-z_<])"
)


def as_cxxfilt(name: str) -> str:
    """Return a demangled name in c++filt's spelling; any other text as it is, in linear time."""
    if not _SIGN.search(name):
        return name
    found = _REWRITTEN.sub(_rewrite, name)
    return name if _SIGN.search(found) else found  # a text that only looks like such a name


def _rewrite(match: re.Match[str]) -> str:
    """Spell one place of a name anew; what is left out becomes nothing."""
    piece = match.lastgroup
    text = match[piece] if piece else ""
    if piece == "whole":
        return text + _SUFFIX[match["kind"]]
    if piece == "constant":
        return f"{text} const"
    return {"unnamed": ANONYMOUS, "truth": _BOOL.get(text, ""), "open": "{",
            "instance": f"#{text}}}", "operator": "operator"}.get(piece or "", "")  # fmt: skip

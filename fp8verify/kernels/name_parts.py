"""The parts of a kernel's name, and what each means: for people, the verdict reads none of it.

nvjet names are the ones that people meet and nobody explains; of other names the known types of the
operands are told. What the letters of nvjet's type code were learned from is in `grammars.cublas`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from fp8verify.kernels import decode
from fp8verify.kernels.grammars.cublas import LETTERS
from fp8verify.patterns import lazy_pattern

Part = tuple[str, str]

_NVJET: Final = lazy_pattern(
    r"nvjet_(?:sm(?P<arch>\d{2,3})[af]?_)?(?P<types>[a-z]{3,6})(?P<tf32>_tf32)?_(?P<rest>.+)"
)
_PAIR: Final = lazy_pattern(r"(\d+)x(\d+)")
_SPOKEN: Final = {
    "e4m3": "FP8 E4M3",
    "e5m2": "FP8 E5M2",
    "fp8": "FP8 (E4M3 or E5M2, chosen at run time)",
    "e2m1": "FP4 E2M1",
}
# The meaning of the letters of a type code by how many there are.
_PLACES: Final = {
    3: ("operands A and B are", "computes in", "output D is"),
    5: (
        "operand A is",
        "operand B is",
        "operand C is",
        "computes in",
        "output D is",
    ),
}
# The three pairs of sizes that a name begins with.
_SIZES: Final = (
    "a tile of {0} by {1} outputs",
    "{0} of K at a time, {1} stages in flight",
    "clusters of {0} by {1} thread blocks",
)
_MODIFIERS: Final = {
    "mma": "warp-level MMA",
    "bz": "C is not read (beta is zero)",
    "bx": "C may be read (any beta)",
    "badd": "C is added (beta is one)",
    "2cta": "two thread-block CTAs share one MMA",
    "splitK": "K is split; a second kernel adds the parts",
    "coopA": "two warp groups share A",
    "coopB": "two warp groups share B",
    "algo2": "fast accumulation is off",
    "bias": "adds a bias",
    "ovscale": "one scale for each row of A and column of B",
    "h": "tiles run along rows",
    "v": "tiles run along columns",
}
_SCALING: Final = lazy_pattern(
    r"(?P<operand>[AB])(?P<unit>vec|blk)(?P<size>\d+)(?P<format>UE8M0|UE4M3)?"
)
_LAYOUT: Final = lazy_pattern(r"[TN]{3,4}")
_STORED: Final = {"T": "transposed", "N": "not transposed"}


def parts_of(name: str) -> list[Part]:
    """Return the parts of a name and what each means, in order; none if nothing is known."""
    match = _NVJET.fullmatch(name.partition("(")[0].strip())
    if match is not None:
        return list(_nvjet(match))
    return list(_operands(name))


def _operands(name: str) -> Iterator[Part]:
    """Yield the types that a name gives, as the classification reads it."""
    known = decode(name)
    named = (
        (known.a, "operand A is"),
        (known.b, "operand B is"),
        (known.out, "the output is"),
    )
    for element, place in named:
        if element:
            yield element, f"{place} {_spoken(element)}"


def _nvjet(match: re.Match[str]) -> Iterator[Part]:
    yield "nvjet", "a GEMM that cuBLASLt generates at run time"
    arch = match["arch"]
    if arch:
        yield f"sm{arch}", f"for compute capability {arch[:-1]}.{arch[-1]}"
    yield from _types(match["types"])
    if match["tf32"]:
        yield "tf32", "FP32 operands are rounded to TF32"
    words = match["rest"].split("_")
    yield from _sizes(words)
    for word in words:
        meaning = _modifier(word)
        if meaning is not None:
            yield word, meaning
    if _LAYOUT.fullmatch(words[-1]):
        a, b = (_STORED[letter] for letter in words[-1][:2])
        yield words[-1], f"A is {a}, B is {b} (column-major terms)"


def _types(code: str) -> Iterator[Part]:
    for letter, place in zip(code, _PLACES.get(len(code), ()), strict=False):
        yield letter, f"{place} {_spoken(LETTERS.get(letter))}"


def _sizes(words: Sequence[str]) -> Iterator[Part]:
    """Yield the pairs of sizes; names for sm120 have others."""
    pairs = [_PAIR.fullmatch(word) for word in words[: len(_SIZES)]]
    if None in pairs:
        return
    for pair, meaning in zip(pairs, _SIZES, strict=False):
        if pair is not None:
            yield pair[0], meaning.format(*pair.groups())


def _modifier(word: str) -> str | None:
    scaling = _SCALING.fullmatch(word)
    if scaling is None:
        return _MODIFIERS.get(word)
    size = scaling["size"]
    if scaling["unit"] == "blk":
        unit = f"{size}x{size} block"
    else:
        unit = f"{size} elements"
    element = scaling["format"] or "FP32"
    return f"operand {scaling['operand']} has one {element} scale for each {unit}"


def _spoken(element: str | None) -> str:
    """Return how people write an element type: "FP8 E4M3" for "e4m3"."""
    if element is None:
        return "an unknown type"
    return _SPOKEN.get(element, element.upper())

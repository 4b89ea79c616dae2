"""How names of layers are written: exactly as the census has them, or shortened for a list.

The agent takes the wrappers of DDP, FSDP, compile and checkpointing off a name once, where it
reads the model (`runner/agent/census.py`); whoever compares names afterwards takes them as they
are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from fp8verify.text import lazy_pattern

_INDEX = lazy_pattern(r"(?<![^.])\d+(?![^.])")


def patterns(names: Iterable[str]) -> list[str]:
    """Shorten names alike but for their numbers: "layers.*.mlp.up_proj (12)"."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[pattern(name)].append(name)
    return [
        group[0] if len(group) == 1 else f"{shape} ({len(group)})" for shape, group in alike.items()
    ]


def in_sentences(names: Iterable[str]) -> list[str]:
    """Return names as a sentence has them: a bare number is "layer 0", the root "the model"."""
    return [
        "the model itself" if name == "(root)" else f"layer {name}" if name[:1].isdigit() else name
        for name in names
    ]


def shorten(names: Iterable[str], among: Iterable[str]) -> list[str]:
    """Shorten names as `patterns` does, where all names of `among` of that pattern are meant."""
    wanted, all_alike = list(names), Counter(map(pattern, among))
    alike = Counter(map(pattern, wanted))
    whole = {name for name in wanted if alike[pattern(name)] >= all_alike[pattern(name)]}
    return [
        *patterns(name for name in wanted if name in whole),
        *(n for n in wanted if n not in whole),
    ]


def pattern(name: str) -> str:
    """Return a name with a star for each of its numbers, unless that leaves nothing of it."""
    starred = _INDEX.sub("*", name)
    return starred if any(char.isalpha() for char in starred) else name

"""What the codes of findings mean, as `verdict/findings.md` tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fp8verify.patterns import lazy_pattern

_FILE = Path(__file__).parents[1] / "verdict" / "findings.md"
_SECTION = lazy_pattern(
    r"^## ([\w-]+)\n\n(.+?)\n\nWhy: (.+?)\n\n(Causes.+?)\n\n"
    r"Example: (.+?)\n\nEvidence: (.+?)\n(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
)


class Meaning(NamedTuple):
    """What a code means, in Markdown.

    Attributes:
        means: what was seen.
        why: why it matters.
        causes: the usual causes.
        example: a sentence of a recorded run.
        evidence: what it rests on.
    """

    means: str
    why: str
    causes: str
    example: str
    evidence: str


@cache
def meanings() -> Mapping[str, Meaning]:
    """Return the meaning of each code."""
    text = _FILE.read_text(encoding="utf-8")
    return {code: Meaning(*told) for code, *told in _SECTION.findall(text)}

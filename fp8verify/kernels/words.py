"""Split an identifier into its words, so that tables can match whole words at their place."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")


@lru_cache(maxsize=4096)
def split(identifier: str) -> tuple[str, ...]:
    """Return the lower-case words of a snake_case or CamelCase identifier, in order."""
    found: list[str] = []
    for part in identifier.split("_"):
        if part.islower() or part.isdigit():
            found.append(part)
        else:
            found += [word.lower() for word in _WORD.findall(part)]
    return tuple(found)

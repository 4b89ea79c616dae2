"""The words that reports, help and docs use, each with one meaning: `glossary.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fp8verify.files import parse_toml


@cache
def glossary() -> dict[str, str]:
    """Return the meaning of each word; words that share one are joined by commas."""
    text = Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8")
    return parse_toml(text)


def meaning(word: str) -> str:
    """Return what a word means, in any case; empty if the glossary does not have it."""
    for words, text in glossary().items():
        if word.casefold() in (one.casefold() for one in words.split(", ")):
            return text
    return ""

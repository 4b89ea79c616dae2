"""A share as users write it: a fraction or percent."""

from __future__ import annotations


def parse_share(text: str) -> float:
    """Return the share of `text`, such as 0.5 or 50%, from 0 to 1.

    Raises:
        ValueError: it is not a share; the message says why.
    """
    plain = text.strip()
    try:
        share = float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError:
        raise ValueError(f"{text!r} is no share: pass 0.5 or 50%.") from None
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not between 0 and 1 (0% and 100%).")
    return share

"""The command of a run as a report may show it: what may be secret is left out.

Reports are shared, so a value is shown only if it looks like a number, a name or a path. A short
password after an option that does not say so cannot be told from a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
MOST_WORDS = 64
MOST_LETTERS = 600

# What an option or a variable is called whose value is a secret.
_SECRET_NAME = re.compile(
    r"token(?!s|iz)|secret|passw|pwd|passphrase|credential|auth|cookie|session|signature|private|webhook"
    r"|dsn|(?:^|[-_.])(?:api|access)?[-_.]?keys?(?:$|[-_.])|apikey",
    re.IGNORECASE,
)
_SECRET_START = re.compile(
    r"(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)"
)
# Anything else (blanks, quotes, braces) may hold a whole script with secrets in it.
_PLAIN = re.compile(r"[\w./:,@%+~^-]*", re.ASCII)
_PIECES = re.compile(r"[./:,@%+~^_-]+")
_NAME = re.compile(r"-{0,2}[A-Za-z_][\w.-]*", re.ASCII)
# Keys are longer than the parts of names, and mix letters and digits.
_LONG_MIXED = 16
_LONG = 32


def shown_command(words: Sequence[str]) -> str:
    """Return a command in one line, with "***" for each value that may be secret."""
    shown = " ".join(_shown_words(words[:MOST_WORDS]))
    if len(words) > MOST_WORDS:
        shown = f"{shown} …"
    if len(shown) > MOST_LETTERS:
        return f"{shown[:MOST_LETTERS]}…"
    return shown


def _shown_words(words: Sequence[str]) -> Iterator[str]:
    is_secret = False
    for word in words:
        name, equals, value = word.partition("=")
        is_option = word.startswith("-")
        if is_secret and not is_option:
            yield HIDDEN
            is_secret = False
        elif equals and _NAME.fullmatch(name):
            may_show = not _SECRET_NAME.search(name) and not _is_suspect(value)
            yield f"{name}={value if may_show else HIDDEN}"
            is_secret = False
        else:
            yield HIDDEN if _is_suspect(word) else word
            is_secret = is_option and _SECRET_NAME.search(word) is not None


def _is_suspect(value: str) -> bool:
    """Whether a value may be a secret: a key, an address with a password, or a script."""
    if not _PLAIN.fullmatch(value) or _SECRET_START.search(value):
        return True
    has_login = "://" in value and "@" in value
    return has_login or any(map(_is_key, _PIECES.split(value)))


def _is_key(piece: str) -> bool:
    if len(piece) >= _LONG:
        return True
    has_digit = any(char.isdigit() for char in piece)
    has_letter = any(char.isalpha() for char in piece)
    return len(piece) >= _LONG_MIXED and has_digit and has_letter

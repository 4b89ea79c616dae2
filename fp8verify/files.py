"""Write files of the user's whole or with an error that says what to do; parse TOML."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fp8verify.errors import UsageError


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Turn a failure to write a file of the user's into an error.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {what} to {path}: {error.strerror or error}.",
            "Name a file in a folder that exists, has room and may be written.",
        ) from None


@contextmanager
def replacing(path: Path, name: str) -> Iterator[Path]:
    """Yield the path of a draft, which takes the place of `path` if all goes well inside.

    Args:
        path: the file.
        name: of the draft, which lies next to it.

    Raises:
        OSError: it cannot be put there.
    """
    draft = path.with_name(name)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text holds.

    Raises:
        ValueError: it is not TOML.
    """
    library = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(library.loads(text))

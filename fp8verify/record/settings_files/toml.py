"""Read a TOML file of bounded size."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20


def read_toml(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Return the document at `path`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no TOML, or longer than `limit` bytes.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    if sys.version_info >= (3, 11):  # imported here: most runs have no settings to parse
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(data.decode())
    return document

"""Which form a file is to have: what --format says, else what its name ends in."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fp8verify.errors import UsageError

_BY_SUFFIX = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".xml": "junit",
}


def form_of(given: str | None, output: Path | None, known: Collection[str]) -> str:
    """Return the form to write: `given`, else that of the suffix of `output`, else text.

    Raises:
        UsageError: the suffix is that of a form of other results.
    """
    if given is not None or output is None:
        return given or "text"
    by_suffix = _BY_SUFFIX.get(output.suffix.lower(), "text")
    if by_suffix in known:
        return by_suffix
    suffixes = [suffix for suffix, form in _BY_SUFFIX.items() if form in known]
    raise UsageError(
        f"{output} would be {by_suffix}, which this result has no form of.",
        f"Let the file end in {' '.join(suffixes)}, or pass --format.",
    )
